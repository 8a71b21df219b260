"""What is secret in an address (user, password, query) reaches the server, a file of its owner's, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggferry.formats.errors import CorruptError, GgferryError, UsageError
from ggferry.service.plan import make_plan as planning
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.records.plan_file import to_line
from ggferry.service.storage import places, stores, urls
from helpers.archive_tools import command, write
from helpers.builders import Llama
from helpers.store_faults import Web, web_server

pytestmark = pytest.mark.attack

QUERY = "X-Amz-Signature=SIGTOKEN123&token=TOKEN456"
SECRETS = ("PASSw0rd", "SIGTOKEN123", "TOKEN456")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Web]:
    root = tmp_path / "site"
    write(root / "m0.bin", Llama())
    with web_server(root) as server:
        server.password = "Basic " + base64.b64encode(b"user:PASSw0rd").decode()
        server.signed = QUERY
        yield server
    urls.configure_access(urls.Access())


def address(site: Web, path: str = "/m0.bin", query: str = f"?{QUERY}") -> str:
    return f"{site.url.replace('://', '://user:PASSw0rd@')}{path}{query}"


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


# --- one function ---


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("https://user:PASSw0rd@h.example:8/a/m.bin?token=TOKEN456#TOKEN456", "https://h.example:8/a/m.bin"),
        ("https://TOKEN456@h.example/m.bin", "https://h.example/m.bin"),
        ("https://h.example?sig=TOKEN456", "https://h.example"),
        ("https://h.example/a@b/m.bin", "https://h.example/a@b/m.bin"),
        ("https://u:p@h.example/x?a=/b@c", "https://h.example/x"),
        ("ftp://user:PASSw0rd@h.example/a?b", "ftp://h.example/a?b"),
        ("s3://bucket/what?.bin", "s3://bucket/what?.bin"),
        ("abfs://box@account.example/a", "abfs://box@account.example/a"),
        ("hf://someone/model@main/a", "hf://someone/model@main/a"),
        ("/local/a?b", "/local/a?b"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, seen: str) -> None:
    assert urls.redact(url) == seen and urls.redact(seen) == seen


def test_a_text_is_masked_by_its_urls_not_by_a_word() -> None:
    text = "400, message='no', url='https://user:PASSw0rd@h.example/a?sig=TOKEN456' after \"http://h?x=SIGTOKEN123\""
    assert urls.mask(text) == "400, message='no', url='https://h.example/a' after \"http://h\""
    error = places.failure(RuntimeError(text), "https://h.example/a")
    assert not leaks(str(error)) and not leaks(json.dumps(error.as_dict()))


def test_two_addresses_that_differ_in_their_query_have_two_names() -> None:
    names = [urls.redact_in(f"https://two.example/get?file={name}") for name in ("a", "b", "a")]
    assert names[0] == names[2] == "https://two.example/get" and names[1].startswith("https://two.example/get?")
    assert "file" not in names[1] and urls.whole(names[1]) == "https://two.example/get?file=b"
    assert urls.redact_in(names[1]) == names[1]


def test_a_password_for_a_place_that_takes_none_is_refused() -> None:
    with pytest.raises(UsageError, match="password") as caught:
        stores.local_path("s3://user:PASSw0rd@bucket/a")
    assert not leaks(str(caught.value))


# --- the file they are kept in ---


@pytest.mark.unix("modes: who may read a file of Windows is inherited from its folder")
def test_secrets_are_kept_in_a_file_of_their_owner(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.jsonl")
    kept = urls.write_secrets(plan, {"https://h/a": "https://h/a?token=TOKEN456"})
    assert kept == f"{plan}.secrets" and stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    assert urls.read_secrets(plan) == {"https://h/a": "https://h/a?token=TOKEN456"}
    assert urls.write_secrets(plan, {}) is None and not os.path.exists(kept) and urls.read_secrets(plan) == {}
    Path(kept).write_text("not ours")
    urls.write_secrets(plan, {})
    assert Path(kept).read_text() == "not ours"
    with pytest.raises(CorruptError):
        urls.read_secrets(plan)


# --- a plan ---


def test_a_plan_and_its_names_hold_no_secret(site: Web, tmp_path: Path) -> None:
    head, entries = planning.plan(PlanRequest((address(site),), str(tmp_path / "out")))
    text = "\n".join(map(to_line, (head, *entries)))
    assert not leaks(text) and "user" not in text
    (entry,) = entries
    assert entry.verdict == "convert" and entry.output == str(tmp_path / "out" / "m0.gguf")
    assert urls.secrets_of({entry.source}) == {entry.source: address(site)}


def test_files_below_a_page_keep_the_pages_password_and_their_own_query(site: Web, tmp_path: Path) -> None:
    site.pages["/models/"] = f'<a href="/models/m0.bin?{QUERY}">one</a>'
    write(site.root / "models" / "m0.bin", Llama())
    head, (entry,) = planning.plan(PlanRequest((address(site, "/models/", ""),), str(tmp_path / "out")))
    assert head.roots == (f"{site.url}/models",) and entry.source == f"{site.url}/models/m0.bin"
    assert entry.verdict == "convert" and not leaks(to_line(entry))
    assert urls.whole(entry.source) == address(site, "/models/m0.bin")


def test_an_error_names_the_file_without_its_secrets(site: Web) -> None:
    urls.configure_access(urls.Access(retry_timeout=0))
    for path, status in (("/gone.bin", None), ("/m0.bin", 403), ("/m0.bin", 500), ("/m0.bin", "away")):
        site.rules.clear()
        if status is not None:
            site.rules.add("GET", "m0", status)
        with pytest.raises(GgferryError) as caught:
            stores.stat(urls.redact_in(address(site, path)))
        assert not leaks(str(caught.value)) and not leaks(json.dumps(caught.value.as_dict()))


# --- a whole run ---


@pytest.mark.slow
def test_nothing_that_a_migration_writes_or_says_holds_a_secret(site: Web, tmp_path: Path) -> None:
    path, out = tmp_path / "plan.jsonl", tmp_path / "out"
    said = [
        command("plan", address(site), "-o", path, "--dest", out, "-j", "1"),
        command("apply", path, "-j", "1", "--json", "--threads", "1"),
        command("ledger", "list", f"{path}.ledger", "--json"),
        command("ledger", "show", f"{path}.ledger", f"{site.url}/m0.bin"),
        command("ledger", "export", f"{path}.ledger", "-o", tmp_path / "report"),
        command("inspect", out / "m0.gguf", "--json"),
    ]
    assert not leaks("".join(done.stdout + done.stderr for done in said))
    secrets = tmp_path / "plan.jsonl.secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600 and len(leaks(secrets.read_text())) == 3
    written = [each for each in tmp_path.rglob("*") if each.is_file() and each != secrets]
    assert out / "m0.gguf" in written and out / "m0.gguf.receipt.json" in written
    for each in written:
        assert not leaks(each.read_bytes().decode("latin-1")) and not leaks(each.name), each
    # A presigned address expires: planned again with a new one, nothing is done twice.
    site.signed = "X-Amz-Signature=ANOTHER"
    command("plan", address(site, query=f"?{site.signed}"), "-o", path, "--dest", out, "-j", "1", "--force")
    assert "1 done" in command("apply", path, "-j", "1").stdout
