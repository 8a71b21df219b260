"""Models of the Hugging Face Hub by name, for servers that read there: within a time, and kept for a minute."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from ggferry.formats.errors import AccessError, RefusedError, UnreachableError, UsageError
from ggferry.service.publishing.search import HubFile, HubModel, search, weights

HUB = "hf://"
SECONDS = 8.0  # in which the Hub must have answered
KEPT = 60.0  # seconds for which an answer is given again
MOST_KEPT = 256  # answers
AT_ONCE = 4  # questions to the Hub
OWNERS = 4  # roots that are searched; a server has one or two
LIMIT = 20  # models of an answer
MOST_FILES = 2000  # of a repository that are looked through
SHORTEST, LONGEST = 2, 100  # characters of a name


class HubSearch:
    """Searches below the roots that are on the Hub."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(root for root in roots if root.startswith(HUB))
        self._pool = ThreadPoolExecutor(AT_ONCE, "ggferry-hub")
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether this server reads anything of the Hub."""
        return bool(self.roots)

    def find(self, text: str) -> list[HubModel]:
        """Return models of the roots whose names hold a text.

        Raises RefusedError where no root is on the Hub, UsageError, UnreachableError.
        """
        self._check()
        text = " ".join(text.split())
        if not SHORTEST <= len(text) <= LONGEST or not text.isprintable():
            raise UsageError("a name to search for", found=text[:200], expected=f"{SHORTEST} to {LONGEST} characters")
        found: list[HubModel] = self._within(("name", text.lower()), lambda: self._search(text))
        return found

    def files(self, repository: str) -> list[HubFile]:
        """Return the files of weights in a repository below the roots. Raises AccessError, and as `find`."""
        self._check()
        if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repository, re.ASCII):
            raise UsageError("a repository of the Hub", found=repository[:200], expected="OWNER/NAME")
        if not any(_is_below(HUB + repository, root) for root in self.roots):
            hint = "--root hf:// or hf://OWNER, where the server is started"
            raise AccessError("not below a root of this server", path=HUB + repository, hint=hint)
        found: list[HubFile] = self._within(("files", repository), lambda: weights(repository, MOST_FILES))
        return found

    def _check(self) -> None:
        if not self.is_on:
            hint = "--root hf:// or hf://OWNER, where the server is started"
            raise RefusedError("this server reads nothing of the Hub", hint=hint)

    def _within(self, key: tuple[str, str], work: Callable[[], Any]) -> Any:
        """Return what `work` returns, or did less than a minute ago. Raises UnreachableError where it takes long."""
        with self._lock:
            at, found = self._kept.get(key, (0.0, None))
        if at and time.monotonic() - at < KEPT:
            return found
        future = self._pool.submit(copy_context().run, work)
        try:
            found = future.result(SECONDS)
        except TimeoutError:
            future.cancel()
            raise UnreachableError(f"the Hub did not answer within {SECONDS:g} s", hint="try again") from None
        with self._lock:
            self._kept[key] = (time.monotonic(), found)
            while len(self._kept) > MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found

    def _search(self, text: str) -> list[HubModel]:
        owners = dict.fromkeys(root.removeprefix(HUB).partition("/")[0] or None for root in self.roots)
        found = [model for owner in [*owners][:OWNERS] for model in search(text, owner, LIMIT)]
        inside = {model.id: model for model in found if any(_is_below(model.source, root) for root in self.roots)}
        return sorted(inside.values(), key=lambda model: -model.downloads)[:LIMIT]

    def close(self) -> None:
        """Ask nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _is_below(source: str, root: str) -> bool:
    """Return whether a request may name a repository; a root of one revision is named as it is."""
    return source == root or source.startswith(root.rstrip("/") + "/")
