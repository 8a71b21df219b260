"""Whoever may reach the server, and what they may not do: each line of the list is a request that must fail."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggferry.service.cli.app import _run
from ggferry.service.server.guard.callers import csrf_of
from helpers.processes import below
from helpers.server import Server, made_token, planned, sent, span
from helpers.store_faults import web_server

SECRET = b"what lies outside of the roots"


@pytest.fixture
def outside(server: Server) -> Path:
    """A file of the operator's that no request may show."""
    path = server.data.parent / "outside" / "secret.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(SECRET * 1000)
    return path


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A browser that followed the link: it has the cookie."""
    with httpx.Client(base_url=server.url) as browser:
        answer = browser.get("/", params={"token": server.token})
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        yield browser


def raw(server: Server, text: bytes, wait: float = 10) -> bytes:
    """What the server answers to bytes."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(wait)
        connection.sendall(text)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
        return b"".join(pieces)


def assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"], found["type"]) == (status, code, f"urn:ggferry:problem:{code}")
    return found


# --- who may ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["ggf_", "ggf_0_0", "nonsense", "ggf_" + "a" * 12 + "_" + "b" * 64, "x" * 1000])
def test_a_wrong_token(server: Server, token: str) -> None:
    assert_problem(server.client(token).get("/models"), 401, "unauthorized")


def test_a_token_by_another_secret(server: Server) -> None:
    """The id alone lets nobody in."""
    assert_problem(server.client(server.token[:-1] + "g").get("/models"), 401, "unauthorized")


def test_tokens_are_kept_as_digests(server: Server, client: httpx.Client) -> None:
    assert client.get("/models").status_code == 200
    kept = b"".join(path.read_bytes() for path in server.data.glob("ledger*"))
    assert server.token.split("_")[1].encode() in kept
    assert server.token.split("_")[2].encode() not in kept


def test_scopes_and_revocation(server: Server, root: Path) -> None:
    reader = server.client(made_token(server.data, "revoked", "read"))
    assert reader.get("/models").status_code == 200
    assert_problem(reader.post("/plans", json={"source": str(root / "old.bin")}), 403, "scope")
    assert_problem(reader.post("/jobs", json={"plan": "0" * 16}), 403, "scope")
    assert_problem(reader.post("/uploads", json={"files": [{"name": "a", "bytes": 1}]}), 403, "scope")
    command = ["serve", "--data", str(server.data), "token", "revoke", "revoked"]
    assert _run(command) == 0
    time.sleep(1.1)
    assert_problem(reader.get("/models"), 401, "unauthorized")


def test_an_expired_token(server: Server) -> None:
    client = server.client(made_token(server.data, "short", "read", seconds=0))
    assert_problem(client.get("/models"), 401, "unauthorized")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "127.0.0.1@evil", "[", "localhost:x"]
)
def test_a_foreign_host(server: Server, client: httpx.Client, host: str) -> None:
    """A page whose name was rebound to 127.0.0.1 sends its own name."""
    answer = client.get("/models", headers={"Host": host})
    assert answer.status_code in (400, 421), answer.text
    assert b"items" not in answer.content


