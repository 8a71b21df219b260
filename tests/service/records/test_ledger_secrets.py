"""The password of a ledger's database is in no event, message, plan, report or receipt, whatever form the URL has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import UsageError
from ggferry.service.records.ledger_url import full_url, hide_secrets, redact, with_environment
from helpers.archive_tools import command, plan, write
from helpers.builders import Llama
from helpers.postgres_server import PostgresServer, postgres_server

pytestmark = pytest.mark.attack

PASSWORD = "s3cret/PW@1"
TAILS = ("s3cret", "PW", "PW@1", "PW%401")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server(PASSWORD) as found:
        yield found


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("postgresql://me:s3cretPW@db:5432/l", "postgresql://me:***@db:5432/l"),
        ("postgres://me:s3cret%2FPW%401@db/l", "postgresql://me:***@db/l"),
        ("postgresql://db/l?user=me&password=s3cretPW", "postgresql://db/l?user=me&password=***"),
        ("postgresql://db/l?password=s3cretPW", "postgresql://db/l?password=***"),
        ("postgresql://me:s3cretPW@db/l?sslpassword=s3cretPW", "postgresql://me:***@db/l?sslpassword=***"),
        ("mysql+pymysql://me:s3cretPW@db/l", "mysql+pymysql://me:***@db/l"),
        ("postgresql://me@db/l", "postgresql://me@db/l"),
        ("/data/a@b:c.ledger", "/data/a@b:c.ledger"),
        ("sqlite:////data/a@b.ledger", "/data/a@b.ledger"),
    ],
)
def test_every_form_is_shown_without_its_password(place: str, expected: str) -> None:
    assert redact(full_url(place)) == expected


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://me:s3cret@PW@db/l",
        "postgresql://me:p@s3cret/PW@127.0.0.1/l",
        "postgresql://me:p@s3cret:PW@127.0.0.1:5432/l",
        "postgresql://me:s3cretPW",
        "postgresql:/me:s3cretPW@db/l",
        "host=db user=me password=s3cretPW",
        "postgresql://me:p@db:s3cretPW/l",
    ],
)
def test_what_cannot_be_understood_is_not_quoted(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER", place)
    for form in (place, "env:LEDGER"):
        with pytest.raises(UsageError) as caught:
            full_url(form)
        assert not any(tail in str(caught.value) + repr(caught.value.as_dict()) for tail in TAILS)


def test_drivers_words_lose_every_spelling_of_the_password() -> None:
    url = full_url("postgresql://me:s3cret%2FPW%401@db/l")
    said = f"no password {PASSWORD} at me:s3cret%2FPW%401@db"
    assert hide_secrets(said, url) == "no password *** at me:***@db"


def test_another_process_is_told_what_this_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "other")
    parts = sa.make_url(with_environment(full_url("postgresql://me@db/l")))
    assert parts.query == {"password": PASSWORD} and parts.username == "me" and parts.host == "db"
    assert with_environment(full_url("/a/ledger")) == full_url("/a/ledger")


def forms(server: PostgresServer) -> list[str]:
    """That lead nowhere, and one with a wrong password."""
    there = server.url.partition("@")[2]
    return [
        "postgresql://me:s3cretPW@127.0.0.1:1/l",
        "postgresql://127.0.0.1:1/l?user=me&password=s3cretPW",
        "postgresql://me:s3cret@PW@127.0.0.1:1/l",
        "postgresq://me:s3cretPW@127.0.0.1:1/l",
        f"postgresql://ggferry:s3cretPW@{there}",
    ]


@pytest.mark.parametrize("number", range(5))
def test_errors_do_not_hold_it(number: int, server: PostgresServer) -> None:
    done = command("ledger", "status", forms(server)[number], "--json", code=None)
    assert done.returncode in (2, 3) and "internal" not in done.stderr
    assert not any(tail in done.stdout + done.stderr for tail in TAILS), done.stderr


def test_a_run_names_its_ledger_without_it(server: PostgresServer, tmp_path: Path) -> None:
    """The password comes by a variable, so that it stands in no list of processes either."""
    write(tmp_path / "in" / "a.bin", Llama())
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--verify", "none")
    where = {"LEDGER": server.url.replace("ggferry@", "ggferry:s3cret%2FPW%401@")}
    done = command("apply", path, "-j", "1", "--json", "--ledger", "env:LEDGER", **where)
    first = json.loads(done.stdout.splitlines()[0])
    assert first["event"] == "start" and first["ledger"] == server.url.replace("ggferry@", "ggferry:***@")
    texts = [done.stdout, done.stderr, *(p.read_text("utf-8", "replace") for p in tmp_path.rglob("*") if p.is_file())]
    assert not any(PASSWORD in text or "s3cret%2FPW" in text for text in texts)
    found = command("ledger", "status", "env:LEDGER", "--json", **where)
    assert json.loads(found.stdout)["done"] == 1


@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE"])
def test_libpqs_own_ways_are_ways(way: str, server: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "pass").write_text(f"*:*:*:*:{PASSWORD}\n")
    (tmp_path / "pass").chmod(0o600)
    value = {"PGPASSWORD": PASSWORD, "PGPASSFILE": str(tmp_path / "pass")}[way]
    command("ledger", "status", server.url, code=3)
    command("ledger", "status", server.url, **{way: value})


def test_a_variable_that_is_not_set_is_named() -> None:
    assert "env:NOBODY_SET_THIS" in command("ledger", "status", "env:NOBODY_SET_THIS", code=2).stderr
