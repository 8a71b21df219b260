"""Where a ledger is: a path, a URL, or `env:NAME`; and how that is shown to people, never with a password."""

from __future__ import annotations

import os
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.support.heavy import sa

ENV = "env:"
POSTGRES = ("postgres", "postgresql")
SECRETS = ("password", "passwd", "secret", "token")  # in the names of parameters that a URL may carry behind its '?'
HIDDEN = "***"
CONNECTING: dict[str, int | str] = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""What a connection to PostgreSQL begins with: timeouts in seconds, the last one in ms.

With them, a network that swallows packets ends in an error. Without the encoding, a database of SQL_ASCII answers in
bytes (psycopg's documentation, "strings adaptation").
"""
ENVIRONMENT = {
    "PGPASSWORD": "password",
    "PGPASSFILE": "passfile",
    "PGUSER": "user",
    "PGHOST": "host",
    "PGPORT": "port",
    "PGSSLMODE": "sslmode",
}
"""What libpq takes from its environment where the URL states nothing, and the parameter's name in a URL."""


def full_url(place: str) -> str:
    """Return the URL of a ledger in sqlalchemy's form; `env:NAME` is what that variable says.

    Raises UsageError, which quotes nothing: what cannot be parsed may hold a password anywhere.
    """
    if place.startswith(ENV):
        name, place = place, os.environ.get(place.removeprefix(ENV), "")
        if not place:
            raise UsageError("the ledger's variable is not set", found=name, hint="export it, without 'env:'")
    scheme, sign, rest = place.partition("://")
    if not sign and not place.startswith(tuple(f"{each}:" for each in POSTGRES)) and "password=" not in place:
        return f"sqlite:///{os.path.abspath(place)}"
    url = f"postgresql+psycopg://{rest}" if sign and scheme in POSTGRES else place
    _check(url)
    return url


def _check(url: str) -> None:
    """Refuse URLs that would be misread.

    A password with an unescaped '@' or '/' would be cut there, and the rest would be used, and shown, as host or
    database. 'postgresql:/…' and "host=… password=…" are not paths.
    """
    try:
        parts = sa.make_url(url)
        named = (parts.host, parts.database, parts.username)
        odd = parts.get_backend_name() != "sqlite" and any("@" in str(part or "") for part in named)
    except (sa.exc.ArgumentError, ValueError):
        odd = True
    if odd:
        raise UsageError(
            "the ledger's URL cannot be understood",
            expected="postgresql://user@host:port/name",
            hint="in a password '@' is %40, '/' %2F; or use PGPASSFILE",
        )


def redact(place: str) -> str:
    """Return `place` for people: a path as it is, a URL with every password hidden."""
    if place.startswith("sqlite:") or "://" not in place:
        return place.removeprefix("sqlite:///")
    url = sa.make_url(place)
    kept = {key: url.query[key] for key in url.query if not _is_secret(key)}
    hidden = "".join(f"{'&' if kept or n else '?'}{key}={HIDDEN}" for n, key in enumerate(_hidden(url)))
    text = url.set(query=kept).render_as_string(hide_password=True)
    return text.replace("postgresql+psycopg://", "postgresql://") + hidden


def hide_secrets(text: str, place: str) -> str:
    """Return a driver's message without the passwords of `place`."""
    for secret in _secrets(place):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(place: str) -> list[str]:
    """Return the passwords as they are and as a URL spells them, the longest first."""
    from urllib.parse import quote, quote_plus

    url = sa.make_url(place)
    held: list[Any] = [url.password, *(value for key in _hidden(url) for value in _each(url.query[key]))]
    plain = [str(secret) for secret in held if secret]
    return sorted({form for each in plain for form in (each, quote(each, ""), quote_plus(each))}, key=len, reverse=True)


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRETS)


def _hidden(url: Any) -> list[str]:
    return [key for key in url.query if _is_secret(key)]


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def connect_options(url: str) -> dict[str, Any]:
    """Return the options of `create_engine` besides the URL.

    What the URL itself says takes precedence.
    """
    parts = sa.make_url(url)
    if parts.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": 60}}
    begin = {key: value for key, value in CONNECTING.items() if key not in parts.query}
    return {"pool_pre_ping": True, "connect_args": begin if parts.drivername == "postgresql+psycopg" else {}}


def with_environment(url: str) -> str:
    """Return `url` for another process of this machine.

    It is completed by what libpq would find in this process's environment.
    """
    parts = sa.make_url(url)
    if parts.get_backend_name() != "postgresql":
        return url
    declared = {*parts.query, *(name for name in ("password", "host", "port") if getattr(parts, name))}
    declared |= {"user"} if parts.username else set()
    more = {key: os.environ[name] for name, key in ENVIRONMENT.items() if key not in declared and os.environ.get(name)}
    return parts.update_query_dict(more).render_as_string(hide_password=False)
