"""Sources behind web servers: every range is of the file that was listed, and what a server does not say is told."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import AccessError, ChangedError, GgferryError, TransportError
from ggferry.service.apply.delete_sources import choose
from ggferry.service.plan import make_plan as planning
from ggferry.service.plan.make_plan import UNPINNED, PlanRequest
from ggferry.service.records.plan_file import Entry
from ggferry.service.storage import stores, urls
from ggferry.service.storage.backends import web, web_requests
from ggferry.service.storage.backends import web_pages as pages
from ggferry.service.storage.ranged_file import HEADER_BLOCK, RangedFile
from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama
from helpers.store_faults import Web, web_server

pytestmark = pytest.mark.attack

OLD = os.urandom(4 * HEADER_BLOCK)
NEW = os.urandom(4 * HEADER_BLOCK)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Web]:
    root = tmp_path / "site"
    root.mkdir()
    urls.configure_access(urls.Access(retry_timeout=1))
    with web_server(root) as server:
        yield server
    urls.configure_access(urls.Access())


def lines(site: Web, tmp_path: Path, root: str = "", **access: Any) -> dict[str, Entry]:
    """The plan of a site, by the last of each line's address."""
    wanted = PlanRequest((site.url + root,), str(tmp_path / "out"), access=urls.Access(retry_timeout=1, **access))
    _, entries = planning.plan(wanted)
    return {entry.source.removeprefix(f"{site.url}/"): entry for entry in entries}


# --- pinned ---


def replaced(site: Web, name: str = "m.bin") -> Any:
    """Another file of the same size under this name, from the second range on."""

    def replace() -> None:
        (site.root / name).write_bytes(NEW)
        os.utime(site.root / name, (1_700_000_000, 1_700_000_000))

    return replace


@pytest.mark.parametrize("versions", ["etag", "date", "weak"])
@pytest.mark.parametrize("quirk", ["", "ignores-if-range"])
def test_a_file_that_is_replaced_while_it_is_read_is_refused(
    site: Web, tmp_path: Path, versions: str, quirk: str
) -> None:
    site.versions, site.quirk = versions, quirk
    (site.root / "m.bin").write_bytes(OLD)
    found = stores.stat(f"{site.url}/m.bin")
    assert found.pinned
    with RangedFile(found, str(tmp_path), block=HEADER_BLOCK) as source:
        assert source.read(0, 10) == OLD[:10]
        replaced(site)()
        with pytest.raises(ChangedError, match="changed since it was listed"):
            source.read(2 * HEADER_BLOCK, 10)
    with pytest.raises(ChangedError):
        RangedFile(found, str(tmp_path))


def test_a_server_that_states_no_version_is_read_once_more(site: Web, tmp_path: Path) -> None:
    site.versions = ""
    (site.root / "m.bin").write_bytes(OLD)
    found = stores.stat(f"{site.url}/m.bin")
    assert not found.pinned
    with RangedFile(found, str(tmp_path), block=HEADER_BLOCK) as source:
        source.read(0, 2 * HEADER_BLOCK)
        source.check()
        replaced(site)()
        source.read(2 * HEADER_BLOCK, HEADER_BLOCK)
        with pytest.raises(ChangedError, match="while it was read"):
            source.check()


def test_a_server_that_states_no_version_is_told_and_bars_deletion(site: Web, tmp_path: Path) -> None:
    site.versions = ""
    write(site.root / "m.bin", Llama())
    (entry,) = lines(site, tmp_path).values()
    assert entry.verdict == "convert" and any(note.startswith(UNPINNED) for note in entry.notes)
    chosen = choose({"job": entry}, ["job"], {}, despite=True)
    assert not chosen.entries and "states no version" in chosen.spared[entry.source]
    pinned = replace(entry, files=tuple(replace(each, version="1") for each in entry.files))
    assert choose({"job": pinned}, ["job"], {}, despite=True).entries


# --- answers that are not what was asked for ---


def test_another_range_than_asked_for_is_trouble_on_the_way(site: Web, tmp_path: Path) -> None:
    (site.root / "m.bin").write_bytes(OLD)
    site.quirk = "wrong-range"
    found = stores.stat(f"{site.url}/m.bin")
    with (
        RangedFile(found, str(tmp_path), block=HEADER_BLOCK) as source,
        pytest.raises(TransportError, match="server returned the wrong byte range"),
    ):
        source.read(HEADER_BLOCK, 10)


