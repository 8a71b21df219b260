"""URLs as anybody may see them, and what is kept apart: user names, passwords and queries of web addresses.

A presigned URL, or one with a password, is a secret. Everything knows its file by the URL without them (`shown`):
plans, ledgers, receipts, names, messages. Only the code that asks the server (`service.storage.backends.web`) looks up
the whole URL here.
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
RETRY_TIMEOUT = 30.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to reach the files of a plan, besides their names.

    Attributes:
        secrets: Shown URL → whole URL.
        redirects: Whether a web server may redirect to another.
        retry_timeout: For how many seconds a place in trouble is asked again.
        private: Whether web servers of private, link-local and loopback addresses are asked at all.
    """

    secrets: Mapping[str, str] = field(default_factory=dict)
    redirects: bool = False
    retry_timeout: float = RETRY_TIMEOUT
    private: bool = True


_secrets: dict[str, str] = {}
_granted = Access()


def configure_access(access: Access) -> None:
    """Let this process reach files as `access` says from now on; its secrets are added to those known already."""
    global _granted
    with _LOCK:
        _secrets.update(access.secrets)
        _granted = access


def granted() -> Access:
    """Return how this process reaches files."""
    return _granted


def is_web(url: str) -> bool:
    """Return whether this is a web address."""
    return url.partition("://")[0] in WEB


def redact(url: str) -> str:
    """Return the URL without what may be secret.

    For web addresses that is user name, password, query and fragment; for others the password with its user.
    """
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
    """Return a text with every URL in it as `shown`."""
    return _URL.sub(lambda match: redact(match[0]), text)


def redact_in(url: str) -> str:
    """Return the name by which everything is to know `url`; `whole` gives the URL back.

    Two URLs that differ only in their query get two names. The name of a name is itself.
    """
    name = redact(url).rstrip("/")
    with _LOCK:
        if url in _secrets:
            return url
        if _secrets.get(name, url).rstrip("/") != url.rstrip("/"):
            name = f"{name}?{_digest(urlsplit(url).query)}"
        _secrets[name] = url
    return name


def whole(name: str) -> str:
    """Return the URL to ask for."""
    return _secrets.get(name, name)


def secrets_of(names: set[str]) -> dict[str, str]:
    """Return the secrets behind these names: the URLs that hold more than they show."""
    known = {name: whole(name) for name in sorted(names)}
    return {name: url for name, url in known.items() if redact(url) != url}


def _digest(query: str) -> str:
    from blake3 import blake3

    return str(blake3(query.encode()).hexdigest())[:8]


# --- kept in a file of its own, beside the plan --------------------------------------------------------------------

SUFFIX = ".secrets"


def write_secrets(plan: str, secrets: Mapping[str, str]) -> str | None:
    """Write what a plan must not show to a file that only its owner may read; return its path.

    Without secrets, an older such file is removed. Raises what `write_text` raises.
    """
    path = plan + SUFFIX
    if not secrets:
        if _read(path) is not None:
            os.unlink(path)
        return None
    text = json.dumps({"ggferry_secrets": 1, "urls": dict(secrets)}, indent=1)
    write_text(path, [text], overwrite=True, private=True)
    return path


def read_secrets(plan: str) -> dict[str, str]:
    """Return the secrets of a plan, {} where it needed none. Raises CorruptError."""
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
    except (GgferryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
