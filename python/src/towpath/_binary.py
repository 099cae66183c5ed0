"""Copies of directories by the program `tow`, where the package towpath-bin has it: by several processors, with parts of older versions."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List, Tuple

from ._link import Security
from ._progress import Progress
from .errors import ConnectFailed, FilesError, ServerIo, files_error


def find() -> str | None:
    """Path of the program; None without towpath-bin."""
    try:
        import towpath_bin
    except ImportError:
        return None
    return str(towpath_bin.path())


def can_copy(endpoint: str, path: str, security: Security) -> bool:
    """Whether the program can be given these arguments: no pattern, a path that is text, and keys that are files."""
    is_plain = endpoint.startswith("tcp://") and not set(path) & set("*?[]{}\\") and path.isprintable()
    return is_plain and security.is_for_programs


def get(program: str, endpoint: str, path: str, destination: str, security: Security, timeout: float | None) -> Progress:
    """Copies a directory. Errors are those of `Files.get`."""
    command = [program, "get", "--json", *security.arguments()]
    if timeout is not None:
        command += ["--timeout", f"{max(1, round(timeout * 1000))}ms"]
    environment = dict(os.environ)
    if security.password is not None:
        environment["TOW_PASSWORD"] = security.password
    done = subprocess.run([*command, "--", f"{endpoint}/{path}", destination], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    lines = done.stdout.decode(errors="replace").splitlines()
    try:
        summary: Dict[str, Any] = json.loads(lines[-1])
        errors = [(str(failure.get("path", "")), _error(failure)) for failure in summary["failures"]]
        progress = Progress("", int(summary["bytes"]), int(summary["bytes"]), int(summary["files"]), int(summary["files"]), errors)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        raise FilesError("io", f"tow get: status {done.returncode}: {done.stderr.decode(errors='replace').strip()}", path) from None
    if done.returncode and not errors:
        raise _whole(str(summary.get("code")), str(summary.get("error") or done.stderr.decode(errors="replace").strip()), path)
    progress.errors += _left_out(summary.get("warnings", []))
    return progress


def _error(failure: Dict[str, Any]) -> Exception:
    return ServerIo("io", str(failure.get("reason", failure)), str(failure.get("path", "")))


def _whole(code: str, reason: str, path: str) -> Exception:
    """The error of a copy that failed as a whole."""
    codes = {"not_found": "not-found", "refused": "denied"}
    return ConnectFailed(reason) if code == "no_server" else files_error(codes.get(code, "io"), reason, path)


def _left_out(warnings: List[Any]) -> List[Tuple[str, Exception]]:
    """Warnings such as `PATH: left out, a link to TARGET, which may lead out of the destination`."""
    found: List[Tuple[str, Exception]] = []
    for warning in map(str, warnings):
        path, _, reason = warning.partition(": ")
        found.append((path, ServerIo("io", reason or warning, path)))
    return found
