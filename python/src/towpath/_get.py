"""Copies of files and directories: partial files, verification, and what a server may not do."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Set, Tuple

import blake3

from ._core.files import Digest, Ended, Entry, Fetch, Metadata, Piece
from ._files_link import Connection, Connections
from ._progress import Progress, Report
from .errors import Changed, ConnectFailed, FilesError, ProtocolError, TowpathError, VerifyFailed, WrongKey

if TYPE_CHECKING:
    from .files import Files

log = logging.getLogger("towpath")

WINDOW = 8 << 20
# Files that are asked for together.
BATCH_FILES, BATCH_BYTES = 512, 64 << 20
# Smaller ones begin anew.
RESUME_BYTES = 1 << 20
HASH_BLOCK_BYTES = 1 << 20
_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


# How often a connection may be lost without any progress between.
LOSSES_MAX = 4
RECONNECT_SECONDS = 0.5

# Path, its place here, and its entry in the listing.
_Wanted = Tuple[str, Path, Entry]
_Failed = Tuple[str, Path, Entry, Exception]


class Unsafe(ProtocolError):
    """A path or link of a server that could lead out of the destination."""


def local_name_problem(path: str) -> str | None:
    """Why a path of a server can't be used here."""
    names = path.split("/")
    if any(name.lower().startswith(".tow-") and name.lower().endswith((".part", ".state")) for name in names):
        return "it is named like a partial file"
    if os.name == "nt" and any(set(name) & set('\\:*?"<>|') or name[-1] in " ." for name in names):
        return "this system has no such names"
    return None


def link_leads_out(path: str, target: str) -> bool:
    """Whether a link at a path below a directory could lead out of it. A `..` behind another name may: that name may be a link."""
    if target.startswith("/") or "\0" in target or (os.name == "nt" and set(target) & set("\\:")):
        return True
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    return ".." in names[up:] or up > path.count("/")


class _Incoming:
    """A file that is being received: a partial file beside its place, which is named by the version that it is of."""

    def __init__(self, place: Path, entry: Entry) -> None:
        self.place, self.entry = place, entry
        version = f"{place.name}\0{entry.size}\0{entry.mtime_ns}".encode("utf-8", "surrogateescape")
        self.part = place.with_name(f".tow-py-{blake3.blake3(version).hexdigest()[:16]}.part")
        self.hasher = blake3.blake3()
        self.digest: str | None = None
        # Bytes that were here, and those that count in the progress.
        self.had = self.counted = 0
        self.is_over = False
        self._descriptor = -1

    def resume(self) -> int:
        """Opens the partial file, and hashes what it has: so many bytes."""
        flags = os.O_RDWR | os.O_CREAT | _BINARY | _NO_LINK
        self._descriptor = os.open(self.part, flags, 0o600)
        if self.entry.size >= RESUME_BYTES and os.fstat(self._descriptor).st_size <= self.entry.size:
            while block := os.read(self._descriptor, HASH_BLOCK_BYTES):
                self.hasher.update(block)
                self.had += len(block)
        else:
            os.ftruncate(self._descriptor, 0)
        return self.had

    def write(self, piece: Piece) -> None:
        if piece.data is None:
            left = piece.length
            while left:
                zeros = bytes(min(left, HASH_BLOCK_BYTES))
                self.hasher.update(zeros)
                left -= len(zeros)
            # A hole stays one.
            os.ftruncate(self._descriptor, piece.offset + piece.length)
            os.lseek(self._descriptor, piece.offset + piece.length, os.SEEK_SET)
            return
        self.hasher.update(piece.data)
        data = memoryview(piece.data)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def install(self) -> None:
        """Gives the file its mode, time and name, if its content is that of its digest."""
        if self.digest != self.hasher.hexdigest():
            self.discard()
            raise VerifyFailed(f"{self.entry.path}: the content isn't that of its digest")
        self.close()
        os.utime(self.part, ns=(self.entry.mtime_ns, self.entry.mtime_ns))
        os.chmod(self.part, self.entry.mode & 0o777)
        os.replace(self.part, self.place)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        self.close()
        try:
            os.unlink(self.part)
        except FileNotFoundError:
            pass


