"""How a browser signs in and out, and what another site's page cannot make it do."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from helpers.server import Server, serving


def entered(server: Server, path: str, **headers: str) -> httpx.Response:
    """What a browser gets that follows a link with the server's token."""
    return httpx.get(f"{server.url}{path}?token={server.token}", headers=headers)


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/",
        "///evil.example/",
        "/%2Fevil.example/",
        "/%5Cevil.example/",
        "/%09/evil.example/",
        "/\\evil.example/",
    ],
)
def test_a_sign_in_link_leads_to_this_server_only(server: Server, path: str) -> None:
    answer = entered(server, path)
    assert answer.status_code == 303
    there = httpx.URL(answer.headers["location"])
    assert (there.is_relative_url, there.host) == (True, "")
    assert "\\" not in answer.headers["location"]
    assert "\t" not in answer.headers["location"]


def test_a_sign_in_link_keeps_the_page_it_names(server: Server) -> None:
    answer = httpx.get(f"{server.url}/models/a%20b%C3%A9?q=x%26y&token={server.token}&sort=name")
    assert answer.headers["location"] == "/models/a%20b%C3%A9?q=x%26y&sort=name"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_signs_nobody_in(server: Server, site: str) -> None:
    """Else its page could put a victim's uploads under the token of whoever wrote the page."""
    answer = entered(server, "/", **{"Sec-Fetch-Site": site})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?elsewhere=1"
    assert "set-cookie" not in answer.headers
    assert "another site" in httpx.get(server.url + answer.headers["location"]).text
    assert "set-cookie" in entered(server, "/", **{"Sec-Fetch-Site": "none"}).headers


def test_a_session_beside_cookies_of_other_applications(server: Server) -> None:
    """JSON is no cookie value by RFC 6265, and other applications on the same host set it all the same."""
    session = entered(server, "/").cookies[server.cookie]
    for other in ('prefs={"theme":"dark"}', "a=b=c", "a[]=1", "ggferry_session_1=of another port"):
        answer = httpx.get(f"{server.url}/", headers={"Cookie": f"{other}; {server.cookie}={session}; z=1"})
        assert answer.status_code == 200, other


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/uploads/{id}/files/0"),
        ("DELETE", "/api/v1/uploads/{id}"),
        ("POST", "/logout"),
        ("POST", "/api/v1/jobs/{id}/cancel"),
    ],
)
def test_a_form_without_its_secret_changes_nothing(server: Server, method: str, path: str) -> None:
    session = entered(server, "/").cookies[server.cookie]
    headers = {"Cookie": f"{server.cookie}={session}", "Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"", b"ab"):
        answer = httpx.request(method, server.url + path.format(id="0" * 32), headers=headers, content=body or None)
        assert (answer.status_code, answer.json()["code"] if "json" in answer.headers["content-type"] else "csrf") == (
            403,
            "csrf",
        )
    assert httpx.get(server.url, headers=headers).status_code == 200, "the session goes on"


@pytest.mark.slow
def test_what_watches_the_server_is_not_refused_for_others(tmp_path: Path) -> None:
    """Behind a proxy everybody has its address."""
    with serving(tmp_path / "data", "--rate", "1") as server, httpx.Client(base_url=server.url) as client:
        refused = [client.get("/models", headers={"Authorization": "Bearer x"}).status_code for _ in range(20)]
        assert 429 in refused
        assert {client.get(path).status_code for path in ("/health", "/ready", "/login", "/favicon.ico")} <= {
            200,
            308,
            404,
        }
        assert {client.get("/health").status_code for _ in range(50)} == {200}


@pytest.mark.parametrize("path", ["/health", "/login", "/api/openapi.json", "/api/v1/models", "/api/v1/events"])
def test_every_page_has_a_head(server: Server, path: str) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = httpx.head(server.url + path, headers=headers, timeout=20)
    assert (answer.status_code, answer.content) == (200, b"")
    assert httpx.head(server.url + "/api/v1/jobs/" + "0" * 32, headers=headers).status_code == 404


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff", "a\\u0000b"])
def test_what_no_database_keeps_is_refused(server: Server, text: str) -> None:
    body = '{"sources": ["x"], "options": {"arch": "' + text + '"}}'
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/api/v1/plans", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_text")
    fine = httpx.post(f"{server.url}/api/v1/plans", content='{"sources": ["\\\\u0000"]}', headers=headers)
    assert fine.json().get("code") != "bad_text", "six characters are no NUL"


def test_a_body_of_two_lengths_ends_the_connection(server: Server) -> None:
    """Else what follows the chunks would be answered as a request of its own."""
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    first = f"POST /login HTTP/1.1\r\n{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(20)
        connection.sendall(f"{first}GET /health HTTP/1.1\r\n{host}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.slow
def test_behind_a_proxy_with_tls_the_session_is_for_tls_alone(server: Server, tmp_path: Path) -> None:
    """A proxy that is not trusted may say what it likes."""
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    plain = entered(server, "/", **said).headers["set-cookie"]
    assert plain.startswith("ggferry_session_") and "Secure" not in plain
    with serving(tmp_path / "data", "--trusted-proxy", "127.0.0.0/8", "--rate", "5") as proxied:
        answer = entered(proxied, "/", **said)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{proxied.cookie}=") and "; Secure" in cookie and "Path=/;" in cookie + ";"
        assert "Domain" not in cookie and "max-age" in answer.headers["strict-transport-security"]
        session = {"Cookie": cookie.partition(";")[0]}
        assert httpx.get(proxied.url, headers=said | session).status_code == 200
        assert httpx.get(proxied.url, headers=session).status_code == 303, "without TLS nobody is signed in"
        for _ in range(30):  # somebody else behind the same proxy
            httpx.get(f"{proxied.url}/api/v1/models", headers=said)
        elsewhere = httpx.get(f"{proxied.url}/api/v1/models", headers=said | {"X-Forwarded-For": "203.0.113.10"})
        assert elsewhere.status_code == 401


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/api/v1/jobs/" + "0" * 32, "DELETE, GET, HEAD, OPTIONS"),
        ("/api/v1/plans", "OPTIONS, POST"),
        ("/api/v1/uploads/" + "0" * 24, "DELETE, GET, HEAD, OPTIONS"),
    ],
)
def test_every_method_of_a_path_is_named(server: Server, path: str, methods: str) -> None:
    """RFC 9110, 10.2.1: also where another route of the same path has the method."""
    headers = {"Authorization": f"Bearer {server.token}"}
    asked = httpx.options(server.url + path, headers=headers)
    assert (asked.status_code, asked.headers["allow"]) == (204, methods)
    refused = httpx.patch(server.url + path, headers=headers)
    assert (refused.status_code, refused.headers["allow"]) == (405, methods)
