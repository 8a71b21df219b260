"""Who calls: a bearer token, or a browser's cookie with what keeps forms of other sites out."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import cookie_parser

from ggferry.formats.errors import GgferryError
from ggferry.service.server.guard.context import ROOT
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.tokens import Token

COOKIE, CSRF_HEADER, CSRF_FIELD = "ggferry_session", "x-csrf-token", "csrf"
SECURE = "__Host-"
SESSION_SECONDS = 7 * 86400.0
SAFE = ("GET", "HEAD", "OPTIONS")
USE_STEP = 60.0  # seconds between two notes of a token's last use
FRESH = 1.0  # seconds for which a token that was found is not asked for again


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made a request.

    Attributes:
        token: The token.
        csrf: What a form must send in the field `csrf`, and JavaScript in `X-CSRF-Token`; "" for bearer tokens.
    """

    token: Token
    csrf: str = ""

    @property
    def name(self) -> str:
        """The token's name."""
        return self.token.name

    @property
    def scope(self) -> str:
        """What it may do: 'read', 'submit' or 'admin'."""
        return self.token.scope

    def may(self, scope: str) -> bool:
        """Return whether it may do what `scope` allows."""
        return self.token.may(scope)


class Doorkeeper:
    """Finds tokens, and remembers them for a second."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[str, tuple[float, Token | None]] = {}
        self._used: dict[str, float] = {}
        self._uses = ThreadPoolExecutor(1, "ggferry-uses")

    def close(self) -> None:
        """Note no further uses of tokens."""
        self._uses.shutdown(wait=False, cancel_futures=True)

    def find(self, text: str) -> Token | None:
        """Return the token that `text` is, or None."""
        if len(text) > tokens.LONGEST:
            return None
        key, now = tokens.digest_of(text), time.monotonic()
        kept = self._known.get(key)
        if kept is not None and now - kept[0] < FRESH:
            return kept[1]
        if len(self._known) > 1000:
            self._known.clear()
        found = tokens.find(self.store, text)
        self._known[key] = (now, found)
        if found is not None and now - self._used.get(found.id, -USE_STEP) >= USE_STEP:
            if len(self._used) > 1000:
                self._used.clear()
            self._used[found.id] = now
            with suppress(RuntimeError):  # the server is ending
                self._uses.submit(self._note_use, found)
        return found

    def _note_use(self, token: Token) -> None:
        """Note that a token was used, in a thread of its own: no question waits for the ledger's lock on writes."""
        with suppress(GgferryError):
            tokens.note_use(self.store, token)

    def forget(self) -> None:
        """Ask again for every token, since some have changed."""
        self._known.clear()

    def begin_session(self, text: str) -> str | None:
        """Return the cookie's value for a browser that brought a token; None for a wrong one."""
        token = tokens.find(self.store, text)
        if token is None:
            return None
        seconds = SESSION_SECONDS if token.expires is None else min(SESSION_SECONDS, token.expires - time.time())
        return tokens.add(
            self.store,
            token.name,
            token.scope,
            seconds=seconds,
            kind=tokens.SESSION,
            parent=token.owner,
            quota=token.quota,
            rate=token.rate,
        )

    def end_session(self, key: str) -> None:
        """End a session by its id."""
        tokens.end_session(self.store, key)
        self._known.clear()

    def caller(self, headers: Mapping[str, str], scheme: str = "http") -> tuple[str, str]:
        """Return how a request says who it is: ('bearer' or 'cookie' or '', what it brought).

        Cookies of other applications on the same host may hold anything, JSON among it, which `http.cookies` refuses
        with all that follows.
        """
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return "bearer", text.strip()
        cookie = cookie_parser(headers.get("cookie", "")).get(cookie_name(headers, scheme))
        return ("cookie", cookie) if cookie is not None else ("", "")


def cookie_name(headers: Mapping[str, str], scheme: str = "http", name: str = COOKIE) -> str:
    """Return a cookie's name, the session's by default: with the port that the browser calls; cookies know no ports.

    Over TLS it has the prefix by which browsers take it from this host over TLS only (RFC 6265bis, 4.1.3).
    """
    host = headers.get("host", "")
    port = host.rpartition(":")[2] if not host.endswith("]") else ""
    prefix = "" if scheme != "https" else "__Secure-" if ROOT.get() else "__Host-"  # __Host- holds for the path / only
    return prefix + (f"{name}_{port}" if port.isdecimal() else name)


def csrf_of(session: str) -> str:
    """Return what a form of this session must bring; it tells nothing about the session."""
    return hmac.new(session.encode(), b"ggferry csrf", hashlib.sha256).hexdigest()


def is_same_site(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sends a request for its user or for a page of ours, as far as it says."""
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def check_same_site(method: str, headers: Mapping[str, str]) -> None:
    """Raise HttpError for a request that changes something and comes from another site's page."""
    if method in SAFE:
        return
    if not is_same_site(headers):
        site = headers.get("sec-fetch-site")
        raise HttpError(403, "cross_site", "the request comes from another site", found=site)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise HttpError(403, "cross_site", "the request comes from another site", found=origin)


def check_csrf(session: str, brought: str) -> None:
    """Raise HttpError unless a form brought what its page was given."""
    if not hmac.compare_digest(csrf_of(session).encode(), brought.encode("utf-8", "replace")):
        detail = f"the form's {CSRF_FIELD} field, or the header {CSRF_HEADER}, is absent or not this session's"
        raise HttpError(403, "csrf", detail, hint="load the page again")
