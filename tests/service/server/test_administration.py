"""Tokens and the audit log, by the API, the page and the command."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from ggferry.service.server.api import sign_in
from ggferry.service.server.pages.routes import administration, changes, main
from ggferry.service.server.settings import DAY, Settings
from ggferry.service.server.state import open_service
from ggferry.service.server.store import audit
from ggferry.service.server.store.database import Store
from helpers.archive_tools import command
from helpers.server import Server, ended, made_token, submitted


def entries(client: httpx.Client, **query: str | int | float) -> list[dict[str, object]]:
    answer = client.get("/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()["items"]
    return found


def of(client: httpx.Client, answer: httpx.Response) -> dict[str, object]:
    """The one entry of a request."""
    (found,) = [each for each in entries(client, limit=500) if each["request"] == answer.headers["x-request-id"]]
    return found


def token_of(client: httpx.Client, key: str) -> dict[str, Any]:
    """A token of the list."""
    (found,) = [each for each in client.get("/tokens").json()["items"] if each["id"] == key]
    return dict(found)


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A browser that is signed in."""
    with httpx.Client(base_url=server.url, follow_redirects=False) as client:
        assert client.get("/", params={"token": server.token}).status_code == 303
        yield client


def csrf_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" content="(\w+)"', page.text)
    assert found, page.text
    return found[1]


# --- tokens --------------------------------------------------------------------------------------------------------


def test_a_token_from_its_making_to_its_end(server: Server, client: httpx.Client) -> None:
    wanted = {"name": "ci", "scope": "submit", "days": 2, "quota": 5_000_000, "rate": 50}
    answer = client.post("/tokens", json=wanted)
    assert answer.status_code == 201
    made = answer.json()
    assert made["token"].startswith(f"ggf_{made['id']}_") and abs(made["expires"] - time.time() - 2 * DAY) < 60
    listed = client.get("/tokens")
    row = token_of(client, made["id"])
    assert (row["scope"], row["quota"], row["rate"], row["used"]) == ("submit", 5_000_000, 50.0, None)
    assert row["made_by"] == "the link printed at the start"
    assert made["token"].split("_")[2] not in listed.text, "it is shown once"
    other = server.client(made["token"])
    assert other.get("/models").status_code == 200
    until = time.monotonic() + 10
    while (used := token_of(client, made["id"])["used"]) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert abs(used - time.time()) < 60
    shown = command("serve", "--data", server.data, "token", "list").stdout
    assert re.search(rf"{made['id']}  submit  20\d\d-\d\d-\d\d \d\d:\d\d Z .* ci\n", shown), shown
    assert client.delete(f"/tokens/{made['id']}").status_code == 204
    assert other.get("/models").status_code == 401
    assert client.delete(f"/tokens/{made['id']}").status_code == 404
    actions = [(each["action"], each["detail"]) for each in entries(client, q=made["id"])]
    assert actions[-1] == ("POST /api/v1/tokens", "ci: submit")
    assert actions[0][0] == actions[1][0] == "DELETE /api/v1/tokens/{token}"


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"scope": "root"}, {"days": 0}, {"days": -1}, {"quota": -1}, {"rate": 0}, {"more": 1}]
)
def test_tokens_that_are_not_made(client: httpx.Client, wrong: dict[str, object]) -> None:
    before = len(client.get("/tokens").json()["items"])
    assert client.post("/tokens", json={"name": "x", **wrong}).status_code == 422
    assert len(client.get("/tokens").json()["items"]) == before


def test_a_token_that_ends_at_once(server: Server, client: httpx.Client) -> None:
    made = client.post("/tokens", json={"name": "short", "days": 1e-12})
    assert made.status_code == 201
    assert server.client(made.json()["token"]).get("/models").status_code == 401


@pytest.mark.parametrize("scope", ["read", "submit"])
def test_administration_is_the_administrators(server: Server, scope: str) -> None:
    text = made_token(server.data, f"no admin {scope}", scope)
    client = server.client(text)
    assert client.get("/tokens").status_code == 403
    assert client.post("/tokens", json={"name": "more", "scope": "admin"}).status_code == 403
    assert client.delete("/tokens/" + "0" * 12).status_code == 403
    assert client.get("/audit").status_code == 403
    with httpx.Client(base_url=server.url) as browser:
        browser.get("/", params={"token": text})
        page = browser.get("/")
        assert "Audit log" not in page.text and 'href="/tokens"' not in page.text
        assert (browser.get("/tokens").status_code, browser.get("/audit").status_code) == (403, 403)
        form = {"csrf": csrf_of(page), "name": "mine", "scope": "admin"}
        assert browser.post("/tokens", data=form).status_code == 403


