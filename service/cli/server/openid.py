"""The options of `serve` that say which OpenID provider signs people in, and what each may do."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from ggferry.formats.errors import UsageError
from ggferry.service.server.settings import OpenIdSettings

SCOPES = ("read", "submit", "admin")


def openid_settings(
    issuer: str | None, client: str | None, secret: str | None, claim: str, scopes: Sequence[str], hours: float
) -> OpenIdSettings | None:
    """Return the provider as the options say, None where they name none. Raises UsageError."""
    if issuer is None:
        if client or secret or scopes:
            raise UsageError("--oidc-client, --oidc-secret and --oidc-scope", expected="--oidc-issuer with them")
        return None
    if not client or not scopes:
        expected = "--oidc-client ID, and a --oidc-scope VALUE=SCOPE for those who may come in"
        raise UsageError("--oidc-issuer", found=issuer, expected=expected)
    if find_spec("authlib") is None or not (find_spec("httpx2") or find_spec("httpx")):
        raise UsageError("--oidc-issuer needs a package that is not here: authlib", hint="pip install 'ggferry[oidc]'")
    from ggferry.service.server.guard.openid import is_safe

    if not is_safe(issuer):
        raise UsageError("--oidc-issuer", found=issuer, expected="https://…, or http:// of this machine")
    pairs = tuple((value, scope) for value, _, scope in (each.rpartition("=") for each in scopes))
    for value, scope in pairs:
        if not value or scope not in SCOPES:
            raise UsageError("--oidc-scope", found=f"{value}={scope}", expected=f"VALUE={'|'.join(SCOPES)}")
    return OpenIdSettings(issuer, client, secret, claim, pairs, hours * 3600)
