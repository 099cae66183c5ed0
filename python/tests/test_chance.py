"""Random operations of several clients and workers on real brokers that are killed and stalled: each request has exactly one outcome."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
import towpath
from conftest import DEADLINE_SECONDS
from test_worker import running
from towpath import Client

ROUNDS = 25
BODY_BYTES_MAX = 20_000


def handler(body, request):
    """A reply by which its request is known, in parts now and then."""
    if body[:1] == b"p":
        return iter([body[1:50], body[50:]])
    if body[:1] == b"f":
        raise ValueError("as it was asked to")
    return body[::-1]


def expected(body, outcome):
    """Whether an outcome is one that this request may have."""
    if isinstance(outcome, towpath.Lost):
        # Parts that came on a connection that is gone.
        return body[:1] == b"p"
    if body[:1] == b"f":
        return isinstance(outcome, towpath.WorkerFailed)
    return outcome == (body[1:] if body[:1] == b"p" else body[::-1])


@pytest.mark.parametrize("seed", [1, None], ids=["fixed", "random"])
def test_each_request_has_one_outcome(broker, tmp_path, seed):
    seed = seed or int(os.environ.get("TOWPATH_SEED", time.time_ns() % 100_000))
    rng = random.Random(seed)
    servers = [broker("--journal", tmp_path / f"journal-{n}", "--attempts", "100") for n in range(2)]
    endpoints = [server.endpoint for server in servers]
    asked, outcomes = [], []

    def done(body):
        return lambda future: outcomes.append((body, future.exception() or future.result()))

    with running(servers, "any", handler, jobs=2, credit=50), running(servers, "any", handler, credit=3):
        clients = [Client(rng.sample(endpoints, 2)) for _ in range(3)]
        maps = []
        for _ in range(ROUNDS):
            action = rng.choice(["submit", "submit", "submit", "map", "kill", "stall"])
            client = rng.choice(clients)
            bodies = [rng.choice(b"pfxyz").to_bytes(1, "big") + rng.randbytes(rng.randrange(BODY_BYTES_MAX)) for _ in range(rng.randrange(60))]
            if action == "submit":
                for body in bodies:
                    asked.append(body)
                    client.submit("any", body).add_done_callback(done(body))
            elif action == "map":
                asked += bodies

                def collect(client=client, bodies=bodies):
                    outcomes.extend(zip(bodies, client.map("any", bodies, ahead=20, return_errors=True)))

                maps.append(threading.Thread(target=collect, daemon=True))
                maps[-1].start()
            elif action == "kill":
                server = rng.choice(servers)
                server.kill()
                server.start()
            else:
                server = rng.choice(servers)
                server.pause()
                time.sleep(rng.random() / 10)
                server.resume()
        end = time.monotonic() + 2 * DEADLINE_SECONDS
        while len(outcomes) < len(asked) and time.monotonic() < end:
            time.sleep(0.01)
        for client in clients:
            client.close()
    assert len(outcomes) == len(asked), f"seed {seed}: {len(asked) - len(outcomes)} requests have no outcome"
    assert sorted(body for body, _ in outcomes) == sorted(asked), f"seed {seed}"
    wrong = [(body[:20], outcome) for body, outcome in outcomes if not expected(body, outcome)]
    assert not wrong, f"seed {seed}: {wrong[:3]}"