def test_the_page_of_tokens(server: Server, browser: httpx.Client, client: httpx.Client) -> None:
    page = browser.get("/tokens")
    form = {"csrf": csrf_of(page), "name": "<b>laptop</b>", "scope": "read", "days": "1.5", "quota": "2GB", "rate": ""}
    assert browser.post("/tokens", data={**form, "csrf": "x"}).status_code == 403
    made = browser.post("/tokens", data=form)
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    (text,) = re.findall(r'value="(ggf_\w+)"', made.text)
    assert "<b>laptop</b>" not in made.text
    again = browser.get("/tokens").text
    assert text not in again and text.split("_")[1] in again
    row = token_of(client, text.split("_")[1])
    assert (row["name"], row["quota"], row["rate"]) == ("<b>laptop</b>", 2 * 10**9, None)
    assert server.client(text).get("/models").status_code == 200
    for wrong in (
        {"days": "soon"},
        {"quota": "much"},
        {"scope": "root"},
        {"name": " "},
        {"days": "nan"},
        {"rate": "-1"},
    ):
        answer = browser.post("/tokens", data={**form, **wrong})
        assert answer.status_code == 422 and "ggf_" not in answer.text, wrong
    assert browser.post(f"/tokens/{text.split('_')[1]}/revoke", data={"csrf": form["csrf"]}).status_code == 303
    assert server.client(text).get("/models").status_code == 401


# --- the audit log -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_did_what_when_from_where(server: Server, client: httpx.Client, root: Path) -> None:
    mine = server.client(made_token(server.data, "alice", "submit"))
    (job,) = submitted(mine, root / "old.bin", verify="none", outtype="q4_1", allow_requantize=True)
    ended(mine, job)
    refused = mine.post(f"/jobs/{job}/cancel")
    assert refused.status_code == 409
    found = of(client, refused)
    assert found["actor"] == "alice" and found["address"] == "127.0.0.1"
    assert (found["action"], found["subject"]) == ("POST /api/v1/jobs/{job}/cancel", f"job {job}")
    assert found["status"] == 409 and abs(float(str(found["at"])) - time.time()) < 60
    before = entries(client, q="alice")
    assert [each["action"] for each in before[:3]] == [
        "POST /api/v1/jobs/{job}/cancel",
        "POST /api/v1/jobs",
        "POST /api/v1/plans",
    ]
    assert re.fullmatch("plan [0-9a-f]{16}", str(before[2]["subject"]))
    mine.get("/models")
    assert len(entries(client, q="alice")) == len(before), "who looks changes nothing"


def test_every_route_that_changes_something_is_in_the_log(server: Server, client: httpx.Client) -> None:
    """Of what the application has: a new route is entered without a line of its own."""
    routers = (main.router, changes.router, administration.router, sign_in.router)
    routes = [(method, route.path) for router in routers for route in router.routes for method in route.methods]  # type: ignore[attr-defined]
    schema = client.get(f"{server.url}/api/openapi.json").json()["paths"]
    routes += [(method.upper(), path) for path, methods in schema.items() for method in methods]
    wanted = {(method, path) for method, path in routes if method not in ("GET", "HEAD")}
    wanted -= {("PUT", "/api/v1/uploads/{upload}/files/{number}"), ("POST", "/login")}
    assert len(wanted) >= 15
    unlike = {"job": "0" * 32, "plan": "0" * 16, "upload": "0" * 24, "token": "0" * 12}
    for method, path in sorted(wanted):
        if path == "/logout":
            continue
        place = re.sub(r"\{(\w+)[^}]*\}", lambda found: unlike.get(found[1], "0"), path)
        answer = client.request(method, server.url + place)
        assert answer.status_code < 500, (method, path, answer.text)
        found = of(client, answer)
        assert (found["action"], found["status"]) == (f"{method} {path}", answer.status_code)


