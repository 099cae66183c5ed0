"""Files of a server: listed, read, copied, followed and pushed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Generator, Iterable, Iterator, List, Sequence, Type, Union

import blake3

from . import _binary
from ._core.files import Ask, Entry, List_, Push, clean, stat_of
from ._core.follow import UP_TO_DATE, Event, Follow, Known
from ._files_link import Connection, Connections
from ._get import Get
from ._link import FILES_PORT, Key, Security, ServerKey, endpoints
from ._progress import Progress, Report, reporter
from .errors import ConnectFailed, FilesError, NotFound, WrongKey
from .remote_file import RemoteFile

# Seconds without anything from the server.
TIMEOUT_SECONDS = 60.0
# How long a follow waits before it connects again.
RECONNECT_SECONDS = 1.0
VERSIONS = ".tow-versions"

RemotePath = Union[str, "os.PathLike[str]"]
LocalPath = Union[str, "os.PathLike[str]"]


class Version:
    """A published version of a directory. label: its name. digest: BLAKE3 of its manifest. tree: path below which its files are."""

    def __init__(self, label: str, digest: str, tree: str) -> None:
        self.label, self.digest, self.tree = label, digest, tree

    def __repr__(self) -> str:
        return f"<Version {self.label!r} {self.digest[:16]}>"


class Files:
    """Files below the directory that a server (`tow serve`) serves.

    Paths are relative to that directory, with `/`. All methods may be called from any thread, and after a fork. endpoints: `host`,
    `host:port` (5571 by default), `ipc://path`, or several servers with the same files, tried in turn. timeout: seconds without anything
    from the server, after which an operation gives up (`Timeout`); None waits for ever. key, server_key: CURVE, see the guide. user, password:
    PLAIN, unencrypted.

    All methods raise `FilesError` by code, such as `NotFound`, which is a FileNotFoundError; `ConnectFailed`, if no server answers or the
    connection is lost; `WrongKey`; `Timeout`; `ProtocolError`.

    Example:

        with Files("localhost") as files:
            files.get("models", "models")
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "localhost",
        *,
        timeout: float | None = TIMEOUT_SECONDS,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._endpoints, self._security = _endpoints(endpoints), Security(key, server_key, user, password)
        self._connections = Connections(self._endpoints, self._security)

    def list(
        self,
        path: RemotePath = "",
        *,
        recursive: bool = False,
        glob: str | None = None,
        digest: bool = False,
        follow_links: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[Entry]:
        """Entries of a directory, or the one of a file, as they come, by name; or of all paths that match `glob`.

        recursive: with everything below. digest: with the BLAKE3 of files, which the server may have to compute. follow_links: `path` or
        `all`, as in the protocol.
        """
        where = None if glob is not None else clean(os.fspath(path))

        def make(connection: Connection) -> List_:
            return List_(connection.next_id(), path=where, glob=glob, recursive=recursive, digest=digest, follow_links=follow_links)

        return self._run(make, timeout)

    def stat(self, path: RemotePath = "", *, digest: bool = False, follow_links: bool = True, timeout: float | None = None) -> Entry:
        """The entry of a file or directory; of a link itself, if `follow_links` is False. NotFound: there is none."""
        made: List[List_] = []

        def make(connection: Connection) -> List_:
            made.append(stat_of(connection.next_id(), clean(os.fspath(path)), digest, follow_links))
            return made[0]

        entries = self._run(make, timeout)
        try:
            first = next(entries, None)
            return made[0].entry(first)
        finally:
            entries.close()

    def exists(self, path: RemotePath, *, timeout: float | None = None) -> bool:
        """Whether there is a file or directory that this client may see."""
        try:
            self.stat(path, timeout=timeout)
        except NotFound:
            return False
        return True

    def open(self, path: RemotePath, *, timeout: float | None = None) -> RemoteFile:
        """A file for reading, as an `io.RawIOBase`: works with numpy, tarfile, zipfile, pandas and pyarrow."""
        return RemoteFile(self._connections, clean(os.fspath(path)), self._or_default(timeout))

    def read(self, path: RemotePath, *, timeout: float | None = None) -> bytes:
        """The content of a file, verified by its digest. VerifyFailed: it isn't that of its digest."""
        with self.open(path, timeout=timeout) as file:
            return file.readall()

    def get(
        self,
        path: RemotePath,
        destination: LocalPath = ".",
        *,
        progress: bool | Report = False,
        timeout: float | None = None,
    ) -> Progress:
        """Copies a file, or a directory with everything below it, resumed and verified, with modes and times.

        A directory's content goes into `destination`, which is made. A file goes to `destination`, or into it, if that is a directory or
        ends with `/`. Files that are there with the same size and time are left. What was interrupted goes on where it ended. Links that
        lead out of the directory are left out. Nothing is deleted.

        Where the package towpath-bin is installed and no progress is wanted, `tow` copies directories, faster.

        progress: True for a bar (needs tqdm), or a function that is called with a `Progress` now and then. Returns the last one.

        VerifyFailed: twice, a content wasn't that of its digest. Other errors of single files of a directory are in `Progress.errors`, and
        the rest is copied.
        """
        where, place = clean(os.fspath(path)), os.fspath(destination)
        program = None if progress or len(self._endpoints) > 1 else _binary.find()
        if program is not None and _binary.can_copy(self._endpoints[0], where, self._security) and self.stat(where, timeout=timeout).is_dir:
            return _binary.get(program, self._endpoints[0], where, place, self._security, self._or_default(timeout))
        with reporter(progress) as report:
            return Get(self._connections, self._or_default(timeout), report).run(self, where, place)

    def push(
        self,
        source: LocalPath,
        path: RemotePath,
        *,
        unless_exists: bool = False,
        if_digest: str | None = None,
        durable: bool = False,
        progress: bool | Report = False,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Sends a file to a server that accepts that (`--accept-push`); it gets its name once all of it has arrived and is verified.

        A `path` that ends with `/` is a directory for the file. What was interrupted goes on where it ended. unless_exists, if_digest: only
        if nothing, or a file of this digest, is there (PathConflict). durable: synced to the server's disk. Returns the server's answer:
        `digest`, `durable`, and `seq` and `same` as in docs/protocol/push.md.
        """
        source = Path(source)
        target = os.fspath(path)
        target = clean(target + source.name) if target.endswith("/") or not target else clean(target)
        with open(source, "rb") as file, reporter(progress) as report:
            stat = os.fstat(file.fileno())
            hasher = blake3.blake3()
            while block := file.read(1 << 20):
                hasher.update(block)
            members: dict[str, Any] = {
                "size": stat.st_size,
                "mtime": divmod(stat.st_mtime_ns, 10**9),
                "mode": stat.st_mode & 0o777,
                "digest": hasher.hexdigest(),
                "durable": durable,
            }
            if unless_exists:
                members["if"] = None
            elif if_digest is not None:
                members["if"] = {"digest": if_digest}
            total = Progress(path=target, total_bytes=stat.st_size, total_files=1)
            connection = self._connections.take(self._or_default(timeout))
            is_clean = False
            try:
                operation = Push(connection.next_id(), target, members)
                connection.send_all(operation.take())
                answers: List[dict[str, Any]] = []
                while not operation.is_over:
                    answers += operation.feed(connection.receive(self._or_default(timeout)))
                    while (wanted := operation.wants()) is not None:
                        file.seek(wanted[0])
                        data = file.read(wanted[1])
                        if len(data) != wanted[1]:
                            raise FilesError("changed", "the file became shorter while it was sent", str(source))
                        connection.send_all([operation.piece(data)])
                    total.bytes = operation.sent
                    report(total)
                is_clean = True
            finally:
                self._connections.put(connection, is_clean)
            total.bytes, total.files = stat.st_size, 1
            report(total)
            return answers[-1]

    def follow(
        self,
        path: RemotePath = "",
        *,
        glob: str | None = None,
        start: str = "beginning",
        reconnect: bool = True,
    ) -> Iterator[Event]:
        """Events of a path that the server watches (`--watch`), as they happen: first all that is there, then each change.

        It never ends by itself; close the iterator to end it. start: `beginning`, `now`, or the `cursor` of an earlier `up-to-date`, after
        which everything that has changed since comes. reconnect: go on after a lost connection, instead of raising ConnectFailed. What an
        event names may have changed again: compare the digest of what is fetched.
        """
        where = None if glob is not None else clean(os.fspath(path))
        known = Known(start)
        has_begun = False
        while True:
            try:
                for event in self._connections.run(lambda it: Follow(it.next_id(), known, path=where, glob=glob), None):
                    has_begun = True
                    yield event
            except WrongKey:
                raise
            except ConnectFailed:
                if not reconnect or not has_begun:
                    raise
                time.sleep(RECONNECT_SECONDS)

    def versions(self, path: RemotePath = "", *, timeout: float | None = None) -> List[Version]:
        """Published versions of a directory, the oldest first."""
        prefix = "/".join([VERSIONS, *(f"={name}" for name in clean(os.fspath(path)).split("/") if name)])
        known, found = Known("beginning"), {}
        events = self._connections.run(lambda it: Follow(it.next_id(), known, path=prefix, glob=None), self._or_default(timeout))
        try:
            for event in events:
                if event.kind == UP_TO_DATE:
                    break
                label, _, rest = event.path[len(prefix) + 1 :].partition("/")
                if rest == "manifest" and event.entry is not None and event.entry.digest:
                    found[label] = Version(label, event.entry.digest, f"{prefix}/{label}/tree")
        finally:
            events.close()
        return list(found.values())

    def ask(self, op: str, *, timeout: float | None = None, **members: Any) -> dict[str, Any]:
        """The server's answer to any operation with one answer, such as `publish`, as in docs/protocol."""
        [(answer, _)] = self._run(lambda it: Ask(it.next_id(), op, members), timeout)
        return dict(answer)

    def _or_default(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _run(self, make: Callable[[Connection], Any], timeout: float | None) -> Generator[Any, None, None]:
        return self._connections.run(make, self._or_default(timeout))

    def close(self) -> None:
        """Closes the connections that no operation uses; the others when those end."""
        self._connections.close()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, kind: Type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _endpoints(names: str | Iterable[str]) -> List[str]:
    return endpoints(names if isinstance(names, str) else list(names), FILES_PORT)


__all__ = ["Files", "Version"]
