"""Every block of Python in the documents runs, in order; workers go on until the end of their page."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import DEADLINE_SECONDS, WORKSPACE

# Whose first line begins so isn't run.
LEFT_OUT = "# not run by tests: "


def blocks(page):
    """Blocks of a page that use this package."""
    for block in (WORKSPACE / page).read_text().split("```python\n")[1:]:
        block = block.partition("```")[0]
        if not block.startswith(LEFT_OUT) and ("towpath" in block or "tow://" in block):
            yield block


def at(block, files, requests):
    """A block with the addresses of real servers."""
    for call, server in [("Files(", files), ("Client(", requests), ("connect=", requests)]:
        if server is not None:
            block = block.replace(f'{call}"localhost"', f'{call}"{server.endpoint}"')
    if files is not None:
        block = block.replace("tow://localhost", files.endpoint.replace("tcp:", "tow:"))
    assert "localhost" not in block
    return block


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/guide/python.md"])
def test_blocks_run(page, serve, broker, work, tmp_path):
    served = tmp_path / "served"
    (served / "models").mkdir(parents=True)
    (served / "incoming").mkdir()
    (served / "models/weights.bin").write_bytes(b"weights" * 1000)
    (served / "models/config.json").write_text("{}\n")
    (tmp_path / "run7.dat").write_bytes(b"measured\n")
    files, requests = serve(served, "--watch", "--settle", "100ms", "--accept-push", "incoming"), broker()
    if page != "docs/guide/python.md":
        work("upper", [requests], "--", "tr", "a-z", "A-Z")
    workers, count = [], 0
    try:
        for block in blocks(page):
            command = [sys.executable, "-c", at(block, files, requests)]
            if ".run()\n" in block and "asyncio" not in block:
                workers.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL))
            else:
                done = subprocess.run(command, cwd=tmp_path, timeout=DEADLINE_SECONDS, capture_output=True, text=True)
                assert done.returncode == 0, f"{block}\n{done.stderr}"
                assert done.stdout
            count += 1
        for worker in workers:
            assert worker.poll() is None
            worker.terminate()
            assert worker.wait(DEADLINE_SECONDS) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert count >= 1
    assert (tmp_path / "my-models/weights.bin").read_bytes() == b"weights" * 1000


def test_the_guide_names_what_exists():
    import towpath

    guide = (WORKSPACE / "docs/guide/python.md").read_text()
    errors = {name for name in dir(towpath) if isinstance(getattr(towpath, name), type) and issubclass(getattr(towpath, name), towpath.RequestError)}
    assert errors - {"RequestError", "Conflict"} <= {word.strip("`,|") for word in guide.split()}


def test_the_api_is_documented_as_it_is():
    made = subprocess.run([sys.executable, WORKSPACE / "python/api.py"], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert made.stdout == (WORKSPACE / "docs/guide/python-api.md").read_text(), f"run python/api.py again {made.stderr}"


def test_the_cookbook_makes_thumbnails(broker, tmp_path):
    from PIL import Image as image
    requests = broker()
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        image.new("RGB", (1000, 500), (number, 0, 0)).save(tmp_path / f"pictures/{number}.png")
    (tmp_path / "pictures/none.png").write_bytes(b"no picture")
    worker, client = (at(block, None, requests) for block in blocks("docs/cookbook/thumbnails.md"))
    (server,) = blocks("docs/cookbook/web-server.md")
    port = free_port()
    server = at(server, None, requests).replace("port=8080", f"port={port}")
    running = [subprocess.Popen([sys.executable, "-c", block], cwd=tmp_path, stdout=subprocess.DEVNULL) for block in (worker, server)]
    try:
        done = subprocess.run([sys.executable, "-c", client], cwd=tmp_path, timeout=DEADLINE_SECONDS, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [line.split()[0] for line in done.stdout.splitlines()] == [f"pictures/{name}.png" for name in (0, 1, 2, "none")]
        assert "UnidentifiedImageError" in done.stdout
        assert image.open(tmp_path / "pictures/2.thumb.jpg").size == (256, 128)
        picture = (tmp_path / "pictures/1.png").read_bytes()
        small = image.open(io.BytesIO(post(port, picture)))
        assert (small.format, small.size) == ("JPEG", (256, 128))
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(port, b"no picture")
        assert refused.value.code == 400
    finally:
        for process in running:
            process.terminate()
            process.wait(DEADLINE_SECONDS)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def post(port, body):
    """Sends a body to the web server, once that listens."""
    until = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/thumbnail", body, timeout=DEADLINE_SECONDS) as answer:
                return answer.read()
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
