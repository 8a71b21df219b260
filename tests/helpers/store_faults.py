"""Stores of a test's own that fail as told: S3 (moto) behind a proxy with rules, and a web server with its quirks.

A rule says which requests a fault befalls: by method, by a pattern of the key, and which of those it matches (`nth`,
from 1; () for all). Faults: "cut" (the body ends early), "slow", 400 (BadDigest), 403, 404, 429, 500, 503, "wrong" (a
bit of the body is flipped), "short" (fewer bytes, consistently), "damaged" (a bit of what is sent is flipped on its way
to the store), "lost" (it is done, and the answer is not sent), "away" (the connection is closed at once), or a function
called before the request is passed on: so an object can vanish or change.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Fault = str | int | Callable[[], object]


@dataclass
class Rule:
    """`key`: a regular expression searched in 'bucket/key' (or the path of a web server); `query`, `copy`: whether the
    query holds that, and whether the request is a copy (None: either); `span`: found in the Range header."""

    method: str
    key: str
    fault: Fault
    nth: tuple[int, ...] = ()
    query: str = ""
    copy: bool | None = None
    span: str = ""
    seen: int = 0

    def befalls(self, request: Request) -> bool:
        if request.method != self.method or not re.search(self.key, request.key) or self.query not in request.query:
            return False
        if self.copy is not None and self.copy != ("x-amz-copy-source" in request.headers):
            return False
        span = next((value for name, value in request.headers.items() if name.lower() == "range"), "")
        if not re.search(self.span, span):
            return False
        self.seen += 1
        return not self.nth or self.seen in self.nth


@dataclass
class Request:
    method: str
    key: str
    query: str
    headers: dict[str, str]


@dataclass
class Rules:
    """What is to go wrong, what was asked, and how many bytes of bodies were sent."""

    rules: list[Rule] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, method: str, key: str, fault: Fault, *nth: int, query: str = "", copy: bool | None = None, span: str = ""
    ) -> Rule:
        self.rules.append(Rule(method, key, fault, nth, query, copy, span))
        return self.rules[-1]

    def clear(self) -> None:
        with self.lock:
            self.rules.clear()
            self.asked.clear()
            self.sent = 0

    def fault(self, request: Request) -> Fault | None:
        with self.lock:
            self.asked.append(request)
            befallen = [rule for rule in self.rules if rule.befalls(request)]
        return befallen[0].fault if befallen else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rules: Rules

    def log_message(self, *_: Any) -> None: ...

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            super().handle_one_request()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(pieces)

    def _struck(self, fault: Fault | None) -> bool:
        """Do what a fault does before a request is looked at; whether that was the answer."""
        if callable(fault):
            fault()
        elif fault == "away":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return True
        elif isinstance(fault, int):
            self._refuse(fault)
            return True
        return False

    def _refuse(self, status: int) -> None:
        self._answer(status, {}, b"as told")

    def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault | None = None) -> None:
        self.close_connection = True
        if fault == "lost":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == "wrong" and data:
            data = _flipped(data)
        if fault == "short":
            data = data[:-100]
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding") or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD" and "no-length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == "slow":
            time.sleep(1)
        with self.rules.lock:
            self.rules.sent += len(data)
        self.wfile.write(data)


def _flipped(data: bytes) -> bytes:
    """The middle byte with its last bit turned."""
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def _served(handler: type[_Handler]) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None: ...

    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


# --- S3 ------------------------------------------------------------------------------------------------------------


class _S3Handler(_Handler):
    """Passes requests on to `upstream`. Copies are conditional as AWS's are (moto's are not), unless `plain` says that
    this store knows no conditions at all; `unknown`: such are refused with 501."""

    upstream: int
    plain = False
    unknown = False
    one_at_a_time = threading.RLock()
    """A conditional write is one step in S3; moto looks, and then writes."""

    def _do(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._body()
        request = Request(self.command, unquote(parts.path).lstrip("/"), parts.query, headers)
        fault = self.rules.fault(request)
        if self._struck(fault):
            return
        if fault == "damaged" and body:
            body = _flipped(body)
        writes = self.command in ("PUT", "POST")
        if writes and (self.plain or self.unknown):
            conditions = [name for name in headers if name in ("if-none-match", "if-match")]
            if conditions and self.unknown:
                self._refuse(501)
                return
            for name in [*conditions, "x-amz-copy-source-if-match"]:
                del self.headers[name]
        elif "x-amz-copy-source" in headers and not self._copy_allowed(headers):
            self._refuse(412)
            return
        conditional = writes and any(name in headers for name in ("if-none-match", "if-match"))
        with self.one_at_a_time if conditional else contextlib.nullcontext():
            status, found, data = self._pass(self.command, self.path, dict(self.headers.items()), body)
        if status == 206:  # S3 states no checksum of a range
            found = {name: value for name, value in found.items() if not name.startswith("x-amz-checksum")}
        self._answer(status, found, data, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _do

    def _refuse(self, status: int) -> None:
        self._answer(status, {"Content-Type": "application/xml"}, _xml(status))

    def _copy_allowed(self, headers: dict[str, str]) -> bool:
        wanted, source = headers.get("x-amz-copy-source-if-match"), headers["x-amz-copy-source"].lstrip("/")
        if wanted is not None:
            _, found, _ = self._pass("HEAD", f"/{source}", {}, b"")
            if found.get("etag", "").strip('"') != wanted.strip('"'):
                return False
        if headers.get("if-none-match") == "*":
            status, _, _ = self._pass("HEAD", self.path, {}, b"")
            return status == 404
        return True

    def _pass(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        skipped = ("connection", "transfer-encoding", "content-length")
        kept = {name: value for name, value in headers.items() if name.lower() not in skipped}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": "127.0.0.1", **kept, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data


def _xml(status: int) -> bytes:
    code = {
        400: "BadDigest",
        403: "AccessDenied",
        404: "NoSuchKey",
        412: "PreconditionFailed",
        429: "SlowDown",
        500: "InternalError",
        501: "NotImplemented",
        503: "ServiceUnavailable",
    }[status]
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as told</Message></Error>".encode()


@dataclass
class S3Store:
    """A store with the buckets `old` and `new`. `env`: what leads a command there; `system`: s3fs past the proxy."""

    rules: Rules
    env: dict[str, str]
    system: Any
    handler: type[_S3Handler]

    def put(self, key: str, data: bytes) -> None:
        bucket, _, name = key.partition("/")
        self.system.call_s3("put_object", Bucket=bucket, Key=name, Body=data)

    def get(self, key: str) -> bytes:
        bucket, _, name = key.partition("/")
        body = self.system.call_s3("get_object", Bucket=bucket, Key=name)["Body"]
        from fsspec.asyn import sync

        return bytes(sync(self.system.loop, body.read))

    def keys(self, bucket: str) -> list[str]:
        return [each["Key"] for each in self.system.call_s3("list_objects_v2", Bucket=bucket).get("Contents", ())]

    def uploads(self, bucket: str) -> list[str]:
        return [each["Key"] for each in self.system.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", ())]

    def clear(self) -> None:
        self.rules.clear()
        self.handler.plain = self.handler.unknown = False
        for bucket in ("old", "new"):
            for key in self.keys(bucket):
                self.system.call_s3("delete_object", Bucket=bucket, Key=key)
            for each in self.system.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", ()):
                self.system.call_s3("abort_multipart_upload", Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])


@contextlib.contextmanager
def s3_store() -> Iterator[S3Store]:
    """moto in this process and the proxy before it; the environment leads there too, for what is called here."""
    import s3fs
    from moto.server import ThreadedMotoServer

    from ggferry.service.storage import places

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()

    class Here(_S3Handler):
        rules, upstream = Rules(), port

    server = _served(Here)
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    before = dict(os.environ)
    os.environ.update(env)
    places.file_system.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()
    direct = {**env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    system = s3fs.S3FileSystem(
        endpoint_url=direct["AWS_ENDPOINT_URL"],
        key="testing",
        secret="testing",
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    try:
        for bucket in ("old", "new"):
            with contextlib.suppress(FileExistsError):  # moto keeps its buckets for as long as the process lives
                system.mkdir(bucket)
        store = S3Store(Here.rules, env, system, Here)
        store.clear()
        yield store
    finally:
        os.environ.clear()
        os.environ.update(before)
        places.file_system.cache_clear()
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        moto.stop()


# --- the web -------------------------------------------------------------------------------------------------------


@dataclass
class Web:
    """A folder behind a web server. `versions`: which headers name a file's version ("etag", "date", "weak", "");
    `quirk`: "", "no-ranges", "no-length", "gzip", "ignores-if-range", "wrong-range"; `pages`: HTML by path, `moved`: to
    where by path; `checksum`: headers of a HEAD by path; `password`: what Basic authentication must give; `signed`: the
    query that every file wants, as presigned addresses do."""

    root: Path
    rules: Rules = field(default_factory=Rules)
    versions: str = "etag"
    quirk: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    checksum: dict[str, dict[str, str]] = field(default_factory=dict)
    password: str = ""
    signed: str = ""
    url: str = ""


@contextlib.contextmanager
def web_server(root: Path) -> Iterator[Web]:
    """Serves the files below `root`, folders as pages of links."""
    web = Web(root)

    class Here(_WebHandler):
        rules, served = web.rules, web

    server = _served(Here)
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


class _WebHandler(_Handler):
    served: Web

    def _do(self) -> None:
        web, parts = self.served, urlsplit(self.path)
        path = unquote(parts.path)
        fault = self.rules.fault(Request(self.command, path.lstrip("/"), parts.query, dict(self.headers.items())))
        if self._struck(fault):
            return
        if web.password and self.headers.get("Authorization") != web.password:
            self._answer(401, {}, b"")
        elif path in web.moved:
            self._answer(302, {"Location": web.moved[path]}, b"")
        elif page := next((each for each in (path, f"{path}/") if each in web.pages), None):
            self._answer(200, {"Content-Type": "text/html"}, web.pages[page].encode(), fault)
        elif (web.root / path.lstrip("/")).is_dir():
            self._folder(web.root / path.lstrip("/"))
        elif not (web.root / path.lstrip("/")).is_file():
            self._answer(404, {}, b"")
        elif web.signed and (parse_qs(parts.query) != parse_qs(web.signed) or self.command == "HEAD"):
            self._answer(403, {}, b"")
        else:
            self._file(web.root / path.lstrip("/"), fault)

    do_GET = do_HEAD = _do

    def _folder(self, folder: Path) -> None:
        names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
        links = "".join(f'<a href="{name}">{name}</a>' for name in names)
        self._answer(200, {"Content-Type": "text/html"}, links.encode())

    def _file(self, path: Path, fault: Fault | None) -> None:
        web, data = self.served, path.read_bytes()
        headers, asked = {"Content-Type": "application/octet-stream"}, self.headers.get("Range", "")
        tag, date = f'"{hash(data) & 0xFFFFFFFF:08x}"', formatdate(path.stat().st_mtime, usegmt=True)
        if web.versions in ("etag", "weak"):
            headers["ETag"] = f"W/{tag}" if web.versions == "weak" else tag
        if web.versions == "date":
            headers["Last-Modified"] = date
        if self.command == "HEAD":
            headers |= web.checksum.get(f"/{path.relative_to(web.root)}", {}) | {"Content-Length": str(len(data))}
        if web.quirk == "gzip":
            self._answer(200, {**headers, "Content-Encoding": "gzip"}, gzip.compress(data))
            return
        if web.quirk == "no-length":
            self._answer(200, {**headers, "no-length": "1"}, data)
            return
        current = self.headers.get("If-Range") in (None, tag if web.versions == "etag" else date)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if not match or web.quirk == "no-ranges" or (not current and web.quirk != "ignores-if-range"):
            self._answer(200, headers, data, fault)
            return
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        if web.quirk == "wrong-range" and first:
            first, last = first - 1, last - 1
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, headers, data[first : last + 1], fault)
