"""A stand-in for the Hub that files are committed to, speaking what huggingface_hub calls for that."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

import yaml

TOKEN = "hf_" + "Q" * 34
SOURCE = "legacy-llama/ggjt1-20230428/q4_0.bin"
METADATA = {
    "general.source.repo_url": "https://huggingface.co/a/b",
    "general.license": "apache-2.0",
    "general.languages": ["no", "en"],
    "general.tags": ["1e3", "safetensors", "text-generation"],
}
REPO = "me/b-GGUF"
TO = f"hf://{REPO}"
LARGE = (".gguf",)
"""What .gitattributes of a new repository keeps in the large storage, as far as these tests go."""


def front(text: str) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return value


@dataclass
class Entry:
    """A file of a commit; `lfs`: its SHA-256 where the large storage has it."""

    data: bytes
    lfs: str | None = None

    def facts(self, path: str) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()
        facts = {"type": "file", "path": path, "size": len(self.data), "oid": blob}
        if self.lfs:
            facts |= {"oid": "0" * 40, "lfs": {"oid": self.lfs, "size": len(self.data), "pointerSize": 134}}
        return facts


@dataclass
class Repository:
    """Branches and pull requests by name; each names a commit."""

    private: bool
    commits: dict[str, dict[str, Entry]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, ref: str, files: dict[str, Entry], message: str) -> str:
        oid = hashlib.sha1(f"{ref}{len(self.commits)}{message}".encode()).hexdigest()
        self.commits[oid], self.refs[ref] = files, oid
        self.messages.append(message)
        return oid

    def files(self, ref: str = "main") -> dict[str, bytes]:
        return {path: entry.data for path, entry in self.commits[self.refs[ref]].items()}


@dataclass
class WritableHub:
    """What the Hub has, and what is asked of it.

    `full`: no room is left, as the Hub says it; `falsify`: the large storage keeps other bytes than were sent;
    `refuse`: uploads that end in HTTP 500 before one is taken; `hold`: SHA-256 of an upload that never ends, `held` is
    set once it began. `meddle`: called before a commit.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)
    full: bool = False
    falsify: bool = False
    refuse: int = 0
    hold: str = ""
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    meddle: Any = None

    def add(self, name: str, files: dict[str, bytes], private: bool = False) -> Repository:
        made = self.repositories[name] = Repository(private)
        made.commit("main", {path: Entry(data) for path, data in files.items()}, "initial commit")
        return made


