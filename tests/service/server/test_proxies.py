"""The server behind a proxy: TLS, a path before every other, and the client's own address."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ggferry
from helpers.attack_tools import typed
from helpers.builders import Llama
from helpers.proxies import Proxy, proxy
from helpers.server import Server, ended, serving, submitted


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    """A server that trusts a proxy on this machine."""
    folder = tmp_path_factory.mktemp("behind")
    (folder / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "root" / "old.bin")
    options = ("--root", folder / "root", "--trusted-proxy", "127.0.0.1", "--root-path", "/ggferry", "--drain", "1")
    with serving(folder / "data", *options) as server:
        yield server


def forwarded(**more: str) -> dict[str, str]:
    return {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7", "Host": "localhost", **more}


def test_a_cookie_over_tls_is_of_this_host_and_tls_alone(behind: Server) -> None:
    answer = httpx.get(behind.url, params={"token": behind.token}, headers=forwarded())
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Secure-ggferry_session=") and "Secure" in cookie and "Path=/ggferry" in cookie
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert answer.headers["location"] == "/ggferry/"
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    plain = httpx.get(behind.url, params={"token": behind.token})
    assert "Secure" not in plain.headers["set-cookie"] and "strict-transport-security" not in plain.headers


@pytest.mark.slow
def test_without_a_path_the_cookie_has_the_strictest_prefix(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--trusted-proxy", "127.0.0.0/8") as server:
        cookie = httpx.get(server.url, params={"token": server.token}, headers=forwarded()).headers["set-cookie"]
        assert cookie.startswith("__Host-ggferry_session=") and "Secure" in cookie and "Path=/" in cookie
        assert "Domain" not in cookie
        session = cookie.partition(";")[0]
        assert httpx.get(server.url, headers=forwarded(Cookie=session)).status_code == 200
        out = httpx.post(f"{server.url}/logout", headers=forwarded(Cookie=session, **{"X-CSRF-Token": "x"}))
        assert out.status_code == 403


def test_who_is_not_trusted_is_not_believed(server: Server, client: httpx.Client) -> None:
    answer = httpx.get(server.url, params={"token": server.token}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" not in answer.headers["set-cookie"]
    made = client.post("/tokens", json={"name": "address"}, headers={"X-Forwarded-For": "203.0.113.7"})
    (entry,) = [
        each for each in client.get("/audit").json()["items"] if each["request"] == made.headers["x-request-id"]
    ]
    assert entry["address"] == "127.0.0.1"


def test_the_clients_address_is_the_last_that_a_trusted_proxy_saw(behind: Server) -> None:
    client = behind.client()
    given = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7, 127.0.0.1"}  # the first is what the client made up
    made = client.post("/tokens", json={"name": "address"}, headers=given)
    (entry,) = [
        each for each in client.get("/audit").json()["items"] if each["request"] == made.headers["x-request-id"]
    ]
    assert entry["address"] == "203.0.113.7"


def test_every_address_of_a_page_has_the_path(behind: Server) -> None:
    with httpx.Client(base_url=behind.url) as browser:
        browser.get("/ggferry/", params={"token": behind.token})
        for path in ("/", "/add", "/activity", "/tokens", "/audit", "/login", "/models/0"):
            page = browser.get("/ggferry" + path).text
            found = re.findall(r'\s(?:href|src|action|data-refresh|data-load)="([^"]*)"', page)
            assert found and all(each.startswith(("/ggferry/", "#", "?")) for each in found), (path, found)
            assert '<meta name="root" content="/ggferry">' in page
        assert browser.get(re.findall(r'src="([^"]+)"', page)[0]).status_code == 200
    assert httpx.get(behind.url + "/add").headers["location"] == "/ggferry/login"
    document = behind.client().get(f"{behind.url}/api/openapi.json").json()
    assert document["servers"] == [{"url": "/ggferry"}]


@pytest.mark.parametrize(
    ("option", "value"), [("--trusted-proxy", "proxy.example"), ("--root-path", "ggferry"), ("--root-path", "/a/../b")]
)
def test_options_that_are_refused(tmp_path: Path, option: str, value: str) -> None:
    done = typed("serve", "--data", tmp_path / "data", option, value, "--port", "0")
    assert done.code == 2 and option in done.err, done


# --- real proxies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def front(request: pytest.FixtureRequest, behind: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A real proxy before that server, as docs/examples sets it up."""
    with proxy(request.param, tmp_path_factory.mktemp("proxy") / "own", behind.port) as found:
        yield found


