"""Files of a server for fsspec: `tow://host/path` and `tow://host:port/path` in pandas, dask and pyarrow. For reading alone."""

from __future__ import annotations

import datetime
from typing import Any, Dict, List
from urllib.parse import urlsplit

from fsspec.spec import AbstractFileSystem

from ._core.files import Entry
from .files import Files
from .remote_file import RemoteFile


class TowFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of a server that is started with `tow serve`.

    host, port: the server; from the URL, or given. The other storage options are those of `Files`: key, server_key, user, password, timeout.
    """

    protocol = "tow"

    def __init__(self, host: str = "localhost", port: int | None = None, **options: Any) -> None:
        of_files = {name: options.pop(name) for name in ("key", "server_key", "user", "password", "timeout") if name in options}
        super().__init__(host=host, port=port, **options)
        self.files = Files(host if port is None else f"{host}:{port}", **of_files)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return (urlsplit(path).path if path.startswith("tow://") else path).strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> Dict[str, Any]:
        url = urlsplit(path)
        return {"host": url.hostname or "localhost", **({} if url.port is None else {"port": url.port})}

    def ls(self, path: str, detail: bool = True, **options: Any) -> List[Any]:
        entries = [_info(entry) for entry in self.files.list(self._strip_protocol(path), follow_links="all")]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **options: Any) -> Dict[str, Any]:
        return _info(self.files.stat(self._strip_protocol(path)))

    def modified(self, path: str) -> datetime.datetime:
        """Time of a file, in UTC."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], datetime.timezone.utc)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> RemoteFile:
        if mode != "rb":
            raise NotImplementedError("files of a server are for reading; Files.push sends one")
        return self.files.open(self._strip_protocol(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with self._open(path) as file:
            begin, stop, _ = slice(start, end).indices(file.size)
            file.seek(begin)
            return bytes(file.read(max(0, stop - begin)) or b"")

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        self.files.get(self._strip_protocol(rpath), lpath)


def _info(entry: Entry) -> Dict[str, Any]:
    kind = "directory" if entry.is_dir else entry.type
    return {"name": entry.path, "size": entry.size, "type": kind, "mtime": entry.mtime, "mode": entry.mode}