class Handler(BaseHTTPRequestHandler):
    """The Hub's answers."""

    protocol_version = "HTTP/1.1"
    hub: WritableHub

    def do_GET(self) -> None:
        self._answer(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._body())

    def do_PUT(self) -> None:
        oid = self.path.rpartition("/")[2]
        self.hub.puts.append(oid)
        if oid == self.hub.hold:
            self.hub.held.set()
            self.hub.release.wait(60)
            self.close_connection = True
            return
        data = self._body()
        if self.hub.refuse:
            self.hub.refuse -= 1
            self._fail(500, "", "InternalError")
            return
        if hashlib.sha256(data).hexdigest() != oid:
            self._fail(400, "", "BadDigest")
            return
        self.hub.large[oid] = data[:-1] + b"?" if self.hub.falsify else data
        self._send(200, b"")

    def log_message(self, *_: Any) -> None: ...

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        self.hub.requests.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(401, "", "Invalid credentials in Authorization header")
            return
        for pattern, name in ROUTES:
            if found := re.fullmatch(pattern, path):
                values = [unquote(each) if each is not None else None for each in found.groups()]
                getattr(self, name)(body, query, *values)
                return
        self._fail(404, "EntryNotFound", "no such page")

    def _repository(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        if found is None:
            self._fail(404, "RepoNotFound", "Repository not found")
        return found

    def create(self, body: bytes, query: str) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if not name.startswith("me/"):
            self._fail(403, "", "You don't have the rights to create a model under this namespace")
            return
        self.hub.add(name, {".gitattributes": b"*.gguf filter=lfs\n"}, asked.get("visibility") == "private")
        self._json({"url": f"{self.hub.url}/{name}", "name": name})

    def info(self, body: bytes, query: str, name: str, revision: str | None) -> None:
        if (found := self._repository(name)) is None:
            return
        oid = found.refs.get(revision or "main", revision or "")
        if oid not in found.commits:
            self._fail(404, "RevisionNotFound", "Invalid rev id")
            return
        siblings = [{"rfilename": path} for path in found.commits[oid]]
        self._json({"id": name, "sha": oid, "private": found.private, "siblings": siblings})

    def branch(self, body: bytes, query: str, name: str, branch: str) -> None:
        if (found := self._repository(name)) is None:
            return
        if branch in found.refs:
            self._fail(409, "", "Reference already exists")
            return
        found.refs[branch] = found.refs["main"]
        self._json({})

    def validate(self, body: bytes, query: str) -> None:
        content = json.loads(body)["content"]
        front = yaml.safe_load(content.split("---\n")[1])
        language = front.get("language", [])
        wrong = [each for each in [language, *(language if isinstance(language, list) else [])] if each is False]
        self._json({"errors": wrong, "warnings": []}, 400 if wrong else 200)

    def preupload(self, body: bytes, query: str, name: str, revision: str) -> None:
        if (found := self._repository(name)) is None:
            return
        answers = []
        for path in (each["path"] for each in json.loads(body)["files"]):
            answer = {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False}
            if there := found.commits[found.refs[revision]].get(path):
                answer["oid"] = there.lfs or there.facts(path)["oid"]
            answers.append(answer)
        self._json({"files": answers})

    def batch(self, body: bytes, query: str, name: str) -> None:
        objects = []
        for each in json.loads(body)["objects"]:
            answer = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.hub.large:
                link, check = f"{self.hub.url}/large/{each['oid']}", f"{self.hub.url}/large-verify"
                answer["actions"] = {"upload": {"href": link}, "verify": {"href": check}}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def verify(self, body: bytes, query: str) -> None:
        asked = json.loads(body)
        there = self.hub.large.get(asked["oid"])
        self._json({}, 200 if there is not None and len(there) == asked["size"] else 404)

    def commit(self, body: bytes, query: str, name: str, revision: str) -> None:
        if (found := self._repository(name)) is None:
            return
        if self.hub.meddle:
            self.hub.meddle(found)
        if self.hub.full:
            self._fail(403, "", "Private repository storage limit reached, please upgrade your plan")
            return
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit", found.refs[revision]) != found.refs[revision]:
            self._fail(412, "", "A commit has happened since. Please refresh and try again.")
            return
        files = dict(found.commits[found.refs[revision]])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = Entry(base64.b64decode(value["content"]))
            else:
                data = self.hub.large[value["oid"]]
                files[value["path"]] = Entry(data, hashlib.sha256(data).hexdigest())
        request = "create_pr=1" in query
        ref = f"refs/pr/{sum(each.startswith('refs/') for each in found.refs) + 1}" if request else revision
        oid = found.commit(ref, files, header["summary"])
        answer = {"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid}
        number = ref.rpartition("/")[2]
        self._json(answer | ({"pullRequestUrl": f"{self.hub.url}/{name}/discussions/{number}"} if request else {}))

    def paths(self, body: bytes, query: str, name: str, revision: str) -> None:
        if (found := self._repository(name)) is None:
            return
        files = found.commits[found.refs.get(revision, revision)]
        asked = parse_qs(body.decode())["paths"]
        self._json([files[path].facts(path) for path in asked if path in files])

    def resolve(self, body: bytes, query: str, name: str, revision: str, path: str) -> None:
        if (found := self._repository(name)) is None:
            return
        oid = found.refs.get(revision, revision)
        data = found.commits[oid][path].data
        facts = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": oid, "Accept-Ranges": "bytes"}
        self._send(200, data, facts)

    def _fail(self, status: int, code: str, message: str) -> None:
        self._send(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


_NAME = r"([\w.-]+/[\w.-]+?)"
ROUTES = (
    (r"/api/repos/create", "create"),
    (r"/api/validate-yaml", "validate"),
    (r"/large-verify", "verify"),
    (rf"/api/models/{_NAME}(?:/revision/([^/]+))?", "info"),
    (rf"/api/models/{_NAME}/branch/([^/]+)", "branch"),
    (rf"/api/models/{_NAME}/preupload/([^/]+)", "preupload"),
    (rf"/api/models/{_NAME}/commit/([^/]+)", "commit"),
    (rf"/api/models/{_NAME}/paths-info/([^/]+)", "paths"),
    (rf"/{_NAME}\.git/info/lfs/objects/batch", "batch"),
    (rf"/{_NAME}/resolve/([^/]+)/(.+)", "resolve"),
)


@contextmanager
def writable_hub() -> Iterator[WritableHub]:
    """Serve an empty Hub on loopback."""

    class Here(Handler):
        hub = WritableHub()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    server.daemon_threads = True
    Here.hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Here.hub
    finally:
        Here.hub.release.set()
        server.shutdown()
        server.server_close()
