"""Errors of clients, workers and files. All are `TowpathError`s."""

from __future__ import annotations

from typing import Dict, Type


class TowpathError(Exception):
    """Base class of the errors of this package."""


class ProtocolError(TowpathError):
    """The other side sent something that the protocol does not allow."""


class ConnectFailed(TowpathError, ConnectionError):
    """No server answers at the given endpoints; the message says why of each."""


class WrongKey(ConnectFailed):
    """The server refuses our key or password, has another key than `server_key`, or is set up for another mechanism."""


class Closed(TowpathError):
    """The client was closed, or was made before this process was forked."""


class Timeout(TowpathError, TimeoutError):
    """Nothing came within `timeout`."""


class VerifyFailed(TowpathError):
    """The received bytes do not have the digest that the server announced."""


class RequestError(TowpathError):
    """A request ended without a reply. `status` is the number in docs/protocol/requests.md#statuses, `reason` is for people."""

    status = 0

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}" if reason else str(status))
        self.status = status
        self.reason = reason

    def __reduce__(self) -> tuple[Type[RequestError], tuple[int, str]]:
        return type(self), (self.status, self.reason)


class Forbidden(RequestError):
    """403: the broker's rules do not allow this client to call this service."""


class Expired(RequestError, TimeoutError):
    """408: the request expired, and no worker had it."""


class Conflict(RequestError):
    """409: another client has the same id."""


class Lost(RequestError):
    """410: the outcome is lost; a worker may have executed the request."""


class TooLarge(RequestError):
    """413: a limit of the broker; the reason says which."""


class Cancelled(RequestError):
    """499: cancelled by this client."""


class WorkerFailed(RequestError):
    """500: the worker reports a failure."""


class NoSuchService(RequestError):
    """501: no such built-in service."""


class AttemptsUsedUp(RequestError):
    """502: too many workers disconnected while they had the request."""


class Unavailable(RequestError):
    """503: refused for now: a queue is full, or the broker stops."""


class TimedOut(RequestError, TimeoutError):
    """504: the request expired, and a worker may have executed it."""


class NoStorage(RequestError):
    """507: the broker's disk is full, or can't be written."""


_BY_STATUS: Dict[int, Type[RequestError]] = {
    403: Forbidden,
    408: Expired,
    409: Conflict,
    410: Lost,
    413: TooLarge,
    499: Cancelled,
    500: WorkerFailed,
    501: NoSuchService,
    502: AttemptsUsedUp,
    503: Unavailable,
    504: TimedOut,
    507: NoStorage,
}


def request_error(status: int, reason: str) -> RequestError:
    """The error of a status."""
    return _BY_STATUS.get(status, RequestError)(status, reason)


class FilesError(TowpathError, OSError):
    """A file server's error. `code` is the word in docs/protocol/files.md#errors, `reason` is for people."""

    def __init__(self, code: str, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.code = code
        self.reason = reason
        self.path = path

    def __reduce__(self) -> tuple[Type[FilesError], tuple[str, str, str]]:
        return type(self), (self.code, self.reason, self.path)


class BadRequest(FilesError):
    """`bad-request`: malformed, or over a limit."""


class Unsupported(FilesError):
    """`unsupported`: this server can't do that."""


class Busy(FilesError):
    """`busy`: too much at once; try again later."""


class NotFound(FilesError, FileNotFoundError):
    """`not-found`: no such file."""


class Denied(FilesError, PermissionError):
    """`denied`: the server's rules, or its own permissions, forbid it."""


class NotAFile(FilesError, IsADirectoryError):
    """`not-a-file`: a directory or special file where a file is needed."""


class Changed(FilesError):
    """`changed`: the file changed while it was read."""


class ServerIo(FilesError):
    """`io`: the server can't read or write; the reason has its system's error."""


class PathConflict(FilesError, FileExistsError):
    """`conflict`: the path doesn't fulfil the condition of a push, or another push to it is in progress."""


class Full(FilesError):
    """`full`: the server's disk, or its limit for pushes, is full."""


_BY_CODE: Dict[str, Type[FilesError]] = {
    "bad-request": BadRequest,
    "unsupported": Unsupported,
    "busy": Busy,
    "not-found": NotFound,
    "denied": Denied,
    "not-a-file": NotAFile,
    "changed": Changed,
    "io": ServerIo,
    "conflict": PathConflict,
    "full": Full,
}


def files_error(code: str, reason: str, path: str = "") -> FilesError:
    """The error of a code."""
    return _BY_CODE.get(code, FilesError)(code, reason, path)

__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, TowpathError)]
