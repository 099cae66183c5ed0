"""The progress bar of `tow get`, on a pty and nowhere else."""

import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress

import pytest

from conftest import DEADLINE_SECONDS, TOW, wait_until

FILES, FILE_BYTES = 40, 250_000
BYTES_PER_SECOND = 8_000_000
ROWS, COLUMNS, FEW_COLUMNS = 24, 120, 80
CONTROL = re.compile(r"\x1b\[(\d*)([A-Z])|\x1b\[\?\d+[hl]|[\r\n]|[^\x1b\r\n]+")

DONE = re.compile(r"tow: (\d+ files?), [\d.]+ [KM]iB in [\d.]+ s, [\d.]+ [KM]iB/s, verified")

class Screen:
    """As much of a terminal as a progress bar needs."""

    def __init__(self):
        self.lines, self.row, self.column = [""], 0, 0

    def write(self, text: str) -> None:
        for part in CONTROL.finditer(text):
            count = int(part[1] or 1) if part[2] else 0
            if part[0] == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part[0] == "\r":
                self.column = 0
            elif part[2] == "A":
                self.row = max(0, self.row - count)
            elif part[2] == "B":
                self.row += count
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part[2] == "K":
                self.lines[self.row] = "" if part[1] == "2" else self.lines[self.row][: self.column]
            elif not part[0].startswith("\x1b"):
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part[0] + line[self.column + len(part[0]) :]
                self.column += len(part[0])

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip("\n")


class OnTerminal:
    """A process with a pty as standard error, and its screen."""

    def __init__(self, *words, columns=COLUMNS):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.process = subprocess.Popen([TOW, *map(str, words)], stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        self.output, self.said, self.shown, self.screen = b"", "", [], Screen()
        self.reader = threading.Thread(target=self.read, args=[ours])
        self.reader.start()

    def read(self, terminal: int) -> None:
        with os.fdopen(terminal, "rb", buffering=0) as terminal:
            # The end of the last process at the other side is an error to Linux.
            while text := self.some(terminal):
                self.said += text
                self.screen.write(text)
                self.shown.append(self.screen.text())

    @staticmethod
    def some(terminal) -> str:
        try:
            return terminal.read(65536).decode(errors="replace")
        except OSError:
            return ""

    def finish(self) -> int:
        self.output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        self.reader.join(DEADLINE_SECONDS)
        return self.process.returncode


@pytest.fixture
def slowly(serve, tmp_path):
    """The URL of a folder behind a slow proxy."""
    served = tmp_path / "served"
    served.mkdir()
    for number in range(FILES):
        (served / f"file-{number}").write_bytes(os.urandom(FILE_BYTES))
    port = int(serve(served).endpoint.rpartition(":")[2])
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target, rest):
        # Either side may close at any time.
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(len(data) / BYTES_PER_SECOND * rest)
                target.sendall(data)
        target.close()

    def relay():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server, 0), (server, client, 1)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=relay, daemon=True).start()
    yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


BAR = re.compile(r"[█░]+ ([\d.]+ (?:[KM]i)?B)/9\.54 MiB  ([\d.]+) ([KM]i)?B/s  ETA (\d+)s  (\d+) of 40 files")


def test_bar_shows_bytes_rate_time_and_files_and_disappears(slowly, tmp_path):
    get = OnTerminal("get", slowly + "/", tmp_path / "copy")
    assert get.finish() == 0
    assert get.output == b"" and DONE.fullmatch(get.screen.text())[1] == "40 files", get.screen.text()
    assert all("\n" not in shown for shown in get.shown), "it keeps to its line"
    bars = [bar for shown in get.shown if (bar := BAR.fullmatch(shown))]
    assert len(bars) > 5, get.shown
    files = [int(bar[5]) for bar in bars]
    assert files == sorted(files) and files[-1] > FILES / 2
    later = bars[len(bars) // 2]
    assert later[3] == "Mi" and 1 < float(later[2]) < 2 * BYTES_PER_SECOND / (1 << 20), later
    assert any(int(bar[4]) >= 1 for bar in bars), "the time that it will take"
    assert later[0].startswith("█") and "░" in later[0]


def test_bar_fits_the_terminal(slowly, tmp_path):
    # The file is one hole: nothing is transferred.
    with open(tmp_path / "served" / "large", "wb") as large:
        large.truncate(1100 << 20)
    parts = r"[█░]+ \S+ [MG]iB/1\.08 GiB  \S+ [KMG]iB/s  ETA \S+"
    for columns, expected in ((FEW_COLUMNS, parts), (COLUMNS, parts + r"  [1-9]\d of 41 files")):
        get = OnTerminal("get", "--no-verify", slowly + "/", tmp_path / f"copy-{columns}", columns=columns)
        assert get.finish() == 0
        bars = [shown for shown in get.shown if "ETA" in shown]
        assert any(re.fullmatch(expected, bar) for bar in bars) and max(map(len, bars)) <= columns, bars


def test_single_file_is_not_counted(slowly, tmp_path):
    # As long in transfer as all the others together.
    (tmp_path / "served" / "large").write_bytes(os.urandom(FILES * FILE_BYTES))
    get = OnTerminal("get", slowly + "/large", tmp_path / "copy")
    assert get.finish() == 0 and DONE.fullmatch(get.screen.text())[1] == "1 file", get.screen.text()
    assert any("ETA" in shown for shown in get.shown)
    assert not [shown for shown in get.shown if "files" in shown]


def test_interruption_message_has_its_own_line(slowly, tmp_path):
    get = OnTerminal("get", slowly + "/", tmp_path / "copy")
    wait_until(lambda: any(re.search(r"\b[1-9]\d* of 40 files", shown) for shown in get.shown), "some of it is here")
    get.process.send_signal(signal.SIGINT)
    assert get.finish() == -signal.SIGINT
    assert re.fullmatch(r"tow: \S+: .*interrupted.*\n  What has arrived is kept; .*", get.screen.text()), get.screen.text()


def test_resumed_bytes_do_not_count_for_the_rate(slowly, tmp_path):
    (tmp_path / "served" / "large").write_bytes(os.urandom(12_000_000))
    words = ["get", slowly + "/large", tmp_path / "copy"]
    first = OnTerminal(*words)
    wait_until(lambda: any(" 6." in shown for shown in first.shown), "more than half of it is here")
    first.process.send_signal(signal.SIGINT)
    assert first.finish() == -signal.SIGINT
    second = OnTerminal(*words)
    assert second.finish() == 0
    bars = [re.search(r" ([\d.]+) MiB/11\.44 MiB  ([\d.]+) ((?:[KMG]i)?B)/s", shown) for shown in second.shown]
    rates = [float(bar[2]) * {"B": 0, "KiB": 0, "MiB": 1 << 20, "GiB": 1 << 30}[bar[3]] for bar in bars if bar]
    assert len(rates) > 3 and max(rates) < 2 * BYTES_PER_SECOND, rates


def test_no_bar_with_quiet_or_without_a_terminal(slowly, tmp_path):
    quiet = OnTerminal("get", slowly + "/", tmp_path / "copy", "--quiet")
    assert (quiet.finish(), quiet.said) == (0, "")
    words = [TOW, "get", slowly + "/", tmp_path / "another"]
    piped = subprocess.run(words, capture_output=True, timeout=DEADLINE_SECONDS)
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, b"", b"")
