"""URLs as anybody may see them, and what is kept apart from that: user names, passwords and queries of web addresses.

A presigned URL or one with a password is a secret. Everything knows its file by the URL without them (`shown`): plans,
ledgers, receipts, names, messages. Only what asks the server (`service.storage.backends.web`) looks up the whole one
here.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ggferry.formats.errors import CorruptError, GgferryError
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.formats.files.opened_files import unrecorded
from ggferry.formats.files.partial_files import write_text

WEB = ("http", "https")
PATIENCE = 30.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to reach the files of a plan, beside their names. `secrets`: whole URLs by shown ones; `redirects`:
    whether a web server may send us to another; `patience`: seconds for which a place in trouble is asked again."""

    secrets: Mapping[str, str] = field(default_factory=dict)
    redirects: bool = False
    patience: float = PATIENCE


_secrets: dict[str, str] = {}
_granted = Access()


def grant(access: Access) -> None:
    """From now on this process reaches files as `access` says; secrets are added to those it knows."""
    global _granted
    with _LOCK:
        _secrets.update(access.secrets)
        _granted = access


def granted() -> Access:
    return _granted


def is_web(url: str) -> bool:
    return url.partition("://")[0] in WEB


def shown(url: str) -> str:
    """The URL without what may be secret: user name, password, query, fragment of web addresses; the password, with
    its user, of others."""
    scheme, sign, rest = url.partition("://")
    if not sign:
        return url
    if scheme in WEB:
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    netloc, slash, path = rest.partition("/")
    user, at, host = netloc.rpartition("@")
    if at and (scheme in WEB or ":" in user):
        netloc = host
    return f"{scheme}://{netloc}{slash}{path}"


def mask(text: str) -> str:
    """A text with every URL in it as `shown`."""
    return _URL.sub(lambda match: shown(match[0]), text)


def conceal(url: str) -> str:
    """The name by which everything is to know `url`; `whole` gives it back. Two URLs that differ in their query alone
    get two names. A name is its own."""
    name = shown(url).rstrip("/")
    with _LOCK:
        if url in _secrets:
            return url
        if _secrets.get(name, url).rstrip("/") != url.rstrip("/"):
            name = f"{name}?{_digest(urlsplit(url).query)}"
        _secrets[name] = url
    return name


def whole(name: str) -> str:
    """The URL to ask for."""
    return _secrets.get(name, name)


def secrets_of(names: set[str]) -> dict[str, str]:
    """What of these names must be kept apart: URLs that hold more than they show."""
    known = {name: whole(name) for name in sorted(names)}
    return {name: url for name, url in known.items() if shown(url) != url}


def _digest(query: str) -> str:
    from blake3 import blake3

    return str(blake3(query.encode()).hexdigest())[:8]


# --- kept in a file of its own, beside the plan --------------------------------------------------------------------

SUFFIX = ".secrets"


def write_secrets(plan: str, secrets: Mapping[str, str]) -> str | None:
    """Keep what a plan must not show in a file that its owner alone may read; its path. Without secrets, an older one
    of ours is removed. Raises what `write_text` raises."""
    path = plan + SUFFIX
    if not secrets:
        if _read(path) is not None:
            os.unlink(path)
        return None
    text = json.dumps({"ggferry_secrets": 1, "urls": dict(secrets)}, indent=1)
    write_text(path, [text], overwrite=True, private=True)
    return path


def read_secrets(plan: str) -> dict[str, str]:
    """What belongs to a plan, {} where it needed nothing. Raises CorruptError."""
    path = plan + SUFFIX
    found = _read(path)
    if found is None:
        if os.path.lexists(path):
            raise CorruptError("not a file of secrets that ggferry plan wrote", path=path, hint="plan again")
        return {}
    return found


def _read(path: str) -> dict[str, str] | None:
    try:
        with unrecorded():
            record = json.loads(read_bytes(Named(path)))
        return {str(name): str(url) for name, url in record["urls"].items()} if record["ggferry_secrets"] == 1 else None
    except (GgferryError, ValueError, KeyError, TypeError, AttributeError):
        return None
