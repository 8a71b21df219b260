"""Requests to a server: bearer token, JSON, problems as our errors, and another try where the network failed."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import ggferry
from ggferry.formats import errors
from ggferry.formats.errors import AccessError, GgferryError, UnreachableError, UsageError

TRIES, FIRST = 5, 0.5  # attempts at what may be asked twice, seconds before the second; doubled each time
AGAIN = (429, 502, 503, 504)
LARGEST = 256 << 20  # bytes of an answer that is JSON


class Transport:
    """Sends requests to the server at `url`, as `http://host:port`; `timeout` is of each wait for bytes, in seconds."""

    def __init__(self, url: str, token: str, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise UsageError("the server's URL", found=url, expected="http://host:port")
        self.url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._scheme, self._place, self._base = parts.scheme, parts.netloc, parts.path.rstrip("/")

    def json(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Any:
        """Return what a route answers, as plain data. Raises the error that the server names, as one of ours.

        GET is asked again where the network failed, and so is what has an idempotency `key`.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        tries = TRIES if method == "GET" or key is not None else 1
        for left in range(tries - 1, -1, -1):
            try:
                with self.open(method, path, data, headers, query) as answer:
                    text = answer.read(LARGEST + 1)
                    return json.loads(text) if text else None
            except UnreachableError:
                if not left:
                    raise
            time.sleep(FIRST * 2 ** (tries - 1 - left))
        return None

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield a good answer, whose body is still to be read. Raises the error that the server names."""
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._place, timeout=self._timeout)
        whole = {"User-Agent": f"ggferry/{ggferry.__version__}", "Authorization": f"Bearer {self._token}"}
        target = f"{self._base}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        try:
            connection.request(method, target, body, {**whole, **(headers or {})})
            answer = connection.getresponse()
            if answer.status >= 300 and answer.status != 304:
                raise problem(answer.status, answer.read(1 << 20), f"{self.url}{path}")
            yield answer
        except ssl.SSLCertVerificationError as error:
            raise AccessError(f"its certificate is not accepted: {error.verify_message}", path=self.url) from None
        except (OSError, http.client.HTTPException) as error:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(f"the server cannot be reached: {words}", path=self.url) from None
        finally:
            connection.close()


def problem(status: int, text: bytes, url: str) -> GgferryError:
    """Return a problem document as one of our errors, with the exit code of the command line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    record = found if isinstance(found, dict) else {}
    code, detail = str(record.get("code", "")), str(record.get("detail") or f"HTTP {status}")
    kind = _kinds().get(code)
    if kind is None:
        kind = {401: AccessError, 403: AccessError, 404: errors.NotFoundError, 409: errors.RefusedError}.get(status)
        kind = kind or (UnreachableError if status in AGAIN else UsageError if status < 500 else GgferryError)
    if "errors" in record and isinstance(record["errors"], list):
        detail += ": " + "; ".join(f"{each.get('place')}: {each.get('message')}" for each in record["errors"][:3])
    hint = record.get("hint")
    if status == 401:
        hint = "--token-file, or GGFERRY_TOKEN; ggferry serve token add NAME makes one"
    offset = record.get("offset")
    return kind(
        detail,
        path=record.get("path") or url,
        found=record.get("found"),
        expected=record.get("expected"),
        offset=offset if isinstance(offset, int) else None,
        hint=None if hint is None else str(hint),
    )


def _kinds() -> dict[str, type[GgferryError]]:
    """Return our classes of errors by code."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GgferryError)]
    return {kind("").code: kind for kind in found}
