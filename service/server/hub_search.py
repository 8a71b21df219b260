"""Models of the Hugging Face Hub by name, for servers that read there: within a time, and kept for a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ggferry.formats.errors import RefusedError, UnreachableError, UsageError
from ggferry.service.publishing.search import HubModel, search

HUB = "hf://"
SECONDS = 8.0  # in which the Hub must have answered
KEPT = 60.0  # seconds for which an answer is given again
MOST_KEPT = 256  # answers
AT_ONCE = 4  # questions to the Hub
OWNERS = 4  # roots that are searched; a server has one or two
LIMIT = 20  # models of an answer
SHORTEST, LONGEST = 2, 100  # characters of a name


class HubSearch:
    """Searches below the roots that are on the Hub."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(root for root in roots if root.startswith(HUB))
        self._pool = ThreadPoolExecutor(AT_ONCE, "ggferry-hub")
        self._kept: dict[str, tuple[float, list[HubModel]]] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether this server reads anything of the Hub."""
        return bool(self.roots)

    def find(self, text: str) -> list[HubModel]:
        """Return models of the roots whose names hold a text.

        Raises RefusedError where no root is on the Hub, UsageError, UnreachableError.
        """
        if not self.is_on:
            hint = "--root hf:// or hf://OWNER, where the server is started"
            raise RefusedError("this server reads nothing of the Hub", hint=hint)
        text = " ".join(text.split())
        if not SHORTEST <= len(text) <= LONGEST or not text.isprintable():
            raise UsageError("a name to search for", found=text[:200], expected=f"{SHORTEST} to {LONGEST} characters")
        with self._lock:
            at, found = self._kept.get(text.lower(), (0.0, []))
        if time.monotonic() - at < KEPT and at:
            return found
        work = self._pool.submit(copy_context().run, self._asked, text)
        try:
            found = work.result(SECONDS)
        except TimeoutError:
            work.cancel()
            raise UnreachableError(f"the Hub did not answer within {SECONDS:g} s", hint="try again") from None
        with self._lock:
            self._kept[text.lower()] = (time.monotonic(), found)
            while len(self._kept) > MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found

    def _asked(self, text: str) -> list[HubModel]:
        owners = dict.fromkeys(root.removeprefix(HUB).partition("/")[0] or None for root in self.roots)
        found = [model for owner in [*owners][:OWNERS] for model in search(text, owner, LIMIT)]
        inside = {model.id: model for model in found if any(_is_below(model, root) for root in self.roots)}
        return sorted(inside.values(), key=lambda model: -model.downloads)[:LIMIT]

    def close(self) -> None:
        """Ask nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _is_below(model: HubModel, root: str) -> bool:
    """Return whether a request may name a model as it is found; a root of one revision is named as it is."""
    return model.source == root or model.source.startswith(root.rstrip("/") + "/")