class Get:
    """One copy."""

    def __init__(self, connections: Connections, timeout: float | None, report: Report) -> None:
        self._connections, self._timeout, self._report = connections, timeout, report
        self.progress = Progress()
        self._checked: Set[Path] = set()
        # Paths of the current batch that are in place.
        self._installed: Set[str] = set()

    def run(self, files: Files, path: str, destination: str) -> Progress:
        own = files.stat(path, timeout=self._timeout)
        if own.is_dir:
            self._directory(files, path, Path(destination), own)
        elif own.type == "file":
            place = Path(destination)
            if destination.endswith(("/", os.sep)) or place.is_dir():
                place = place / (own.name or "file")
            place.parent.mkdir(parents=True, exist_ok=True)
            self._plan(own)
            if not self._is_there(place, own):
                self._batch([(path, place, own)], is_single=True)
            self._report(self.progress)
        else:
            raise FilesError("not-a-file", f"it is no file or directory, but {own.type}", path)
        return self.progress

    def _plan(self, entry: Entry) -> None:
        self.progress.total_bytes += entry.size
        self.progress.total_files += 1

    def _is_there(self, place: Path, entry: Entry) -> bool:
        """Whether a file of this size and time is in its place."""
        try:
            stat = place.lstat()
        except OSError:
            return False
        is_there = not place.is_symlink() and place.is_file() and (stat.st_size, stat.st_mtime_ns) == (entry.size, entry.mtime_ns)
        if is_there:
            self.progress.bytes += entry.size
            self._done()
        return is_there

    def _done(self) -> None:
        self.progress.files += 1
        self._report(self.progress)

    def _directory(self, files: Files, path: str, destination: Path, own: Entry) -> None:
        """Everything below a directory: files in batches, then links, then modes and times of directories."""
        destination.mkdir(parents=True, exist_ok=True)
        root = destination.resolve()
        directories: List[Tuple[Path, Entry]] = [(root, own)]
        links: List[Tuple[Path, Entry]] = []
        batch: List[_Wanted] = []
        batch_bytes = 0
        for entry in files.list(path, recursive=True, follow_links="path", timeout=self._timeout):
            name = entry.path[len(path) + 1 :] if path else entry.path
            try:
                place = self._place(root, name, entry, path)
                if entry.type == "dir":
                    place.mkdir(exist_ok=True)
                    directories.append((place, entry))
                elif entry.type == "link":
                    links.append((place, entry))
                elif entry.type == "file":
                    self._plan(entry)
                    if self._is_there(place, entry):
                        continue
                    batch.append((entry.path, place, entry))
                    batch_bytes += entry.size
                    if len(batch) == BATCH_FILES or batch_bytes >= BATCH_BYTES:
                        self._batch(batch)
                        batch, batch_bytes = [], 0
                elif entry.type == "error":
                    raise FilesError("io", entry.message or "the server can't read it", entry.path)
            except (OSError, TowpathError) as error:
                self._failed(entry.path, error)
        if batch:
            self._batch(batch)
        for place, entry in links:
            self._link(root, place, entry)
        for place, entry in reversed(directories):
            _set_mode_and_time(place, entry)
        self._report(self.progress)

    def _failed(self, path: str, error: Exception) -> None:
        log.warning("%s: %s", path, error)
        self.progress.errors.append((path, error))

    def _place(self, root: Path, name: str, entry: Entry, path: str) -> Path:
        """Where an entry goes. Unsafe: nowhere."""
        problem = local_name_problem(name) if name else "it has no name"
        if problem or (path and not entry.path.startswith(path + "/")):
            raise Unsafe(f"{entry.path!r}: {problem or 'it is not below the directory that was asked for'}")
        place = root.joinpath(*name.split("/"))
        parent = place.parent
        if parent not in self._checked:
            # A link that was here before must not lead out either.
            if parent.resolve() != parent:
                raise Unsafe(f"{entry.path!r}: {parent} leads elsewhere, through a link")
            self._checked.add(parent)
        return place

    def _link(self, root: Path, place: Path, entry: Entry) -> None:
        target = entry.target or ""
        try:
            if not target or link_leads_out(str(place.relative_to(root).as_posix()), target):
                raise Unsafe(f"{entry.path}: a link that leads out, to {target!r}")
            if place.is_symlink() and os.readlink(place) == target:
                return
            part = place.with_name(f".tow-py-{os.getpid()}.part")
            os.symlink(target, part)
            os.replace(part, place)
        except (OSError, TowpathError) as error:
            self._failed(entry.path, error)

    def _batch(self, batch: Sequence[_Wanted], is_single: bool = False) -> None:
        """Fetches some files; those that fail the first time for a reason that may pass, once more."""
        failed = self._fetch_over_connections(batch)
        again = [(path, place, entry) for path, place, entry, error in failed if self._tries_again(path, error, is_single)]
        for path, _, _, error in self._fetch_over_connections(again):
            if is_single:
                raise error
            self._failed(path, error)

    def _tries_again(self, path: str, error: Exception, is_single: bool) -> bool:
        if isinstance(error, (VerifyFailed, Changed)):
            log.info("%s: once more, since: %s", path, error)
            return True
        if is_single:
            raise error
        self._failed(path, error)
        return False

    def _fetch_over_connections(self, batch: Sequence[_Wanted]) -> List[_Failed]:
        """Fetches files; goes on over the next connection when one is lost. Those that failed."""
        failed: List[_Failed] = []
        losses = 0
        while batch:
            before = self.progress.files, self.progress.bytes
            try:
                self._fetch(batch, failed)
                break
            except WrongKey:
                raise
            except ConnectFailed as error:
                losses = losses + 1 if (self.progress.files, self.progress.bytes) == before else 1
                if losses == LOSSES_MAX:
                    raise
                log.info("goes on over another connection: %s", error)
                time.sleep(RECONNECT_SECONDS)
                ended = {path for path, _, _, _ in failed} | self._installed
                batch = [wanted for wanted in batch if wanted[0] not in ended]
        self._installed.clear()
        return failed

    def _fetch(self, batch: Sequence[_Wanted], failed: List[_Failed]) -> None:
        """Fetches files; adds those that failed."""
        incoming: Dict[int, _Incoming] = {}
        asked: List[Tuple[str, Any]] = []
        for path, place, entry in batch:
            file = _Incoming(place, entry)
            try:
                had = file.resume()
            except OSError as error:
                file.close()
                failed.append((path, place, entry, error))
                continue
            self._count(file, had)
            incoming[len(asked)] = file
            asked.append((path, [(had, entry.size - had)] if 0 < had < entry.size else [] if had else None))

        def end(n: int, error: Exception | None) -> None:
            file = incoming.pop(n)
            try:
                if error is None:
                    file.install()
                    self._installed.add(file.entry.path)
                    self._done()
            except (OSError, TowpathError) as failure:
                error = failure
            if error is not None:
                file.close()
                self._count(file, -file.counted)
                failed.append((file.entry.path, file.place, file.entry, error))

        try:
            if asked:
                self._receive(asked, incoming, end)
                for n in list(incoming):
                    end(n, ProtocolError(f"{asked[n][0]}: no digest came"))
        finally:
            # What has come so far is kept, and counted when it is continued.
            for file in incoming.values():
                file.close()
                self._count(file, -file.counted)

    def _count(self, file: _Incoming, count: int) -> None:
        file.counted += count
        self.progress.bytes += count

    def _receive(self, asked: Sequence[Tuple[str, Any]], incoming: Dict[int, _Incoming], end: Any) -> None:
        def make(connection: Connection) -> Fetch:
            return Fetch(connection.next_id(), connection.credit, asked, window=WINDOW)

        for event in self._connections.run(make, self._timeout):
            file = incoming.get(event.n)
            if file is None:
                # It has failed here, and its remaining messages are of no use.
                continue
            if isinstance(event, Metadata):
                file.digest = event.digest
                if (event.size, event.mtime_ns) != (file.entry.size, file.entry.mtime_ns):
                    # Of another version than the partial file, which stays. The next try knows it.
                    file.entry = Entry(file.entry.path, "file", event.size, event.mtime_ns, event.mode)
                    if file.had:
                        end(event.n, Changed("changed", "it has become another file", file.entry.path))
            elif isinstance(event, Piece):
                self.progress.path = file.entry.path
                try:
                    file.write(event)
                except OSError as error:
                    end(event.n, error)
                    continue
                self._count(file, event.length)
                self._report(self.progress)
            elif isinstance(event, Digest):
                file.digest = event.digest
                if file.is_over:
                    end(event.n, None)
            elif isinstance(event, Ended):
                file.is_over = True
                if event.error is not None or file.digest is not None:
                    end(event.n, event.error)


def _set_mode_and_time(place: Path, entry: Entry) -> None:
    try:
        os.chmod(place, entry.mode & 0o1777 | 0o700)
        os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
    except OSError as error:
        log.info("%s: %s", place, error)
