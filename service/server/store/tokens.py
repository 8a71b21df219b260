"""Tokens: what lets a caller in. Only a digest of each is kept, and it is compared in constant time.

A token reads `ggf_ID_SECRET`; the secret has 256 random bits, so its plain SHA-256 cannot be inverted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.formats.errors import NotFoundError, UsageError
from ggferry.service.server.store.database import Store
from ggferry.support.heavy import sa

READ, SUBMIT, ADMIN = SCOPES = ("read", "submit", "admin")
"""Each may do what those before it may."""
TOKEN, SESSION, PERSON = "token", "session", "person"
PREFIX = "ggf"
LONGEST = 200  # characters of what may be a token


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is kept.

    Attributes:
        id: Its public part, which logs show.
        name: What its maker called it.
        kind: 'token', 'session' of a browser, or 'person' whom an OpenID provider knows.
        scope: What it allows.
        expires: When it ends, seconds since 1970; None: when it is revoked.
        owner: Id of the token whose quota it uses: its own, or that of the token a session was begun with.
        quota: Bytes it may store; None: as the server says.
        rate: Requests a second; None: as the server says.
    """

    id: str
    name: str
    kind: str
    scope: str
    expires: float | None
    owner: str
    quota: int | None
    rate: float | None

    def may(self, scope: str) -> bool:
        """Return whether it allows what `scope` does."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class TokenRecord(TypedDict):
    """A token as a list shows it; times are seconds since 1970, `quota` bytes, `rate` requests a second.

    `kind` is 'token', or 'person' for whoever came by the OpenID provider; `used` is the last use, to the minute;
    `made_by` whoever made it.
    """

    id: str
    name: str
    kind: str
    scope: str
    created: float
    expires: float | None
    used: float | None
    quota: int | None
    rate: float | None
    made_by: str | None


class MadeToken(TypedDict):
    """A new token; `token` is what its owner sends, and is shown once."""

    id: str
    token: str
    name: str
    scope: str
    expires: float | None


def digest_of(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def add(
    store: Store,
    name: str,
    scope: str,
    *,
    seconds: float | None = None,
    kind: str = TOKEN,
    parent: str | None = None,
    quota: int | None = None,
    rate: float | None = None,
    made_by: str | None = None,
) -> str:
    """Make a token and return it; it cannot be shown again. Raises UsageError."""
    if scope not in SCOPES:
        raise UsageError("scope", found=scope, expected=", ".join(SCOPES))
    if not name.strip() or len(name) > LONGEST:
        raise UsageError("a token's name", found=name, expected=f"1 to {LONGEST} characters")
    key, secret, now = secrets.token_hex(6), secrets.token_hex(32), time.time()
    values: dict[str, Any] = {"id": key, "name": name, "kind": kind, "scope": scope, "digest": digest_of(secret)}
    values |= {"parent": parent, "created": now, "expires": None if seconds is None else now + seconds}
    store.put(store.t.tokens, **values, quota=quota, rate=rate, made_by=made_by)
    return f"{PREFIX}_{key}_{secret}"


def find(store: Store, text: str) -> Token | None:
    """Return the token that `text` is; None for one that is wrong, revoked or expired."""
    prefix, _, rest = text.partition("_")
    key, _, secret = rest.partition("_")
    if prefix != PREFIX or len(text) > LONGEST:
        return None
    row = store.first(sa.select(store.t.tokens).where(store.t.tokens.c.id == key))
    kept = row["digest"] if row is not None else digest_of("")
    equal = hmac.compare_digest(digest_of(secret).encode(), kept.encode())
    if row is None or not equal or (row["expires"] is not None and row["expires"] < time.time()):
        return None
    return _token(row)


def _token(row: Mapping[str, Any]) -> Token:
    names = ("id", "name", "kind", "scope", "expires", "quota", "rate")
    return Token(**{name: row[name] for name in names}, owner=row["parent"] or row["id"])


def every(store: Store) -> list[TokenRecord]:
    """Return all tokens that a person made, and the persons, without digests."""
    table = store.t.tokens
    columns = [column for column in table.c if column.name not in ("digest", "parent")]
    query = sa.select(*columns).where(table.c.kind.in_((TOKEN, PERSON)))
    rows = store.all(query.order_by(table.c.created, table.c.id))
    return cast("list[TokenRecord]", rows)


def note_use(store: Store, token: Token) -> None:
    """Note that a token was used just now; of a session, that whom it belongs to was."""
    table = store.t.tokens
    used = table.c.id.in_({token.id, token.owner})
    store.run(sa.update(table).where(used).values(used=time.time()))


def revoke(store: Store, name: str) -> str:
    """End a token, by id or name, and the sessions that were begun with it; return its id. Raises NotFoundError."""
    table = store.t.tokens
    named = (table.c.name == name) & table.c.kind.in_((TOKEN, PERSON))
    ids = [row["id"] for row in store.all(sa.select(table.c.id).where((table.c.id == name) | named))]
    if len(ids) != 1:
        raise NotFoundError(f"{len(ids)} tokens go by this name", found=name)
    store.run(sa.delete(table).where((table.c.id == ids[0]) | (table.c.parent == ids[0])))
    return str(ids[0])


def enter_person(store: Store, key: str, name: str, scope: str) -> None:
    """Enter a person whom an OpenID provider knows, or what it says of them now. Nobody signs in by this row itself."""
    digest = digest_of(secrets.token_hex(32))
    store.put(
        store.t.tokens, id=key, name=name, kind=PERSON, scope=scope, digest=digest, parent=None, created=time.time()
    )
    table = store.t.tokens
    store.run(sa.update(table).where(table.c.id == key, table.c.kind == PERSON).values(name=name, scope=scope))


def end_session(store: Store, key: str) -> None:
    """End one session of a browser."""
    table = store.t.tokens
    store.run(sa.delete(table).where(table.c.id == key, table.c.kind == SESSION))


def prune(store: Store) -> None:
    """Drop what has expired."""
    table = store.t.tokens
    store.run(sa.delete(table).where(table.c.expires.is_not(None), table.c.expires < time.time()))