@pytest.mark.slow
def test_a_browser_behind_a_real_proxy(front: Proxy, behind: Server) -> None:
    with httpx.Client(verify=front.trust, follow_redirects=True) as browser:
        page = browser.get(f"{front.url}/", params={"token": behind.token})
        assert page.status_code == 200 and str(page.url) == f"{front.url}/"
        (cookie,) = browser.cookies.jar
        assert cookie.name == f"__Secure-ggferry_session_{front.port}" and cookie.secure and cookie.path == "/ggferry"
        style = re.findall(r'href="(/ggferry/static/page\.css[^"]*)"', page.text)
        assert browser.get(httpx.URL(front.url).copy_with(raw_path=style[0].encode())).status_code == 200
        assert browser.get(front.url).status_code == 200  # without the slash
        csrf = re.findall(r'name="csrf" content="(\w+)"', page.text)[0]
        made = browser.post(f"{front.url}/tokens", data={"csrf": csrf, "name": "behind", "scope": "read"})
        assert made.status_code == 201
        origin = {"Origin": f"https://localhost:{front.port}", "Sec-Fetch-Site": "same-origin"}
        again = browser.post(f"{front.url}/tokens", data={"csrf": csrf, "name": "b2", "scope": "read"}, headers=origin)
        assert again.status_code == 201
        newest = behind.client().get("/audit").json()["items"][0]
        assert (newest["action"], newest["address"]) == ("POST /tokens", "127.0.0.1")
        out = browser.post(f"{front.url}/logout", data={"csrf": csrf})
        assert str(out.url) == f"{front.url}/login?out=1" and not list(browser.cookies.jar)


@pytest.mark.slow
def test_events_and_downloads_pass_a_real_proxy(front: Proxy, behind: Server) -> None:
    (job,) = submitted(behind.client(), behind.data.parent / "root" / "old.bin", verify="none")
    assert ended(behind.client(), job)["state"] == "done"
    headers = {"Authorization": f"Bearer {behind.token}"}
    with httpx.Client(verify=front.trust, headers=headers, timeout=60) as http:
        with http.stream("GET", f"{front.url}/api/v1/events?since=0") as stream:
            assert any('"state": "done"' in line for line in stream.iter_lines() if line.startswith("data"))
        (file,) = http.get(f"{front.url}/api/v1/jobs/{job}/files").json()
        part = http.get(front.url + file["url"], headers={"Range": "bytes=0-99"})
        assert part.status_code == 206 and part.content[:4] == b"GGUF"


@pytest.mark.slow
def test_the_client_works_below_a_path(
    front: Proxy, behind: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(front.cert))
    client = ggferry.Client(front.url, behind.token)
    model = Llama(n_ff=96, seed=front.port, kind="F16", container="ggjt", version=1).write(tmp_path / "m.bin")
    (job,) = client.submit(str(model), verify="none")
    client.wait([job])
    files = client.fetch(job, str(tmp_path / "new"))
    assert Path(files[0].path).read_bytes()[:4] == b"GGUF"


@pytest.mark.slow
def test_a_piece_is_passed_on_as_it_comes(front: Proxy, behind: Server) -> None:
    """What arrived of a broken piece counts, so the proxy must not keep it back until the piece is whole."""
    content = bytes(1000) * 500
    with httpx.Client(verify=front.trust, headers={"Authorization": f"Bearer {behind.token}"}) as http:
        files = {"files": [{"name": "a.bin", "bytes": len(content)}]}
        key = http.post(f"{front.url}/api/v1/uploads", json=files).json()["id"]
    raw = socket.create_connection(("127.0.0.1", front.port))
    with front.trust.wrap_socket(raw, server_hostname="localhost") as connection:
        head = f"PUT /ggferry/api/v1/uploads/{key}/files/0 HTTP/1.1\r\nHost: localhost:{front.port}\r\n"
        head += f"Authorization: Bearer {behind.token}\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content[:300_000])
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    client = behind.client()
    for _ in range(100):
        offset = client.get(f"/uploads/{key}").json()["files"][0]["offset"]
        if offset == 300_000:
            break
        time.sleep(0.1)
    assert offset == 300_000
    assert client.delete(f"/uploads/{key}").status_code in (200, 204)
