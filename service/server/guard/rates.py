"""How often each token may ask: a bucket that fills with time (in this process)."""

from __future__ import annotations

import math
import time

from ggferry.service.server.guard.problems import HttpError

BURST = 10.0  # seconds' worth of requests that may come at once


class Rates:
    """A bucket for each token, and one for each address that brings none."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def check(self, key: str, rate: float) -> None:
        """Count a request. Raises HttpError when there were too many; `rate`: a second on average, 0: no limit."""
        if not rate:
            return
        now = time.monotonic()
        if len(self._buckets) > 10_000:
            self._buckets = {k: v for k, v in self._buckets.items() if now - v[0] < BURST}
        last, left = self._buckets.get(key, (now, rate * BURST))
        left = min(rate * BURST, left + (now - last) * rate)
        if left < 1:
            self._buckets[key] = (now, left)
            wait = math.ceil((1 - left) / rate)
            detail = f"more than {rate:g} requests a second"
            raise HttpError(429, "too_many_requests", detail, headers={"Retry-After": str(wait)})
        self._buckets[key] = (now, left - 1)
