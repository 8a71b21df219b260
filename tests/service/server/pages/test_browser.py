"""The page as a person has it, in headless Chromium: `make browser`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from ggferry.service.records.ledger import Ledger
from helpers.browser import WATCH, check_access, chromium, drop, look, signed_in, small_pieces
from helpers.page_samples import NASTY
from helpers.server import Server, serving, start, submitted

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MODELS = 2000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    """A server with one root, which holds a good model and a damaged one."""
    folder = tmp_path_factory.mktemp("pages")
    root = folder / "archive" / "llama-7b"
    root.mkdir(parents=True)
    old = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    shutil.copy(old, root / "old.bin")
    (root / "cut.bin").write_bytes(old.read_bytes()[:-5000])
    with serving(folder / "data", "--root", folder / "archive") as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    yield from signed_in(browser, server)


# --- the road of a file --------------------------------------------------------------------------------------------


def test_a_file_is_dropped_and_comes_back_proved(page: Page, fixtures: Path, tmp_path: Path) -> None:
    old = (fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin").read_bytes()
    page.goto(page.url + "add")
    drop(page, {"alpaca-native-7B.bin": old})
    page.wait_for_url("**/plans/*")
    expect(page.get_by_role("heading", name="What would happen")).to_be_visible()
    expect(page.locator(".lines del")).to_contain_text("GGJT v1, llama, Q4_0_V1 ×16, F32 ×5")
    page.get_by_text("Every tensor and key").click()
    expect(page.get_by_role("rowheader", name="blk.0.attn_q.weight")).to_be_visible()
    check_access(page)
    look(page, "plan", tmp_path)

    page.get_by_role("button", name="Convert 1 model").click()
    page.wait_for_url("**/models/*")
    page.evaluate(WATCH)
    look(page, "model-at-work", tmp_path)
    expect(page.locator(".badge").first).to_have_text("proved", timeout=60_000)
    seen = page.evaluate("window.seen")
    assert len({phase for phase, _ in seen if phase}) >= 2, seen
    assert [rate for _, rate in seen if rate and rate.endswith("/s")], seen
    assert page.evaluate("sessionStorage.getItem('left')") is None, "the page was loaded again"

    expect(page.get_by_role("heading", name="Proof", exact=True)).to_be_visible()
    expect(page.get_by_text("40 of 40")).to_be_visible()
    shown = page.locator("[data-sha256]").inner_text(timeout=20_000)
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("^Download")).click()
    data = download.value.path().read_bytes()
    with page.expect_download() as download:
        page.get_by_role("link", name="Receipt (JSON)").click()
    (file,) = json.loads(download.value.path().read_text())["output"]["files"]
    assert hashlib.sha256(data).hexdigest() == shown == file["sha256"]
    assert data[:4] == b"GGUF" and len(data) == file["bytes"]

    page.get_by_label("Text", exact=True).fill("The cat sat <b>on</b> the mat.")
    page.get_by_role("button", name="Tokenize").click()
    expect(page.locator(".tokens li").nth(3)).to_be_visible()
    assert re.fullmatch(r"\d+ tokens", page.locator("[data-count]").inner_text())
    check_access(page)
    look(page, "model", tmp_path)

    page.goto("/".join(page.url.split("/")[:3]) + "/activity")
    expect(page.get_by_role("link", name="alpaca-native-7B.bin")).to_be_visible()
    check_access(page)
    look(page, "activity", tmp_path)


def test_an_upload_that_was_left_goes_on_when_its_file_is_dropped_again(page: Page, fixtures: Path) -> None:
    old = (fixtures / "legacy-llama" / "ggjt1-0.1.25" / "f16.bin").read_bytes()
    first = page.context.new_page()
    small_pieces(first)
    sent: list[str] = []

    def send(route: Any) -> None:
        sent.append(route.request.headers["content-range"])
        if len(sent) == 1:
            route.continue_()
        else:
            route.abort()

    first.route(re.compile("/api/v1/uploads/.*/files/"), send)
    first.goto(page.url + "add")
    drop(first, {"left.bin": old})
    expect(first.locator(".uploads progress").first).to_have_js_property("value", 512 << 10)
    first.close()
    page.on("request", lambda request: sent.append(request.headers.get("content-range", "")))
    sent.clear()
    page.goto(page.url + "add")
    expect(page.get_by_text("Drop the same files again to go on.")).to_be_visible()
    drop(page, {"left.bin": old})
    page.wait_for_url("**/plans/*")
    (rest,) = [re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", each) for each in sent if each]
    assert rest, sent
    # The first piece was acknowledged; of the second any part may have arrived before the page was closed.
    start, last, size = map(int, rest.groups())
    assert 512 << 10 <= start < size == last + 1 == len(old)


def test_the_whole_run_is_seen(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/activity")
    page.evaluate(WATCH.replace('"[data-phase]"', "'[data-progress=\"run\"] [data-bytes]'"))
    (job,) = submitted(server.client(), server.data.parent / "archive" / "llama-7b" / "old.bin", outtype="f16")
    expect(page.locator(f'tbody a[href="/models/{job}"]')).to_be_visible(timeout=60_000)
    seen = page.evaluate("window.seen")
    assert [run for run, _ in seen if run and " of " in run] and [rate for _, rate in seen if rate], seen
    assert page.evaluate("sessionStorage.getItem('left')") is None


def test_an_upload_goes_on_where_the_connection_broke(page: Page, fixtures: Path) -> None:
    """The second request for a piece never arrives; the third begins where the server has what came."""
    old = (fixtures / "legacy-llama" / "ggjt1-0.1.25" / "f16.bin").read_bytes()
    small_pieces(page)
    pieces: list[str] = []

    def send(route: Any) -> None:
        pieces.append(route.request.headers["content-range"])
        if len(pieces) == 2:
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(re.compile("/api/v1/uploads/.*/files/"), send)
    page.goto(page.url + "add")
    drop(page, {"old.bin": old})
    page.wait_for_url("**/plans/*")
    assert pieces[1] == pieces[2] and len(pieces) == -(-len(old) // (512 << 10)) + 1
    expect(page.get_by_role("button", name="Convert 1 model")).to_be_enabled()


def test_what_is_no_model_is_refused_with_a_way_out(page: Page, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    drop(page, {"<img src=x onerror=alert(1)>.bin": b"nothing that anybody knows" * 100})
    box = page.locator(".problem")
    expect(box).to_contain_text("What to do", timeout=20_000)
    assert page.locator("main img").count() == 0
    check_access(page)
    look(page, "upload-refused", tmp_path)
    page.reload()
    expect(page.locator(".problem")).to_contain_text("What to do")


def test_a_folder_is_planned_and_its_damaged_file_named(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_label("Path or URL").fill(str(server.data.parent / "archive"))
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/plans/*")
    expect(page.get_by_role("button", name="Convert 1 model")).to_be_enabled()
    expect(page.locator(".problem")).to_contain_text("cut.bin")
    check_access(page)
    look(page, "plan-of-a-folder", tmp_path)
    page.goto(f"{server.url}/?state=corrupt")
    page.get_by_role("link", name="cut.bin").click()
    expect(page.locator(".problem").first).to_contain_text("What to do")
    check_access(page)
    look(page, "model-damaged", tmp_path)


def test_several_types_are_made_of_one_reading(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_label("Path or URL").fill(str(server.data.parent / "archive" / "llama-7b" / "old.bin"))
    page.get_by_label("Type of the output").select_option("f16")
    page.get_by_label("More output types").fill("bf16, bf16")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".problem").first).to_contain_text("each once")
    assert page.get_by_label("More output types").input_value() == "bf16, bf16"
    page.get_by_label("More output types").fill(" bf16, f32")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/plans/*")
    expect(page.locator(".lines ins")).to_have_count(3)
    page.get_by_text("Every tensor and key").click()
    expect(page.get_by_role("heading", name="f32", exact=True)).to_be_visible()
    check_access(page)
    look(page, "plan-of-several-types", tmp_path)
    page.get_by_role("button", name="Convert 1 model").click()
    page.wait_for_url("**/models/*")
    expect(page.locator(".badge").first).to_have_text("proved", timeout=60_000)
    expect(page.get_by_role("link", name=re.compile("^Download"))).to_have_count(3)
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON of bf16").click()
    assert json.loads(download.value.path().read_text())["options"]["outtype"] == "bf16"
    check_access(page)
    look(page, "model-of-several-types", tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "relative", "ftp://host/x"])
def test_what_may_not_be_read_is_said_where_it_was_asked(page: Page, path: str, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_label("Path or URL").fill(path)
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".problem").first).to_be_visible()
    assert page.get_by_label("Path or URL").input_value() == path
    look(page, "add-refused", tmp_path)


def test_a_page_outlives_its_server(browser: Browser, fixtures: Path, tmp_path: Path) -> None:
    """The first server converts nothing and ends; the second, at the same address, does. The page is never reloaded."""
    (tmp_path / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin", tmp_path / "root" / "old.bin")
    with serving(tmp_path / "data", "--root", tmp_path / "root", "--jobs", "0") as first:
        pages = signed_in(browser, first)
        page = next(pages)
        client = first.client()
        (job,) = submitted(client, tmp_path / "root" / "old.bin", verify="fast")
        page.goto(f"{first.url}/models/{job}")
        expect(page.locator(".badge").first).to_have_text("waiting")
        page.evaluate(WATCH)
        port = first.port
    expect(page.locator(".offline")).to_be_visible(timeout=20_000)
    second = start(tmp_path / "data", "--root", tmp_path / "root", port=port)
    try:
        expect(page.locator(".badge").first).to_have_text("proved", timeout=60_000)
        expect(page.locator(".offline")).to_be_hidden()
        expect(page.get_by_role("heading", name="Proof", exact=True)).to_be_visible()
        assert page.evaluate("sessionStorage.getItem('left')") is None
    finally:
        pages.close()
        second.stop()


# --- every page ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose ledger has two thousand models of `ggferry apply`, in every state."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "data").mkdir(mode=0o700)
    ledger = Ledger(str(folder / "data" / "ledger"))
    ledger.register("0" * 16, [line(number) for number in range(MODELS)])
    ledger.close()
    with serving(folder / "data", "--jobs", "0") as server:
        yield server


def line(number: int) -> dict[str, Any]:
    """A job as a plan's line, of a name that tries the page."""
    states = ("queued", "skipped", "quarantined", "failed")
    name = {7: NASTY.replace("/", "-"), 11: "a-name-" + "of-many-words-" * 14 + ".bin", 13: "x" * 200}.get(number)
    source = f"/archive/{2020 + number % 5}/team {number % 7}/{name or f'model-{number:04}.bin'}"
    kind = (("ggjt", 1, "llama"), ("ggml", None, "gpt2"), ("gguf", 3, "qwen2"), ("safetensors", None, "mistral"))
    container, version, architecture = kind[number % 4]
    entry = {
        "source": source,
        "verdict": "convert",
        "container": container,
        "version": version,
        "architecture": architecture,
        "era": "30 March – 12 May 2023 (llama.cpp 78ca9838e..b9fd7eee5)",
        "types": "Q4_0 ×225, F32 ×65",
        "bytes_in": (number + 1) * 7_654_321,
        "bytes_out": (number + 1) * 6_543_210,
        "output": f"/out/{number}.gguf",
        "recipe": {},
    }
    state = states[number % 4]
    error = {
        "class": "TruncatedError",
        "code": "truncated_error",
        "message": "ends before its last tensor does",
        "offset": 4096,
        "hint": "fetch it again",
        "fault": "file",
    }
    return {
        "id": f"{number:032x}",
        "source": source,
        "entry": entry,
        "state": state,
        "error": error if state in ("failed", "quarantined") else None,
    }