@pytest.mark.parametrize(
    ("quirk", "words"),
    [("no-length", "does not say how long it is"), ("gzip", "compressed"), ("no-ranges", "does not serve ranges")],
)
def test_a_model_that_cannot_be_read_by_ranges_is_no_folder(site: Web, tmp_path: Path, quirk: str, words: str) -> None:
    write(site.root / "m.bin", Llama())
    site.quirk = quirk
    (entry,) = lines(site, tmp_path, "/m.bin").values()
    assert entry.verdict == "unsupported" and words in entry.reason


def test_a_page_in_a_models_place_is_not_one(site: Web, tmp_path: Path) -> None:
    site.pages["/m.bin"] = "<html>404 not found</html>"
    (entry,) = lines(site, tmp_path, "/m.bin").values()
    assert entry.verdict != "convert"


# --- redirects and certificates ---


def test_a_redirect_to_another_server_is_followed_only_where_that_is_allowed(site: Web, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "m.bin").write_bytes(OLD)
    with web_server(other) as second:
        site.moved = {"/m.bin": f"{second.url}/m.bin?token=SECRET", "/near.bin": "/n.bin", "/far.bin": "file:///etc/x"}
        (site.root / "n.bin").write_bytes(NEW)
        assert stores.stat(f"{site.url}/near.bin").bytes == len(NEW)
        with pytest.raises(AccessError, match="redirected to another server") as caught:
            stores.stat(f"{site.url}/m.bin")
        assert second.url in str(caught.value) and "SECRET" not in str(caught.value)
        with pytest.raises(AccessError, match="redirect does not lead to a web server"):
            stores.stat(f"{site.url}/far.bin")
        urls.configure_access(urls.Access(redirects=True, retry_timeout=1))
        assert stores.stat(f"{site.url}/m.bin").bytes == len(OLD)
        assert planning._of_servers([stores.stat(f"{site.url}/m.bin")]) == (
            f"served by {second.url}, not by the server named",
        )


def test_a_ring_of_redirects_ends(site: Web) -> None:
    site.moved = {"/a.bin": "/b.bin", "/b.bin": "/a.bin"}
    with pytest.raises(AccessError, match="redirects"):
        stores.stat(f"{site.url}/a.bin")


