"""Sign-in by an OpenID Connect provider: the authorization code flow with PKCE, by authlib and joserfc.

What is under way stands in a cookie of the browser that began it, so that another browser, or a page of somebody else,
cannot end it, and several servers need nothing in common.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode, urlsplit

from ggferry.formats.errors import GgferryError, UsageError
from ggferry.formats.files.local_files import Named, read_text
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.server.guard.callers import Doorkeeper
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.settings import LOOPBACK, OpenIdSettings
from ggferry.service.server.store import tokens
from ggferry.support.printable import printable
from ggferry.support.records import dataclass

COOKIE = "ggferry_sign_in"
CALLBACK = "/sign-in/callback"
UNDER_WAY = 600  # seconds in which a person must have signed in at the provider
TIMEOUT = 10.0  # seconds, of each request to the provider
KEPT = 3600.0  # seconds for which what the provider says of itself is not asked for again
LEEWAY = 60  # seconds by which clocks may differ
LARGEST = 1 << 20  # bytes of an answer of the provider
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures that are accepted: those by a key that the provider alone has."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a provider knows.

    Attributes:
        key: Id, made of the provider and its name for them, which never changes.
        name: What to call them.
        scope: What they may do.
    """

    key: str
    name: str
    scope: str


class OpenId:
    """The provider. All methods that ask it block, and raise HttpError."""

    def __init__(self, settings: OpenIdSettings) -> None:
        self.settings = settings
        self._secret = _secret(settings.secret)
        self._lock = threading.Lock()
        self._document: JSONObject = {}
        self._keys: Any = None
        self._fetched = -KEPT

    def begin(self, callback: str) -> tuple[str, str]:
        """Return the provider's address that signs in, and what the browser keeps until it comes back."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        with self._client(callback) as client:
            url, _ = client.create_authorization_url(
                self._endpoint("authorization_endpoint"), state=state, code_verifier=verifier, nonce=nonce
            )
        return str(url), f"{state}.{nonce}.{verifier}"

    def finish(self, callback: str, query: Mapping[str, str], kept: str) -> Person:
        """Return who has signed in, by what the provider sent the browser back with."""
        state, _, rest = kept.partition(".")
        nonce, _, verifier = rest.partition(".")
        if not verifier or not hmac.compare_digest(state.encode(), query.get("state", "").encode()):
            raise _refused("this sign-in was not begun by this browser, or long ago")
        if query.get("iss", self.settings.issuer) != self.settings.issuer:  # RFC 9207
            raise _refused("the answer is another provider's")
        if "error" in query or "code" not in query:
            problem = query.get("error_description") or query.get("error") or "no code"
            raise _refused(f"the provider did not sign you in: {printable(problem, 200)}")
        return self._person(self._claims(self._fetch_token(callback, query["code"], verifier), nonce))

    def sign_out_address(self, page: str) -> str | None:
        """Return the provider's address that ends its own session, if it has one; it leads back to `page`."""
        try:
            end = self._endpoint("end_session_endpoint")
        except HttpError:
            return None
        return f"{end}?{urlencode({'client_id': self.settings.client, 'post_logout_redirect_uri': page})}"

    def _client(self, callback: str) -> Any:
        from authlib.integrations.httpx_client import OAuth2Client

        methods = self._metadata().get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        return OAuth2Client(
            self.settings.client,
            self._secret,
            scope=self.settings.ask,
            redirect_uri=callback,
            code_challenge_method="S256",
            token_endpoint_auth_method=method if self._secret else "none",
            timeout=TIMEOUT,
        )

    def _fetch_token(self, callback: str, code: str, verifier: str) -> Mapping[str, Any]:
        from authlib.common.errors import AuthlibBaseError

        try:
            with self._client(callback) as client:
                found: Mapping[str, Any] = client.fetch_token(
                    self._endpoint("token_endpoint"), grant_type="authorization_code", code=code, code_verifier=verifier
                )
        except AuthlibBaseError as error:
            raise _refused(f"the provider did not take the code: {printable(str(error), 200)}") from None
        except (_http().HTTPError, ValueError) as error:
            raise _away(error) from None
        return found

    def _claims(self, token: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        """Return what an ID token says, once it is verified as OpenID Connect Core, 3.1.3.7, asks for."""
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        text = token.get("id_token")
        if not isinstance(text, str):
            raise _refused("the provider sent no ID token")
        client = self.settings.client
        options = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": client},
        }
        params = {"nonce": nonce, "client_id": client, "access_token": token.get("access_token")}
        try:
            decoded = self._decode(text)
            claims = CodeIDToken(decoded.claims, decoded.header, options, params)
            claims.validate(leeway=LEEWAY)
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(f"the provider's ID token is not valid: {printable(str(error), 200)}") from None
        if claims["iat"] > time.time() + LEEWAY or not isinstance(claims["sub"], str) or not claims["sub"]:
            raise _refused("the provider's ID token is not valid: iat or sub")
        return dict(claims)

    def _decode(self, text: str) -> Any:
        """Verify a signature; a key that is not known may be new, so the keys are asked for once more."""
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError
        from joserfc.jwk import KeySet
        from joserfc.jws import JWSRegistry

        registry = JWSRegistry(algorithms=[*ALGORITHMS], strict_check_header=False)
        try:
            return jwt.decode(text, KeySet.import_key_set(self._key_set()), registry=registry)
        except InvalidKeyIdError:
            return jwt.decode(text, KeySet.import_key_set(self._key_set(again=True)), registry=registry)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        mark = hashlib.sha256(f"{self.settings.issuer}\0{claims['sub']}".encode()).hexdigest()[:24]
        names = (claims.get(each) for each in ("preferred_username", "email", "name", "sub"))
        name = next(str(each) for each in names if each)
        found = _values(claims, self.settings.claim)
        scopes = [scope for value, scope in self.settings.scopes if value == "*" or value in found]
        if not scopes:
            raise HttpError(
                403,
                "no_scope",
                "you are known to the provider, and nothing here is allowed to you",
                found=f"{self.settings.claim}: {printable(', '.join(sorted(found)) or 'none', 200)}",
                hint="whoever runs the server says who may do what with --oidc-scope",
            )
        return Person(mark, printable(name, tokens.LONGEST), max(scopes, key=tokens.SCOPES.index))

    # --- what the provider says of itself --------------------------------------------------------------------------

    def _metadata(self) -> Mapping[str, Any]:
        with self._lock:
            if time.monotonic() - self._fetched > KEPT or not self._document:
                document = _get(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != self.settings.issuer:  # OpenID Connect Discovery, 4.3
                    raise _away(ValueError("it states another issuer"))
                self._document, self._keys, self._fetched = document, None, time.monotonic()
            return self._document

    def _endpoint(self, name: str) -> str:
        address = self._metadata().get(name)
        if not isinstance(address, str) or not is_safe(address):
            raise _away(ValueError(f"it states no {name} over https"))
        return address

    def _key_set(self, again: bool = False) -> Any:
        address = self._endpoint("jwks_uri")
        with self._lock:
            if self._keys is None or again:
                self._keys = _get(address)
            return self._keys


def begin_session(doorkeeper: Doorkeeper, person: Person, seconds: float) -> str:
    """Return the cookie's value for a person's browser."""
    store = doorkeeper.store
    tokens.enter_person(store, person.key, person.name, person.scope)
    return tokens.add(store, person.name, person.scope, seconds=seconds, kind=tokens.SESSION, parent=person.key)


def is_safe(address: str) -> bool:
    """Return whether nobody can read along or answer for the provider: TLS, or this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def _values(claims: Mapping[str, Any], name: str) -> set[str]:
    """Return the values of a claim: of the name as it is, or of a path, as Keycloak's `realm_access.roles`."""
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return {str(each) for each in (value if isinstance(value, list) else [] if value is None else [value])}


def _secret(place: str | None) -> str | None:
    """Return a secret from the environment or a file; never from the command line, which every user sees."""
    kind, _, name = (place or "").partition(":")
    if place is None:
        return None
    try:
        if kind == "file":
            found = read_text(Named(name)).strip()
        else:
            found = os.environ.get(name, "") if kind == "env" else ""
    except GgferryError as error:
        raise UsageError(f"--oidc-secret: {error.message}", found=name) from None
    if not found:
        raise UsageError("--oidc-secret", found=kind, expected="env:NAME or file:PATH, with the secret there")
    return found


def _http() -> Any:
    """Return the library that authlib sends requests with: the newer one where it is there."""
    return import_module("httpx2" if find_spec("httpx2") else "httpx")


def _get(address: str) -> JSONObject:
    http = _http()
    try:
        with http.stream("GET", address, timeout=TIMEOUT, follow_redirects=False) as answer:
            answer.raise_for_status()
            data = bytearray()
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > LARGEST:
                    raise ValueError(f"more than {LARGEST} bytes")
        found = json.loads(data)
    except (_http().HTTPError, ValueError) as error:
        raise _away(error) from None
    if not isinstance(found, dict):
        raise _away(ValueError("no JSON object"))
    return found


def _refused(detail: str) -> HttpError:
    return HttpError(403, "sign_in", detail, hint="sign in again")


def _away(error: Exception) -> HttpError:
    words = printable(str(error) or type(error).__name__, 200)
    return HttpError(502, "provider", f"the OpenID provider does not answer as it should: {words}", hint="try again")
