"""A small OpenID provider on loopback: authorization code with PKCE, keys, and every way to answer wrongly.

It signs with the `cryptography` package alone, so that what verifies is held against something else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET = "ggferry", "a secret of +/= signs"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@dataclass
class Provider:
    """A provider that signs in `claims` without asking; the other fields make it wrong."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "u1", "preferred_username": "ada", "groups": ["ml"]})
    change: dict[str, Any] = field(default_factory=dict)  # of the ID token; None: without this claim
    algorithm: str = "RS256"
    key: rsa.RSAPrivateKey = field(default_factory=new_key)
    signs_with: rsa.RSAPrivateKey | None = None  # another one than it publishes
    key_id: str = "k1"
    metadata: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/end",
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.metadata,
        }

    def keys(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        e, n = (b64(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (numbers.e, numbers.n))
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.key_id, "e": e, "n": n}]}

    def authorize(self, asked: dict[str, str]) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.url})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        expected = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        given = authorization
        if authorization.startswith("Basic "):  # RFC 6749, 2.3.1: both parts may be encoded as forms are
            user, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
            plain = {(user, secret), (unquote(user), unquote(secret))}
            given = expected if (CLIENT, SECRET) in plain else "wrong"
        if given != expected:
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = b64(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or asked["redirect_uri"] != form.get("redirect_uri"):
            return 400, {"error": "invalid_grant"}
        if asked.get("code_challenge_method") != "S256" or asked.get("code_challenge") != challenge:
            return 400, {"error": "invalid_grant", "error_description": "PKCE"}
        return 200, {"access_token": "at", "token_type": "Bearer", "id_token": self.id_token(asked["nonce"])}

    def id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce, **self.claims}
        claims["at_hash"] = b64(hashlib.sha256(b"at").digest()[:16])
        claims = {name: value for name, value in {**claims, **self.change}.items() if value is not None}
        head = {"alg": self.algorithm, "kid": self.key_id, "typ": "JWT"}
        text = ".".join(b64(json.dumps(each).encode()) for each in (head, claims))
        return f"{text}.{b64(self._sign(text.encode()))}"

    def _sign(self, text: bytes) -> bytes:
        if self.algorithm == "none":
            return b""
        if self.algorithm == "HS256":  # signed with what everybody may know: the public key
            kinds = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            return hmac.new(self.key.public_key().public_bytes(*kinds), text, hashlib.sha256).digest()
        return (self.signs_with or self.key).sign(text, padding.PKCS1v15(), hashes.SHA256())


@contextmanager
def openid_provider() -> Iterator[Provider]:
    """A running provider."""
    found = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            found.asked.append((parts.path, asked))
            if parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", found.authorize(asked))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            documents = {"/.well-known/openid-configuration": found.document, "/keys": found.keys}
            self.answer(200, documents[parts.path]()) if parts.path in documents else self.answer(200, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self.answer(*found.token(form, self.headers.get("Authorization", "")))

        def answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
