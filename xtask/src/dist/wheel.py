"""Makes the wheel towpath-bin: PROGRAM VERSION TAG EPOCH OUT LICENCE..."""

import base64
import hashlib
import pathlib
import sys
import time
import zipfile

program, version, tag, epoch, out, *licences = sys.argv[1:]
info = f"towpath_bin-{version}.dist-info"

MODULE = '''"""The program `tow`."""

import os
import pathlib
import sys


def path() -> pathlib.Path:
    """Where the program is."""
    return pathlib.Path(__file__).with_name("tow")


def main() -> None:
    """Becomes the program."""
    os.execv(path(), [str(path()), *sys.argv[1:]])
'''

files = {
    "towpath_bin/__init__.py": MODULE.encode(),
    "towpath_bin/__main__.py": b"from towpath_bin import main\n\nmain()\n",
    "towpath_bin/py.typed": b"",
    "towpath_bin/tow": pathlib.Path(program).read_bytes(),
    f"{info}/METADATA": f"""Metadata-Version: 2.1
Name: towpath-bin
Version: {version}
Summary: The program tow: files and requests over ZeroMQ's wire protocol
License: MIT
Requires-Python: >=3.9
""".encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: towpath\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    f"{info}/entry_points.txt": b"[console_scripts]\ntow = towpath_bin:main\n",
}
for licence in map(pathlib.Path, licences):
    files[f"{info}/licenses/{licence.name}"] = licence.read_bytes()


def record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


records = "".join(record(name, content) for name, content in files.items())
files[f"{info}/RECORD"] = f"{records}{info}/RECORD,,\n".encode()
# A zip has no time before 1980.
when = time.gmtime(max(int(epoch), 315_532_800))[:6]
with zipfile.ZipFile(pathlib.Path(out) / f"towpath_bin-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, content in files.items():
        entry = zipfile.ZipInfo(name, when)
        entry.external_attr = (0o100755 if name == "towpath_bin/tow" else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, content)
