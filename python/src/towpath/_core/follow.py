"""Following a path (docs/protocol/follow.md), without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Set, Tuple

from ..errors import ProtocolError
from .files import Buffer, Entry, Operation, entry_of, number, path_member, request

CHANGES_MAX = 1024
UP_TO_DATE = "up-to-date"


@dataclass(frozen=True)
class Event:
    """A change at the server.

    kind: `new`, `changed`, `renamed` (from `old_path`), `gone`, or `up-to-date`: there is nothing more for now, and a later follow may begin
    at `cursor`. A path that wasn't seen before is `changed` if the follow began at a cursor, and `new` otherwise. entry: the file, directory or
    link; of a `gone`, only its path.
    """

    kind: str
    entry: Entry | None = None
    old_path: str | None = None
    cursor: str | None = None

    @property
    def path(self) -> str:
        """The entry's path; empty for `up-to-date`."""
        return self.entry.path if self.entry is not None else ""


class Known:
    """What a follower knows of the server, over all its connections: entries by path, and the cursor."""

    def __init__(self, start: str) -> None:
        self.cursor = start
        self._entries: Dict[str, Tuple[str, str | None]] = {}
        # Entries that the current full state hasn't named yet.
        self._missing: Set[str] | None = None
        self._of_unknown = "new" if start in ("beginning", "now") else "changed"

    def begins(self, is_full: bool) -> None:
        if is_full:
            self._missing = set(self._entries)
            self._of_unknown = "new"

    def take(self, changes: Sequence[Entry], is_live: bool, cursor: str) -> List[Event]:
        """Events of a page."""
        by_digest = {}
        for change in changes:
            known = self._entries.get(change.path)
            if change.type == "gone" and known is not None and known[1]:
                by_digest[known[1]] = change.path
        renamed: Set[str] = set()
        events: List[Event] = []
        for change in changes:
            if change.type != "gone":
                event = self._on_entry(change, by_digest)
                if event.old_path is not None:
                    renamed.add(event.old_path)
                events.append(event)
            elif self._entries.pop(change.path, None) is not None or self._of_unknown == "changed":
                events.append(Event("gone", Entry(change.path, "gone")))
        events = [event for event in events if not (event.kind == "gone" and event.path in renamed)]
        if is_live:
            events += [Event("gone", Entry(path, "gone")) for path in sorted(self._missing or (), reverse=True)]
            for path in self._missing or ():
                self._entries.pop(path, None)
            self._missing = None
            events.append(Event(UP_TO_DATE, cursor=cursor))
        self.cursor = cursor
        return events

    def _on_entry(self, change: Entry, by_digest: Dict[str, str]) -> Event:
        content = change.digest if change.type == "file" else change.target
        known = self._entries.get(change.path)
        self._entries[change.path] = (change.type, content)
        if self._missing is not None:
            self._missing.discard(change.path)
        if known is not None:
            return Event("changed", change)
        old = by_digest.pop(content, None) if change.type == "file" and content else None
        if old is not None:
            return Event("renamed", change, old_path=old)
        return Event(self._of_unknown, change)


class Follow(Operation):
    """A follow on one connection. It is never over by itself."""

    def __init__(self, id: int, known: Known, *, path: str | None, glob: str | None) -> None:
        super().__init__(id, path or glob or "")
        members = {"glob": glob} if glob is not None else path_member(path or "")
        self._known = known
        self._seq = 0
        self._out.append(request("follow", id=id, **{"from": known.cursor}, **members))

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        if answer["re"] == "following":
            self._seq = 0
            self._known.begins(answer.get("state") == "full")
            return []
        changes = answer.get("changes")
        cursor = answer.get("cursor")
        if answer["re"] != "changes" or not isinstance(changes, list) or len(changes) > CHANGES_MAX or not isinstance(cursor, str):
            raise ProtocolError("a page of changes is malformed")
        entries = [entry_of(change) for change in changes]
        for change in changes:
            seq = number(change, "seq")
            if seq <= self._seq:
                raise ProtocolError("the numbers of changes don't ascend")
            self._seq = seq
        self._out.append(request("more", id=self.id))
        return self._known.take(entries, answer.get("live") is True, cursor)
