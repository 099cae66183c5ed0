"""Three nodes of RabbitMQ in one cluster on this machine, with a folder and ports of their own: prints the port of the first.

rabbit.py --server PROGRAM --epmd PROGRAM --folder FOLDER
"""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

# Nodes that start on a busy machine.
LIMIT = 50
NODES = 3

parser = argparse.ArgumentParser()
parser.add_argument("--server", required=True)
parser.add_argument("--epmd", required=True)
parser.add_argument("--folder", required=True, type=pathlib.Path)
options = parser.parse_args()

listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * NODES + 1)]
epmd, *ports = [listener.getsockname()[1] for listener in listeners]
for listener in listeners:
    listener.close()
processes = []


def start(log, command, **environment):
    # A group of its own: what it starts ends with it.
    processes.append(
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    )


def configuration(node):
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{ports[node]}",
        "cluster_formation.peer_discovery_backend = classic_config",
        "vm_memory_high_watermark.absolute = 1GB",
        "disk_free_limit.absolute = 100MB",
    ]
    lines += [f"cluster_formation.classic_config.nodes.{one + 1} = bench{one}@localhost" for one in range(NODES)]
    return "".join(f"{line}\n" for line in lines)


def start_node(node, shared):
    folder = options.folder / f"node{node}"
    folder.mkdir()
    (folder / "rabbitmq.conf").write_text(configuration(node))
    (folder / "enabled_plugins").write_text("[].\n")
    (folder / "env.conf").write_text("")
    log = (folder / "log").open("wb")
    start(
        log,
        [options.server],
        **shared,
        RABBITMQ_NODENAME=f"bench{node}@localhost",
        RABBITMQ_DIST_PORT=str(ports[NODES + node]),
        RABBITMQ_CONFIG_FILE=str(folder / "rabbitmq.conf"),
        RABBITMQ_CONF_ENV_FILE=str(folder / "env.conf"),
        RABBITMQ_ENABLED_PLUGINS_FILE=str(folder / "enabled_plugins"),
        RABBITMQ_MNESIA_BASE=str(folder / "mnesia"),
        RABBITMQ_LOG_BASE=str(folder / "logs"),
        RABBITMQ_LOGS="-",
        RABBITMQ_PID_FILE=str(folder / "pid"),
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
    )
    deadline = time.monotonic() + LIMIT
    while b"Server startup complete" not in (folder / "log").read_bytes():
        if time.monotonic() > deadline or processes[-1].poll() is not None:
            raise RuntimeError(f"node {node}: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.05)


def end(*_):
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
try:
    home = options.folder / "home"
    home.mkdir()
    cookie = home / ".erlang.cookie"
    cookie.write_text("bench")
    cookie.chmod(0o400)
    shared = {"HOME": str(home), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1"}
    start(subprocess.DEVNULL, [options.epmd], **shared)
    # One after the other: each joins those that are there.
    for number in range(NODES):
        start_node(number, shared)
    print(f"RabbitMQ on {ports[0]}", flush=True)
    processes[-1].wait()
finally:
    for process in reversed(processes):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
