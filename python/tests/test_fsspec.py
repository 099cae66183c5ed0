"""`tow://` for fsspec."""

from __future__ import annotations

import pytest
from test_files import tree  # noqa: F401

fsspec = pytest.importorskip("fsspec")


def test_a_server_is_a_file_system(serve, tree, tmp_path):  # noqa: F811
    root, contents = tree
    host = serve(root).endpoint[len("tcp://") :]
    fsspec.register_implementation("tow", "towpath.fsspec.TowFileSystem", clobber=True)
    with fsspec.open(f"tow://{host}/big") as file:
        file.seek(1000)
        assert file.read(500) == contents["big"][1000:1500]
    (root / "text").write_text("line 1\nline 2\n")
    with fsspec.open(f"tow://{host}/text", "rt") as file:
        assert file.readlines() == ["line 1\n", "line 2\n"]
    system, path = fsspec.core.url_to_fs(f"tow://{host}/sub")
    assert path == "sub" and system.isdir(path) and not system.exists("nothing")
    assert sorted(system.glob("many/1?")) == [f"many/{n}" for n in range(10, 20)]
    assert system.cat_file("big", -10, None) == contents["big"][-10:]
    assert set(system.find("")) >= {"big", "sub/folder/inner"}
    assert system.modified("big").timestamp() == pytest.approx((root / "big").stat().st_mtime)
    system.get("many/9", str(tmp_path / "nine"))
    assert (tmp_path / "nine").read_bytes() == contents["many/9"]
    with pytest.raises(NotImplementedError):
        system.open("big", "wb")
