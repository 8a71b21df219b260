"""Sign-in by an OpenID provider, which the test starts itself: what works, and what must not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from helpers.attack_tools import typed
from helpers.openid_provider import CLIENT, SECRET, Provider, new_key, openid_provider
from helpers.server import Server, serving

OTHER = new_key()


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with openid_provider() as found:
        yield found


@pytest.fixture
def provider(running: Provider) -> Iterator[Provider]:
    """The provider, which does all right again after a test."""
    before = {each.name: getattr(running, each.name) for each in fields(running)}
    kept = {name: value.copy() if hasattr(value, "copy") else value for name, value in before.items()}
    yield running
    for name, value in kept.items():
        setattr(running, name, value)


def options(provider: Provider, *more: str) -> tuple[str, ...]:
    wanted = ("--oidc-issuer", provider.url, "--oidc-client", CLIENT, "--oidc-secret", "env:GGFERRY_OIDC")
    return (*wanted, "--oidc-scope", "ml=submit", "--oidc-scope", "ops=admin", *more)


@pytest.fixture(scope="module")
def signing(running: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("oidc") / "data", *options(running), GGFERRY_OIDC=SECRET) as server:
        yield server


@pytest.fixture
def browser(signing: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=signing.url, follow_redirects=True) as client:
        yield client


def audited(server: Server, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client().get("/audit", params=query).json()["items"]
    return found


def test_a_person_signs_in_and_out(provider: Provider, signing: Server, browser: httpx.Client) -> None:
    page = browser.get("/login")
    assert 'href="/sign-in"' in page.text and "127.0.0.1" in page.text
    done = browser.get("/sign-in")
    assert done.status_code == 200 and 'content="0;url=/"' in done.text, done.text
    _, asked = [each for each in provider.asked if each[0] == "/authorize"][-1]
    assert (asked["response_type"], asked["client_id"], asked["code_challenge_method"]) == ("code", CLIENT, "S256")
    assert asked["redirect_uri"] == f"{signing.url}/sign-in/callback" and "openid" in asked["scope"].split()
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    session = [cookie for cookie in browser.cookies.jar if cookie.name == signing.cookie]
    assert len(session) == 1 and [cookie.name for cookie in browser.cookies.jar] == [signing.cookie]
    assert 0 < (session[0].expires or 0) - time.time() <= 7 * 86400
    archive = browser.get("/")
    assert "Add models" in archive.text and "Audit log" not in archive.text
    csrf = re.findall(r'name="csrf" content="(\w+)"', archive.text)[0]
    (listed,) = [each for each in signing.client().get("/tokens").json()["items"] if each["kind"] == "person"]
    assert (listed["name"], listed["scope"]) == ("ada", "submit")
    assert audited(signing, q="ada")[0]["action"] == "sign-in: OpenID"
    out = browser.post("/logout", data={"csrf": csrf})
    assert str(out.url) == f"{signing.url}/login?out=1"
    (end,) = re.findall(r'href="([^"]*/end\?[^"]*)"', out.text)
    ends = parse_qs(urlsplit(end.replace("&amp;", "&")).query)
    assert ends == {"client_id": [CLIENT], "post_logout_redirect_uri": [f"{signing.url}/login"]}
    assert str(browser.get("/").url) == f"{signing.url}/login"


@pytest.mark.slow
def test_what_a_person_may_do_is_what_the_provider_says_now(
    provider: Provider, signing: Server, browser: httpx.Client
) -> None:
    provider.claims = {"sub": "u2", "email": "grace@example.org", "groups": ["ml", "ops", "x"]}
    browser.get("/sign-in")
    assert "Audit log" in browser.get("/").text
    provider.claims["groups"] = ["ml"]
    browser.get("/sign-in")
    assert "Audit log" not in browser.get("/").text
    people = [each for each in signing.client().get("/tokens").json()["items"] if each["name"] == "grace@example.org"]
    assert [each["scope"] for each in people] == ["submit"], "one row a person"
    signing.client().delete(f"/tokens/{people[0]['id']}")
    time.sleep(1.1)
    assert str(browser.get("/").url).endswith("/login"), "whoever is revoked is out"


@pytest.mark.parametrize("groups", [[], ["others"], "others", None, ["ML"], [None], [["ml"]]])
def test_who_is_known_and_allowed_nothing_stays_out(
    provider: Provider, signing: Server, browser: httpx.Client, groups: Any
) -> None:
    provider.change = {"groups": groups}
    done = browser.get("/sign-in")
    assert done.status_code == 403 and "nothing here is allowed to you" in done.text
    assert signing.cookie not in browser.cookies


HOSTILE: dict[str, dict[str, Any]] = {
    "wrong nonce": {"change": {"nonce": "other"}},
    "no nonce": {"change": {"nonce": None}},
    "wrong audience": {"change": {"aud": "another client"}},
    "several audiences, not for us": {"change": {"aud": [CLIENT, "other"], "azp": "other"}},
    "several audiences, for nobody": {"change": {"aud": [CLIENT, "other"]}},
    "another issuer": {"change": {"iss": "https://evil.example"}},
    "expired": {"change": {"exp": int(time.time()) - 3600}},
    "no expiry": {"change": {"exp": None}},
    "not yet": {"change": {"nbf": int(time.time()) + 3600}},
    "issued in the future": {"change": {"iat": int(time.time()) + 3600}},
    "nobody": {"change": {"sub": None}},
    "an empty subject": {"change": {"sub": ""}},
    "another access token": {"change": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}},
    "another key": {"signs_with": OTHER},
    "no signature": {"algorithm": "none"},
    "signed with the public key": {"algorithm": "HS256"},
    "an algorithm that is none": {"algorithm": "RS1"},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_id_token_that_is_not_valid_signs_nobody_in(
    provider: Provider, signing: Server, browser: httpx.Client, case: str
) -> None:
    for name, value in HOSTILE[case].items():
        setattr(provider, name, value)
    done = browser.get("/sign-in")
    assert done.status_code == 403 and "ID token is not valid" in done.text, done.text
    assert signing.cookie not in browser.cookies
    assert "Traceback" not in signing.log.read_text()


def test_a_sign_in_that_another_browser_began(provider: Provider, signing: Server, browser: httpx.Client) -> None:
    """An attacker's own code, in a link: whoever follows it would work under the attacker's name."""
    with httpx.Client(base_url=signing.url, follow_redirects=False) as attacker:
        there = attacker.get("/sign-in").headers["location"]
        link = httpx.get(there, follow_redirects=False).headers["location"]
    assert browser.get(link).status_code == 403 and signing.cookie not in browser.cookies
    browser.get("/sign-in", follow_redirects=False)  # the victim has begun one of their own
    assert browser.get(link).status_code == 403 and signing.cookie not in browser.cookies


@pytest.mark.parametrize(
    "query",
    ["", "code=x", "code=x&state=wrong", "state=&code=x", "error=access_denied&state={state}", "state={state}",
     "code=wrong&state={state}", "code=x&state={state}&iss=https://evil.example"],
)  # fmt: skip
def test_answers_that_are_no_answer(provider: Provider, signing: Server, browser: httpx.Client, query: str) -> None:
    location = browser.get("/sign-in", follow_redirects=False).headers["location"]
    state = parse_qs(urlsplit(location).query)["state"][0]
    done = browser.get(f"/sign-in/callback?{query.format(state=state)}")
    assert done.status_code == 403 and signing.cookie not in browser.cookies


def test_a_code_serves_once(provider: Provider, signing: Server) -> None:
    with httpx.Client(base_url=signing.url, follow_redirects=False) as one:
        first = one.get("/sign-in")
        link = httpx.get(first.headers["location"], follow_redirects=False).headers["location"]
        kept = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
        assert httpx.get(link, headers=kept).status_code == 200
        assert httpx.get(link, headers=kept).status_code == 403


def test_new_keys_are_asked_for(provider: Provider, signing: Server, browser: httpx.Client) -> None:
    browser.get("/sign-in")
    provider.key, provider.key_id = OTHER, "k2"
    assert browser.get("/sign-in").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"issuer": "https://evil.example"}, "another issuer"),
        ({"authorization_endpoint": "http://evil.example/a"}, "no authorization_endpoint over https"),
        ({"token_endpoint": None}, "no token_endpoint over https"),
        ({"jwks_uri": "file:///etc/passwd"}, "no jwks_uri over https"),
    ],
)
def test_a_provider_that_describes_itself_wrongly(
    provider: Provider, tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    provider.metadata = metadata
    with serving(tmp_path / "data", *options(provider), GGFERRY_OIDC=SECRET) as server:
        with httpx.Client(base_url=server.url, follow_redirects=True) as browser:
            done = browser.get("/sign-in")
        assert done.status_code == 502 and words in done.text, done.text


@pytest.mark.slow
def test_a_provider_that_is_away_leaves_tokens_alone(tmp_path: Path) -> None:
    with openid_provider() as gone:
        wanted = options(gone)
    with serving(tmp_path / "data", *wanted, GGFERRY_OIDC=SECRET) as server:
        assert httpx.get(f"{server.url}/sign-in").status_code == 502
        assert server.client().get("/models").status_code == 200
        assert httpx.get(f"{server.url}/login", params={"out": "1"}).status_code == 200


@pytest.mark.slow
def test_a_wrong_secret_is_told_to_whoever_signs_in(provider: Provider, tmp_path: Path) -> None:
    with serving(tmp_path / "data", *options(provider), GGFERRY_OIDC="wrong") as server:
        with httpx.Client(base_url=server.url, follow_redirects=True) as browser:
            done = browser.get("/sign-in")
        assert done.status_code == 403 and "did not take the code" in done.text
        assert "wrong" not in done.text.replace("sign-in", "")


def test_a_server_without_a_provider(server: Server) -> None:
    assert httpx.get(f"{server.url}/sign-in").status_code == 404
    assert httpx.get(f"{server.url}/sign-in/callback?code=x&state=y").status_code == 404
    assert "/sign-in" not in httpx.get(f"{server.url}/login").text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--oidc-issuer", "http://id.example.org"), "--oidc-client"),
        (("--oidc-client", "x"), "--oidc-issuer"),
        (("--oidc-issuer", "http://id.example.org", "--oidc-client", "x", "--oidc-scope", "a=read"), "https://"),
        (("--oidc-issuer", "https://id.example.org", "--oidc-client", "x", "--oidc-scope", "a=root"), "--oidc-scope"),
        (("--oidc-issuer", "https://id.example.org", "--oidc-client", "x", "--oidc-scope", "=read"), "--oidc-scope"),
        (("--oidc-issuer", "https://id.example.org", "--oidc-client", "x", "--oidc-scope", "a=read",
          "--oidc-secret", "plain"), "--oidc-secret"),
        (("--oidc-issuer", "https://id.example.org", "--oidc-client", "x", "--oidc-scope", "a=read",
          "--oidc-secret", "file:/no/such"), "--oidc-secret"),
    ],
)  # fmt: skip
def test_options_that_are_refused(tmp_path: Path, given: tuple[str, ...], words: str) -> None:
    done = typed("serve", "--data", tmp_path / "data", "--port", "0", *given)
    assert done.code == 2 and words in done.err, done