def test_a_password_does_not_go_along_to_another_server(site: Web, tmp_path: Path) -> None:
    with web_server(tmp_path) as second:
        urls.configure_access(urls.Access(redirects=True, retry_timeout=1))
        site.moved = {"/m.bin": f"{second.url}/m.bin"}
        (tmp_path / "m.bin").write_bytes(b"x")
        name = urls.redact_in(f"{site.url.replace('://', '://me:word@')}/m.bin")
        stores.stat(name)
        assert [("Authorization" in each.headers) for each in (site.rules.asked[-1], second.rules.asked[-1])] == [
            True,
            False,
        ]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[str]:
    """A server with a certificate that nobody has signed."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_errors_of_the_way_say_what_they_are(site: Web, secure: str) -> None:
    with pytest.raises(AccessError, match="its certificate is not accepted"):
        stores.stat(f"{secure}/m.bin")
    plain = f"{site.url.replace('http:', 'https:')}/m.bin"
    with pytest.raises(GgferryError, match="no secure connection") as caught:
        stores.stat(plain)
    assert caught.value.fault == "passing"
    for _ in range(2):  # the first attempt leaves nothing that the second could stumble over
        with pytest.raises(GgferryError, match="no secure connection"), web_requests.request("HEAD", plain, {}):
            pass
    closed = site.url.rpartition(":")[0] + ":1"
    with pytest.raises(GgferryError, match="connection refused") as caught:
        stores.stat(f"{closed}/m.bin")
    assert caught.value.fault == "passing"


# --- pages ---


def test_a_site_that_links_to_itself_ends(site: Web, tmp_path: Path) -> None:
    write(site.root / "m.bin", Llama())
    page = '<a href="a/">a</a> <a href="b/">b</a> <a href="m.bin">m</a> <a href="?C=N;O=D">by name</a>'
    site.pages = {"/": page, "/a/": page, "/b/": page}
    found = lines(site, tmp_path)
    assert found["m.bin"].verdict == "convert"
    assert {found[name].reason for name in ("a", "b")} == {"link loop in listing"}
    assert {found[name].verdict for name in ("a", "b")} == {"unsupported"}


def test_a_site_without_end_is_left_at_a_limit(site: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGES", 40)
    monkeypatch.setattr(pages, "DEPTH", 6)
    asked: list[str] = []

    class Endless(dict[str, str]):
        def __contains__(self, path: object) -> bool:
            return str(path).endswith("/")

        def __getitem__(self, path: str) -> str:
            asked.append(path)
            return f'{len(asked)} <a href="a/">a</a> <a href="b/">b</a>'

    site.pages = Endless()
    found = list(stores.listing(site.url))
    messages = [each.trouble["message"] for each in found if each.trouble]
    assert len(asked) <= 42 and messages == ["more than 40 pages below it"]
    monkeypatch.setattr(pages, "PAGES", 1000)
    assert {each.trouble["message"] for each in stores.listing(site.url) if each.trouble} == {
        "page is more than 6 links deep"
    }


def test_links_that_lead_out_end_no_plan(site: Web, tmp_path: Path) -> None:
    write(site.root / "in" / "m0.bin", Llama())
    site.pages["/in/"] = (
        '<a href="../../m2.bin">x</a> <a href="/secret/m1.bin">x</a> <a href="https://h.example/m3.bin">x</a>'
        '<a href="../">up</a> <a href="/about.html">about</a> <a href="m0.bin">m</a> <a href="mailto:a@b">mail</a>'
    )
    found = lines(site, tmp_path, "/in")
    assert {name: entry.verdict for name, entry in found.items()} == {
        "in/m0.bin": "convert",
        "m2.bin": "unsupported",
        "secret/m1.bin": "unsupported",
        "https://h.example/m3.bin": "unsupported",
    }
    assert found["m2.bin"].error["class"] == "OutsideLinkError"
    assert not any("secret" in each.key or "m2" in each.key for each in site.rules.asked)


def test_a_page_that_ends_early_is_no_shorter_page(site: Web, tmp_path: Path) -> None:
    (site.root / "m.bin").write_bytes(OLD)
    site.pages["/in/"] = "".join(f'<a href="/in/{i}.bin">x</a>' for i in range(100))
    site.rules.add("GET", "^in/?$", "cut")
    with pytest.raises(TransportError):
        list(stores.listing(f"{site.url}/in"))


def test_a_models_size_is_not_asked_with_head(site: Web) -> None:
    """Presigned addresses are signed for GET alone."""
    (site.root / "m.bin").write_bytes(OLD)
    site.signed = "X-Amz-Signature=abc%2Fdef&X-Amz-Date=1"
    name = urls.redact_in(f"{site.url}/m.bin?{site.signed}")
    found = stores.stat(name)
    assert found.bytes == len(OLD) and found.path == f"{site.url}/m.bin"
    assert web.fetch(found, 5, 10) == OLD[5:10]
    assert web.declared_checksum(found) is None


# --- whole runs ---


@pytest.mark.slow
def test_a_mixture_of_two_versions_is_never_published(site: Web, tmp_path: Path) -> None:
    """The attack that found it: Last-Modified only, replaced while it is read."""
    site.versions = "date"
    write(site.root / "m.bin", Llama(kind="F32", n_ff=8192, n_vocab=4096))
    assert (site.root / "m.bin").stat().st_size > 9 << 20
    path = tmp_path / "plan.jsonl"
    plan(site.url, path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    other = (site.root / "m.bin").read_bytes()[:-4] + bytes(4)

    def replace() -> None:
        (site.root / "m.bin").write_bytes(other)
        os.utime(site.root / "m.bin", (1_700_000_000, 1_700_000_000))

    site.rules.add("GET", "m.bin", replace, 8)
    command("apply", path, "-j", "1", "--patience", "1", code=1)
    (row,) = rows(f"{path}.ledger").values()
    assert row["state"] == "failed" and row["error"]["class"] == "ChangedError"
    assert not list((tmp_path / "out").rglob("*.gguf"))