def test_a_request_whose_server_dies_is_in_the_log(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "ledger"))
    audit.begin(store, "alice", "0" * 12, "10.0.0.1", "POST /plans/1/submit", "r1")
    (found,) = audit.find(store, audit.AuditQuery())
    assert (found["action"], found["status"]) == ("POST /plans/1/submit", None)
    audit.complete(store, "r1", 303, "POST /plans/{plan}/submit", "plan 1", None)
    assert [each["status"] for each in audit.find(store, audit.AuditQuery())] == [303]
    store.close()


def test_sign_ins_are_in_the_log(server: Server, client: httpx.Client) -> None:
    text = made_token(server.data, "bob", "read")
    answer = httpx.get(server.url, params={"token": text})
    httpx.post(f"{server.url}/login", data={"token": text})
    signed = [each["action"] for each in entries(client, q="bob")]
    assert answer.status_code == 303 and signed == ["sign-in: token", "sign-in: link"]
    for _ in range(20):
        httpx.post(f"{server.url}/login", data={"token": "ggf_wrong"})
    refused = entries(client, q="sign-in refused", limit=500)
    assert 1 <= len(refused) < 10, "not every one of an address that tries many"
    assert "ggf_wrong" not in json.dumps(refused)


def test_the_page_of_the_log(browser: httpx.Client, client: httpx.Client) -> None:
    client.post("/tokens", json={"name": "<i>x</i>"})
    page = browser.get("/audit", params={"q": "<i>x"})
    assert page.status_code == 200 and "<i>x" not in page.text and "&lt;i&gt;x" in page.text
    assert "No entries" in browser.get("/audit", params={"q": "no such thing"}).text
    assert browser.get("/audit", params={"before": "1e9"}).status_code == 200


def test_pages_and_filters(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "ledger"))
    for number in range(25):
        audit.note(store, f"user{number % 3}", "did 100%", token=f"t{number % 2}", subject=f"job {number}\x1b[31m")
    seen, before = [], None
    while found := audit.find(store, audit.AuditQuery(before=before, limit=10)):
        seen += [each["id"] for each in found]
        before = found[-1]["id"]
    assert seen == sorted(seen, reverse=True) and len(seen) == 25
    assert len(audit.find(store, audit.AuditQuery("user1"))) == 8
    assert len(audit.find(store, audit.AuditQuery("100%"))) == 25 and not audit.find(store, audit.AuditQuery("0_%"))
    assert len(audit.find(store, audit.AuditQuery(token="t0"))) == 13
    assert not audit.find(store, audit.AuditQuery(until=time.time() - 60))
    newest = audit.find(store, audit.AuditQuery())[0]
    assert "\x1b" not in str(newest["subject"]) and newest["request"] is None
    store.close()


def test_entries_go_with_time(tmp_path: Path) -> None:
    service = open_service(Settings(str(tmp_path / "data"), keep_audit=100.0))
    for age in (50.0, 150.0):
        audit.note(service.store, "x", f"{age:g} s ago")
        change = sa.update(service.store.t.audit).where(service.store.t.audit.c.action == f"{age:g} s ago")
        service.store.run(change.values(at=time.time() - age))
    service.housekeeper.round()
    assert [each["action"] for each in audit.find(service.store, audit.AuditQuery())] == ["50 s ago"]
    service.drain()


@pytest.mark.slow
def test_the_command_line_is_in_the_log_too(tmp_path: Path) -> None:
    data = ("serve", "--data", tmp_path / "data")
    made = json.loads(command(*data, "token", "add", "ci", "--scope", "submit", "--json").stdout)
    command(*data, "token", "revoke", "ci")
    found = [json.loads(line) for line in command(*data, "audit", "--json").stdout.splitlines()]
    assert [(each["action"], each["subject"]) for each in found] == [
        ("serve token revoke", f"token {made['id']}"),
        ("serve token add", f"token {made['id']}"),
    ]
    assert all(str(each["actor"]).startswith("command line: ") for each in found)
    lines = command(*data, "audit", "revoke", "--limit", "5").stdout.splitlines()
    assert len(lines) == 1 and "serve token revoke" in lines[0]
