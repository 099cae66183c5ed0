"""Files and requests over ZeroMQ's wire protocol: clients and workers for the servers of `tow`.

`Client` sends requests, `worker` and `Worker` serve them; `Files` reads, follows and pushes files. `towpath.aio` has the same for asyncio.
"""

from __future__ import annotations

from . import errors
from ._core.files import Entry
from ._core.follow import Event
from ._progress import Progress
from ._worker_engine import Request
from .client import Client
from .errors import *  # noqa: F403
from .files import Files, Version
from .remote_file import RemoteFile
from .worker import GiveBack, RetryLater, Worker, worker

__version__ = "0.1.0"
__all__ = ["Client", "Entry", "Event", "Files", "GiveBack", "Progress", "RemoteFile", "Version", "Request", "RetryLater", "Worker", "worker", *errors.__all__]