def test_two_thousand_models(browser: Browser, many: Server, tmp_path: Path) -> None:
    for page in signed_in(browser, many):
        expect(page.get_by_text("1–50 of 2,000 models")).to_be_visible()
        check_access(page)
        look(page, "archive-2000", tmp_path)
        numbers = page.locator("table.models tbody td.n").evaluate_all(
            "cells => cells.map(c => getComputedStyle(c).textAlign)"
        )
        assert set(numbers) == {"right"}

        page.get_by_role("link", name="Next →").click()
        expect(page.get_by_text("51–100 of 2,000 models")).to_be_visible()
        page.get_by_role("link", name="Before").click()
        page.get_by_role("link", name="Before").click()
        expect(page.get_by_role("columnheader", name="Before")).to_have_attribute("aria-sort", "descending")
        assert page.locator("tbody th").first.inner_text().startswith("model-1999.bin")

        page.get_by_role("link", name=re.compile("^failed")).click()
        page.get_by_label("Family").select_option("mistral")
        expect(page.get_by_text("1–50 of 500 models")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("team 2021/team")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=team**")
        shown = page.locator("tbody th").all_inner_texts()
        assert shown and all("2021/team" in each for each in shown)
        check_access(page)
        look(page, "archive-filtered", tmp_path)

        page.get_by_label("Search in names and folders").fill("no such model")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Nothing matches")).to_be_visible()
        look(page, "archive-nothing", tmp_path)


def test_the_tree(browser: Browser, many: Server, tmp_path: Path) -> None:
    for page in signed_in(browser, many):
        page.get_by_role("link", name="Tree").click()
        for name in ("/archive/", "2022/", "team 3/"):
            page.locator("summary", has_text=name).first.focus()
            page.keyboard.press("Enter")
        expect(page.locator(".leaf").first).to_be_visible()
        assert page.locator(".leaf").count() == 50 and page.get_by_text("Show all 57 models here").count() == 1
        check_access(page)
        look(page, "tree", tmp_path)


def test_pages_without_anything_and_with_errors(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        for page in signed_in(browser, server):
            for address, name, words in (
                ("/", "archive-empty", "No models yet"),
                ("/activity", "activity-empty", "Nothing at work"),
                ("/add", "add", "Drop files here"),
                ("/models/" + "0" * 32, "no-such-model", "no such model"),
                ("/plans/" + "0" * 16, "no-such-plan", "no such plan"),
                ("/nowhere", "no-such-page", "Error 404"),
            ):
                page.goto(server.url + address)
                expect(page.get_by_text(words).first).to_be_visible()
                check_access(page)
                look(page, name, tmp_path)
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/login*")
            check_access(page)
            page.get_by_label("Token").fill("wrong")
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator(".problem")).to_contain_text("wrong, revoked or expired")
            look(page, "sign-in", tmp_path)
            page.get_by_label("Token").fill(server.token)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("heading", name="Archive")).to_be_visible()


def test_a_session_that_ended_leads_to_the_sign_in(browser: Browser, many: Server) -> None:
    pages = signed_in(browser, many)
    page = next(pages)
    page.get_by_role("link", name="Tree").click()
    page.context.clear_cookies()
    page.locator("summary").first.click()
    page.wait_for_url("**/login")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    pages.close()


def test_the_palette_is_chosen_and_kept(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    button = page.get_by_role("button", name=re.compile("^Theme"))
    button.click()
    assert ground() == light
    page.reload()
    assert ground() == light and "light" in button.inner_text()
    button.click()
    page.emulate_media(color_scheme="light")
    assert ground() == dark


def test_everything_is_reached_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none", seen
    assert {"ggferry", "Archive", "Add models", "Sign out"} <= set(seen)
