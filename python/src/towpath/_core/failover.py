"""Choice of the endpoint to try next, and when: each in turn, with growing delays once all have failed."""

from __future__ import annotations

import random

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.02, 1.0


class Failover:
    """The current endpoint, and failures so far."""

    def __init__(self, endpoints: int) -> None:
        self._endpoints = endpoints
        self._failures = 0
        self.current = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Moves on to the next endpoint. Seconds to wait before it is tried."""
        self.current = (self.current + 1) % self._endpoints
        self._failures += 1
        if self._failures < self._endpoints:
            return 0.0
        doublings = min(self._failures // self._endpoints - 1, 16)
        delay = min(FIRST_DELAY_SECONDS * float(2**doublings), LONGEST_DELAY_SECONDS)
        # From half to the whole delay, so that many clients don't reconnect in step.
        return delay * random.uniform(0.5, 1.0)
