"""How a browser signs in and out, and what another site's page cannot make it do."""

from __future__ import annotations

import httpx
import pytest

from helpers.server import Server


def entered(server: Server, path: str, **headers: str) -> httpx.Response:
    """What a browser gets that follows a link with the server's token."""
    return httpx.get(f"{server.url}{path}?token={server.token}", headers=headers)


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example/", "/%2Fevil.example/", "/%5Cevil.example/",
                                  "/%09/evil.example/", "/\\evil.example/"])  # fmt: skip
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
