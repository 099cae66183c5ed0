"""A cell of two brokers on one nats-server: prints the port of the one that leads, or with --standby that of the other.

cell.py --tow PROGRAM --nats PROGRAM --folder FOLDER [--standby]
"""

import argparse
import pathlib
import signal
import socket
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--tow", required=True)
parser.add_argument("--nats", required=True)
parser.add_argument("--folder", required=True, type=pathlib.Path)
parser.add_argument("--standby", action="store_true")
options = parser.parse_args()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


processes = []


def start(name, said, *command):
    """Starts a program, and waits until its log has this."""
    path = options.folder / f"{name}.log"
    with path.open("wb") as log:
        processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
    deadline = time.monotonic() + 30
    while said not in path.read_text():
        if time.monotonic() > deadline or processes[-1].poll() is not None:
            raise RuntimeError(f"{name}: {path.read_text()[-1000:]}")
        time.sleep(0.02)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    nats, leader, standby = free_port(), free_port(), free_port()
    config = options.folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{nats}"\njetstream {{ store_dir: "{options.folder}/store", sync_interval: always }}\n'
    )
    start("nats", "Server is ready", options.nats, "--config", config)
    queue = ["--queue", f"nats://127.0.0.1:{nats}", "--cell", "bench", "--queue-replicas", "1"]
    subprocess.run([options.tow, "queue", "init", *queue], check=True, stdout=subprocess.DEVNULL)
    broker = [options.tow, "broker", "--max-peers-per-address", "16384", *queue, "--bind"]
    start("leader", "this broker leads the cell", *broker, f"tcp://127.0.0.1:{leader}")
    start("standby", "connections are relayed", *broker, f"tcp://127.0.0.1:{standby}")
    print(f"cell on {standby if options.standby else leader}", flush=True)
    processes[0].wait()
finally:
    for process in reversed(processes):
        process.kill()
        process.wait()
