"""A stand-in for the Hub that answers as the Hub does."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

REPO, COMMIT = "someone/old-llama", "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The few answers HfFileSystem needs: the repository, its tree, paths' facts, ranges of files."""

    protocol_version = "HTTP/1.1"
    root: Path
    ranges: list[str]
    searches: list[dict[str, list[str]]]
    stall: threading.Event
    release: threading.Event

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models":
            self._search(parse_qs(self.path.partition("?")[2]))
        elif re.fullmatch(rf"/api/models/{REPO}(/revision/\w+)?", path):
            self._json({"id": REPO, "sha": COMMIT, "siblings": [], "private": False})
        elif (found := re.fullmatch(rf"/api/models/{REPO}/tree/[^/]+/(.+)", path)) and not (
            self.root / found[1]
        ).is_dir():
            self._send(404, b"{}", "application/json", {"X-Error-Code": "EntryNotFound"})
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            self._json([self._facts(each) for each in sorted(self.root.rglob("*")) if each.is_file()])
        elif found := re.fullmatch(rf"/{REPO}/resolve/[^/]+/(.+)", path):
            self._file(self.root / found[1])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        paths = [self.root / name for name in body["paths"]]
        self._json([self._facts(path) for path in paths if path.is_file()])

    def log_message(self, *_: Any) -> None: ...

    def _search(self, asked: dict[str, list[str]]) -> None:
        """The list of models, as the Hub gives it for `search`, `author`, `sort`, `limit` and `expand`."""
        self.searches.append(asked)
        if "refused" in asked.get("search", ""):
            self._send(401, b'{"error": "Invalid credentials"}', "application/json")
            return
        if self.stall.is_set():
            self.release.wait(60)
        words, (author,) = asked.get("search", [""])[0].lower(), asked.get("author", [""])
        shown = {
            "downloads": 7,
            "gated": False,
            "lastModified": "2023-05-12T10:00:00.000Z",
            "library_name": "transformers",
            "likes": 3,
            "private": False,
        }
        names = [REPO, "someone/other-llama", "elsewhere/<b>llama</b>"]
        found = [
            {"_id": str(number), "id": name, **shown, "downloads": 1000 * number}
            for number, name in enumerate(names, 1)
            if words in name and (not author or name.startswith(f"{author}/"))
        ]
        self._json(found[::-1][: int(asked["limit"][0])])

    def _facts(self, path: Path) -> dict[str, Any]:
        data = path.read_bytes()
        return {
            "type": "file",
            "path": str(path.relative_to(self.root)),
            "size": len(data),
            "oid": hashlib.sha1(data).hexdigest(),
        }

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), "application/json")

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self.send_error(404)
            return
        data, asked = path.read_bytes(), self.headers.get("Range", "")
        etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if self.command == "GET":
            self.ranges.append(asked)
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", asked):
            first, last = int(found[1]), min(int(found[2]), len(data) - 1)
            etag["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(206, data[first : last + 1], "application/octet-stream", etag)
        else:
            self._send(200, data, "application/octet-stream", etag)

    def _send(self, code: int, data: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def hub(repo: Path, home: Path) -> Iterator[dict[str, str]]:
    """Serve `repo` as REPO; yields what leads a command there."""
    with served_hub(repo, home) as (_, env):
        yield env


@contextmanager
def served_hub(repo: Path, home: Path) -> Iterator[tuple[type[Hub], dict[str, str]]]:
    """The same; yields also what it is asked."""

    class Here(Hub):
        root, ranges, searches = repo, [], []
        stall, release = threading.Event(), threading.Event()

    repo.mkdir()
    home.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield (
        Here,
        {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        },
    )
    Here.release.set()
    server.shutdown()
    server.server_close()