def test_two_hosts_or_none(server: Server) -> None:
    head = b"GET /health HTTP/1.1\r\n%sConnection: close\r\n\r\n"
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        assert raw(server, head % hosts).split()[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_post_from_another_site(server: Server, browser: httpx.Client, root: Path, headers: dict[str, str]) -> None:
    """The cookie comes along, what the page was given does not."""
    body = {"source": str(root / "old.bin")}
    answer = browser.post("/api/v1/plans", json=body, headers=headers)
    assert_problem(answer, 403, "cross_site" if headers else "csrf")
    form = browser.post("/api/v1/plans", data={"csrf": "0" * 64}, headers=headers)
    assert form.status_code in (400, 403)


def test_the_session_of_a_browser(server: Server, browser: httpx.Client) -> None:
    assert browser.get("/api/v1/models").status_code == 200
    session = browser.cookies[server.cookie]
    csrf = csrf_of(session)
    headers = {"X-CSRF-Token": csrf, "Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    answer = browser.post("/api/v1/uploads", json={"files": [{"name": "a", "bytes": 1}]}, headers=headers)
    assert answer.status_code == 201
    assert browser.post("/logout", headers=headers).status_code == 303
    with httpx.Client(base_url=server.url, cookies={server.cookie: browser.cookies.get(server.cookie, "")}) as old:
        assert old.get("/api/v1/models").status_code == 401


def test_a_cookie_is_no_bearer_token_and_no_token_a_cookie(server: Server, browser: httpx.Client) -> None:
    assert_problem(server.client(browser.cookies[server.cookie]).get("/models"), 401, "unauthorized")
    with httpx.Client(base_url=server.url, cookies={server.cookie: server.token}) as client:
        assert_problem(client.get("/api/v1/models"), 401, "unauthorized")


def test_every_answer_has_the_headers(server: Server, client: httpx.Client) -> None:
    for path in ("/health", "/api/v1/models", "/nowhere", "/api/v1/nowhere"):
        answer = httpx.get(server.url + path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"


# --- what may be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        "{outside}",
        "{root}/../outside/secret.bin",
        "{root}/link",
        "{root}/folder/secret.bin",
        "/etc/passwd",
        "/proc/self/environ",
        "file://{outside}",
        "local://{outside}",
        "{root}x",
        "{root}/./../outside/secret.bin",
        "~/x",
        "outside/secret.bin",
        "memory://a",
        "ftp://127.0.0.1/a",
        "s3://bucket/a",
        "hf://a/b",
        "github://a/b",
        "upload:../../outside",
        "upload:",
        "{root}/\x00",
        "zip://a::{outside}",
        "simplecache::file://{outside}",
    ],
)
def test_paths_outside_of_the_roots(client: httpx.Client, root: Path, outside: Path, way: str) -> None:
    for link, target in ((root / "link", outside), (root / "folder", outside.parent)):
        if not link.is_symlink():
            link.symlink_to(target)
    source = way.format(root=root, outside=outside)
    for answer in (client.post("/inspect", json={"source": source}), client.post("/plans", json={"source": source})):
        assert answer.status_code in (403, 404, 409, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    for name in ("config", "tokenizer_model"):
        answer = client.post("/plans", json={"source": str(root / "old.bin"), "options": {name: source}})
        assert answer.status_code in (403, 404, 409, 422), answer.text
    listing = client.get("/browse", params={"path": source})
    assert listing.status_code in (403, 404, 409, 422), listing.text


def test_a_root_is_planned_without_what_its_links_lead_to(client: httpx.Client, root: Path, outside: Path) -> None:
    for link, target in ((root / "link.bin", outside), (root / "folder", outside.parent)):
        if not link.is_symlink():
            link.symlink_to(target)
    plan = planned(client, root)
    text = client.get(f"/plans/{plan['id']}/file").text
    lines = {Path(line["source"]).name: line for line in map(json.loads, text.splitlines()[1:])}
    assert lines["old.bin"]["verdict"] == "convert"
    assert lines["link.bin"]["verdict"] != "convert"
    assert 'secret.bin"' not in text.replace(str(outside), "")


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "/a",
        "a/../b",
        "a//b",
        "",
        ".",
        "..",
        "a/",
        ".hidden",
        "a\x00b",
        "a\nb",
        "a\\b",
        "x" * 300,
        "a/b/c/d/e/f/g/h/i",
        "\ud800",
    ],
)
def test_names_of_uploads(client: httpx.Client, name: str) -> None:
    body = json.dumps({"files": [{"name": name, "bytes": 1}]})
    answer = client.post("/uploads", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text


def test_names_of_downloads(server: Server, client: httpx.Client) -> None:
    for name in ("..%2f..%2fledger", "%2e%2e", "....", "..%5cledger", "a%00b"):
        path = f"GET /api/v1/jobs/{'0' * 32}/files/{name} HTTP/1.1\r\nHost: localhost\r\n"
        head = f"{path}Authorization: Bearer {server.token}\r\nConnection: close\r\n\r\n".encode()
        assert raw(server, head).split()[1] in (b"404", b"422")


@pytest.mark.slow
def test_a_link_that_is_exchanged_during_requests(client: httpx.Client, root: Path, outside: Path) -> None:
    """A name that is a model at one moment and a link to a secret at the next shows the model or an error."""
    good, name, aside = root / "old.bin", root / "swapped" / "model.bin", root / "swapped" / "next"
    name.parent.mkdir()
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (good, outside):
                aside.symlink_to(target)
                os.replace(aside, name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(25):
            answer = client.post("/inspect", json={"source": str(name)})
            seen.add(answer.status_code)
            if answer.status_code == 200:
                assert answer.json()["container"] == "ggjt"
            else:
                assert answer.status_code in (404, 409, 422), answer.text
                assert "no known model container" not in answer.text, "the secret was read"
    finally:
        over.set()
        thread.join()
    assert 200 in seen


@pytest.mark.slow
def test_a_folder_that_is_exchanged_during_requests(client: httpx.Client, root: Path, outside: Path) -> None:
    folder, real, link = root / "moving", root / "real", root / "lead"
    real.mkdir()
    (real / "m.bin").write_bytes((root / "old.bin").read_bytes())
    link.symlink_to(outside.parent)
    real.rename(folder)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            folder.rename(real)
            link.rename(folder)
            folder.rename(link)
            real.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(25):
            listed = client.get("/browse", params={"path": str(folder)})
            assert "secret.bin" not in listed.text
            answer = client.post("/inspect", json={"source": str(folder / "m.bin")})
            assert answer.status_code in (200, 404, 409, 422), answer.text
    finally:
        over.set()
        thread.join()


# --- what may be fetched -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "127.1"])
def test_no_private_address_is_fetched(client: httpx.Client, tmp_path: Path, host: str) -> None:
    (tmp_path / "a.bin").write_bytes(SECRET)
    with web_server(tmp_path) as site:
        url = f"http://{host}:{site.url.rpartition(':')[2].strip('/')}/a.bin"
        assert_problem(client.post("/inspect", json={"source": url}), 403, "access_error")
        plan = client.post("/plans", json={"source": url}).json()
        text = client.get(f"/plans/{plan['id']}").text
        assert "private network" in text
        assert not site.rules.asked


def test_no_metadata_address_is_fetched(client: httpx.Client) -> None:
    began = time.monotonic()
    answer = client.post("/inspect", json={"source": "http://169.254.169.254/latest/meta-data/"})
    assert_problem(answer, 403, "access_error")
    assert time.monotonic() - began < 5


# --- how much ------------------------------------------------------------------------------------------------------


def test_bodies_are_bounded(server: Server, client: httpx.Client) -> None:
    json_of = {"Content-Type": "application/json"}
    big = b'{"source": "' + b"a" * (2 << 20) + b'"}'
    assert_problem(client.post("/inspect", content=big, headers=json_of), 413, "too_large")
    assert_problem(client.post("/inspect", content=iter([big]), headers=json_of), 413, "too_large")
    deep = b"[" * 100_000
    assert_problem(client.post("/inspect", content=deep, headers=json_of), 400, "too_deep")
    packed = zlib.compress(b"{}")
    answer = client.post("/inspect", content=packed, headers={**json_of, "Content-Encoding": "deflate"})
    assert_problem(answer, 415, "encoded")
    assert_problem(client.post("/inspect", content=b'{"source": NaN}', headers=json_of), 400, "bad_json")
    assert_problem(client.post("/inspect", content=b"\xff\xfe", headers=json_of), 400, "bad_json")


def test_headers_are_bounded(server: Server, client: httpx.Client) -> None:
    many = {f"X-{number}": "a" for number in range(100)}
    assert_problem(client.get("/models", headers=many), 431, "too_many_headers")
    long = client.get("/models", headers={"X": "a" * 17_000})
    assert long.status_code in (400, 431)
    endless = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
    assert endless.split()[1] in (b"400", b"431")


def test_uploads_are_bounded(client: httpx.Client) -> None:
    over = client.post("/uploads", json={"files": [{"name": "a", "bytes": 65 << 20}]})
    assert_problem(over, 409, "refused_error")
    upload = client.post("/uploads", json={"files": [{"name": "a.bin", "bytes": 10}]}).json()["id"]
    path = f"/uploads/{upload}/files/0"
    assert_problem(client.put(path, content=b"a" * 11), 400, "bad_range")
    more = client.put(path, content=iter([b"a" * 11]))
    assert more.status_code == 422, more.text
    odd = client.put(path, content=b"a", headers={"Content-Range": "bytes 0-0/99"})
    assert_problem(odd, 400, "bad_range")
    beyond = client.put(path, content=b"a" * 5, headers={"Content-Range": "bytes 8-12/10"})
    assert beyond.status_code == 422
    assert client.get(f"/uploads/{upload}").json()["files"][0]["offset"] == 0
    assert client.delete(f"/uploads/{upload}").status_code == 204


@pytest.mark.slow
def test_a_slow_upload_ends_and_goes_on(server: Server, client: httpx.Client) -> None:
    upload = client.post("/uploads", json={"files": [{"name": "a.bin", "bytes": 1000}]}).json()["id"]
    head = (
        f"PUT /api/v1/uploads/{upload}/files/0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    )
    began = time.monotonic()
    answer = raw(server, head.encode() + b"Content-Length: 1000\r\nConnection: close\r\n\r\n" + b"a" * 100)
    assert answer.split()[1] == b"408"
    assert 0.5 < time.monotonic() - began < 8
    found = client.get(f"/uploads/{upload}").json()["files"][0]
    assert found["offset"] == 100
    rest = client.put(f"/uploads/{upload}/files/0", content=b"a" * 900, headers=span(b"a" * 1000, 100, 1000))
    assert rest.json() == {"offset": 1000, "complete": True}


@pytest.mark.slow
def test_a_slow_small_body_ends(server: Server) -> None:
    """The bound for bodies of JSON is 15 s."""
    head = f"POST /api/v1/inspect HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n".encode()
    began = time.monotonic()
    answer = raw(
        server, head + b"Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{", 30
    )
    assert answer.split()[1] == b"408"
    assert time.monotonic() - began < 25


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a"])
def test_a_head_that_does_not_end(server: Server, text: bytes) -> None:
    began = time.monotonic()
    assert raw(server, text, 60) == b""
    assert 15 < time.monotonic() - began < 45


def test_quotas(server: Server) -> None:
    poor = server.client(made_token(server.data, "poor", "submit", quota=1000))
    assert poor.post("/uploads", json={"files": [{"name": "a", "bytes": 600}]}).status_code == 201
    found = assert_problem(poor.post("/uploads", json={"files": [{"name": "b", "bytes": 600}]}), 409, "refused_error")
    assert "quota" in found["detail"]


def test_rates(server: Server) -> None:
    slow = server.client(made_token(server.data, "slow", "read", rate=1.0))
    statuses = [slow.get("/roots").status_code for _ in range(15)]
    assert statuses[:5] == [200] * 5
    assert 429 in statuses
    assert int(slow.get("/roots").headers["retry-after"]) >= 1


def test_an_upload_of_another_token_is_not_there(server: Server, client: httpx.Client) -> None:
    upload = client.post("/uploads", json={"files": [{"name": "a", "bytes": 1}]}).json()["id"]
    other = server.client(made_token(server.data, "other", "submit"))
    assert_problem(other.get(f"/uploads/{upload}"), 404, "not_found_error")
    assert_problem(other.put(f"/uploads/{upload}/files/0", content=b"a"), 404, "not_found_error")
    assert_problem(other.post("/plans", json={"source": f"upload:{upload}"}), 404, "not_found_error")


# --- what is sent --------------------------------------------------------------------------------------------------


def test_an_upload_is_in_quarantine_until_it_was_inspected(server: Server, client: httpx.Client) -> None:
    upload = sent(client, {"a.bin": b"no model"})
    assert upload["state"] == "refused"
    assert upload["error"]["code"]
    assert_problem(client.post("/plans", json={"source": upload["source"]}), 409, "refused_error")
    assert_problem(client.post("/inspect", json={"source": upload["source"]}), 409, "refused_error")
    assert (server.data / "quarantine" / upload["id"]).is_dir()
    assert not (server.data / "uploads" / upload["id"]).exists()


@pytest.mark.slow
def test_a_decompression_bomb(server: Server, client: httpx.Client) -> None:
    """A zip of 130 kB that unpacks to 128 MiB is refused by a worker that has not unpacked it."""
    info = zipfile.ZipInfo("archive/data.pkl")
    info.compress_type = zipfile.ZIP_DEFLATED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/version", "3\n")
        with archive.open(info, "w", force_zip64=True) as member:
            for _ in range(128):
                member.write(bytes(1 << 20))
    assert len(out.getvalue()) < 1 << 20
    began = time.monotonic()
    upload = sent(client, {"bomb.pth": out.getvalue()})
    assert upload["state"] == "refused", upload
    assert time.monotonic() - began < 30
    assert client.get("/models").status_code == 200


@pytest.mark.linux("limits of a process")
def test_workers_have_no_secrets(server: Server, client: httpx.Client, root: Path) -> None:
    """helpers.server starts the server with two; its children have neither."""
    assert client.post("/inspect", json={"source": str(root / "old.bin")}).status_code == 200
    children = [pid for pid, words in below(server.process.pid).items() if "workers.process" in words]
    assert children
    for pid in children:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"never" not in environment
        limits = Path(f"/proc/{pid}/limits").read_text()
        for name in ("Max file size", "Max data size", "Max address space"):
            line = next(each for each in limits.splitlines() if each.startswith(name))
            assert "unlimited" not in line, line
