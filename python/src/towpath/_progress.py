"""How far a copy is, for callers and for bars."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, List, Tuple

# Longest time between two reports while something happens.
REPORT_SECONDS = 0.1


@dataclass
class Progress:
    """How far a copy is. bytes, files: that are in place, or were there already. The totals grow while a directory is being listed. path: the
    file in progress. errors: paths that failed, and why."""

    path: str = ""
    bytes: int = 0
    total_bytes: int = 0
    files: int = 0
    total_files: int = 0
    errors: List[Tuple[str, Exception]] = field(default_factory=list)


Report = Callable[[Progress], Any]


@contextmanager
def reporter(progress: bool | Report) -> Iterator[Report]:
    """A function that takes progress as often as one likes, and reports it now and then."""
    if callable(progress):
        yield _Sometimes(progress)
    elif progress:
        with _bar() as report:
            yield report
    else:
        yield lambda progress: None


class _Sometimes:
    """Passes on a report if the last one is a while ago, or if everything is there."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now >= self._next or progress.bytes == progress.total_bytes:
            self._next = now + REPORT_SECONDS
            self._report(progress)


@contextmanager
def _bar() -> Iterator[Report]:
    try:
        from tqdm import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'towpath[tqdm]', or pass a function") from None
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024) as bar:

        def report(progress: Progress) -> None:
            bar.total = progress.total_bytes
            bar.set_description_str(progress.path[-40:], refresh=False)
            bar.update(progress.bytes - bar.n)

        yield report
