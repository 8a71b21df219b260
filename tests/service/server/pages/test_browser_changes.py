"""What a team does on the page: options, uploads of one name, selection, deletion, folders; in headless Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from helpers.browser import check_access, chromium, drop, look, signed_in, small_pieces
from helpers.builders import Llama
from helpers.server import Server, ended, made_token, planned, serving, submitted

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    """A server whose root has a quantized model, some of float16, and one without its vocabulary."""
    folder = tmp_path_factory.mktemp("changes")
    root = folder / "archive"
    (root / "alice").mkdir(parents=True)
    shutil.copy(fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin", root / "old.bin")
    for number in range(4):
        Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1).write(root / "alice" / f"m{number}.bin")
    with serving(folder / "data", "--root", root) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    yield from signed_in(browser, server)


def test_two_files_of_one_name_and_size_are_two_uploads(page: Page, server: Server, fixtures: Path) -> None:
    """The first is left after a piece; the second, of other bytes, is sent from its beginning."""
    one = (fixtures / "legacy-llama" / "ggjt1-0.1.25" / "f16.bin").read_bytes()
    other = one[: len(one) // 8] + bytes([one[len(one) // 8] ^ 1]) + one[len(one) // 8 + 1 :]
    first = page.context.new_page()
    small_pieces(first)
    sent: list[str] = []

    def send(route: Any) -> None:
        sent.append(route.request.headers["content-range"])
        route.continue_() if len(sent) == 1 else route.abort()

    first.route(re.compile("/api/v1/uploads/.*/files/"), send)
    first.goto(page.url + "add")
    drop(first, {"model.bin": one})
    expect(first.locator(".uploads progress").first).to_have_js_property("value", 512 << 10)
    first.close()
    small_pieces(page)
    sent.clear()
    page.on("request", lambda request: sent.append(request.headers.get("content-range", "")))
    page.goto(page.url + "add")
    drop(page, {"model.bin": other})
    page.wait_for_url("**/plans/*")
    assert next(filter(None, sent)).startswith("bytes 0-")
    (accepted,) = [each for each in server.client().get("/uploads").json() if each["state"] == "accepted"]
    kept = server.data / "uploads" / accepted["id"] / "model.bin"
    assert kept.read_bytes() == other


def test_uploads_are_listed_with_their_digests_and_removed(page: Page, server: Server, tmp_path: Path) -> None:
    data = (server.data.parent / "archive" / "alice" / "m3.bin").read_bytes()
    page.goto(page.url + "add")
    drop(page, {"listed.bin": data})
    page.wait_for_url("**/plans/*")
    page.goto(f"{server.url}/add")
    row = page.locator(".uploads > li", has_text="listed.bin")
    row.get_by_text("SHA-256 of 1 file").click()
    import hashlib

    expect(row).to_contain_text(hashlib.sha256(data).hexdigest())
    check_access(page)
    look(page, "add-with-uploads", tmp_path)
    row.get_by_role("button", name="Plan listed.bin").click()
    page.wait_for_url("**/plans/*")
    page.goto(f"{server.url}/add")
    page.locator(".uploads > li", has_text="listed.bin").get_by_role("button", name="Remove").click()
    expect(page.locator(".uploads > li", has_text="listed.bin")).to_have_count(0)


def test_options_are_chosen_and_changed_on_the_plan(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_label("Path or URL").fill(str(server.data.parent / "archive" / "alice" / "m0.bin"))
    page.get_by_text("All options").click()
    page.get_by_label("Model name").fill("Renamed <b>by</b> a form")
    page.get_by_label("Proof").select_option("none")
    check_access(page)
    look(page, "add-options", tmp_path)
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/plans/*")
    first = page.url
    page.get_by_text("Change the options").click()
    expect(page.get_by_label("Model name")).to_have_value("Renamed <b>by</b> a form")
    page.get_by_label("Type of the output").select_option("q8_0")
    check_access(page)
    look(page, "plan-options", tmp_path)
    page.get_by_role("button", name="Plan with these").click()
    page.wait_for_url(lambda url: url != first)
    expect(page.locator(".lines ins")).to_contain_text("Q8_0")
    page.get_by_role("button", name="Compare the sizes of").click()
    expect(page.get_by_role("heading", name="Expected size by type")).to_be_visible()
    expect(page.locator(".ladder li")).to_have_count(6)
    check_access(page)
    look(page, "plan-ladder", tmp_path)
    for name in ("q6_k", "q5_k_m", "q4_k_m", "q3_k_m"):
        page.get_by_label(name, exact=True).uncheck()
    page.get_by_role("button", name="Plan those that are selected").click()
    expect(page.locator(".ladder li")).to_have_count(2)
    page.get_by_role("button", name="Convert 1 model").click()
    page.wait_for_url("**/models/*")
    expect(page.locator(".badge").first).to_have_text("converted, not proved", timeout=60_000)
    expect(page.get_by_text("Asked for by the link printed at the start")).to_be_visible()
    look(page, "model-of-a-form", tmp_path)


def test_a_model_offers_what_its_error_needs(page: Page, server: Server, tmp_path: Path, fixtures: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_label("Path or URL").fill(str(server.data.parent / "archive" / "old.bin"))
    page.get_by_label("Type of the output").select_option("q5_0")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/plans/*")
    expect(page.locator(".problem").first).to_contain_text("“Allow requantize”")
    expect(page.get_by_role("heading", name="What it needs")).to_be_visible()
    check_access(page)
    look(page, "plan-needs", tmp_path)
    page.get_by_label("Allow requantize").first.check()
    page.get_by_role("button", name="Plan again with this").click()
    expect(page.get_by_role("button", name="Convert 1 model")).to_be_enabled()


def test_a_file_for_an_option_is_sent_where_it_is_named(page: Page, server: Server, fixtures: Path) -> None:
    vocabulary = next(fixtures.glob("tokenizers/*/tokenizer.json"))
    page.goto(page.url + "add")
    page.get_by_text("All options").click()
    page.locator('input[data-upload-into="tokenizer"]').set_input_files(str(vocabulary))
    expect(page.locator("#tokenizer")).to_have_value(re.compile("^upload:[0-9a-f]{24}$"), timeout=20_000)
    page.reload()
    expect(page.locator(".uploads > li", has_text="tokenizer.json")).to_contain_text("for an option")


def test_models_are_selected_and_deleted(page: Page, server: Server, tmp_path: Path) -> None:
    alice = server.client(made_token(server.data, "alice", "submit"))
    jobs = submitted(alice, server.data.parent / "archive" / "alice", verify="none", outtype="bf16")
    outputs = [Path(ended(alice, job)["output"]) for job in jobs]
    page.goto(f"{server.url}/?q=alice")
    row = page.get_by_role("row", name=re.compile("m1.bin")).first
    expect(row).to_contain_text("alice")
    check_access(page)
    look(page, "archive-selection", tmp_path)
    page.get_by_label("Select all on this page").check()
    assert page.locator('input[name="job"]:checked').count() >= len(jobs)
    page.get_by_label("Select all on this page").uncheck()
    for name in ("m1.bin", "m2.bin"):
        page.get_by_role("row", name=re.compile(name)).filter(has_text="converted").first.get_by_role(
            "checkbox"
        ).check()
    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_role("heading", name="Delete 2 models?")).to_be_visible()
    check_access(page)
    look(page, "confirm-delete", tmp_path)
    page.get_by_role("button", name="Delete 2 models").click()
    page.wait_for_url(f"{server.url}/")
    assert sum(output.exists() for output in outputs) == len(outputs) - 2
    left = next(job for job, output in zip(jobs, outputs, strict=True) if output.exists())
    page.goto(f"{server.url}/models/{left}")
    page.get_by_role("link", name="Delete files …").click()
    page.get_by_role("button", name="Delete its files").click()
    expect(page.locator(".badge").first).to_have_text("files removed")
    expect(page.get_by_role("link", name=re.compile("^Download"))).to_have_count(0)
    check_access(page)
    look(page, "model-expired", tmp_path)
    page.get_by_role("button", name="Convert again").click()
    expect(page.locator(".badge").first).to_have_text("converted, not proved", timeout=60_000)


def test_what_belongs_to_another_is_not_deleted(browser: Browser, server: Server, tmp_path: Path) -> None:
    bob = made_token(server.data, "bob", "submit")
    carol = server.client(made_token(server.data, "carol", "submit"))
    (job,) = submitted(carol, server.data.parent / "archive" / "alice" / "m0.bin", verify="none", outtype="f32")
    ended(carol, job)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/?token={bob}")
    page.goto(f"{server.url}/?q=m0.bin")
    page.locator(f'input[value="{job}"]').check()
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("button", name="Delete 1 model").click()
    expect(page.get_by_role("heading", name="0 models deleted")).to_be_visible()
    expect(page.locator(".note")).to_contain_text("carol")
    check_access(page)
    look(page, "not-deleted", tmp_path)
    page.goto(f"{server.url}/models/{job}")
    expect(page.get_by_role("link", name="Delete …")).to_have_count(0)
    context.close()


def test_the_folders_of_a_root(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_role("link", name=str(server.data.parent / "archive")).click()
    page.get_by_role("link", name="alice/").click()
    check_access(page)
    look(page, "browse", tmp_path)
    page.get_by_role("link", name="Choose m2.bin").click()
    expect(page.get_by_label("Path or URL")).to_have_value(re.compile("alice/m2.bin$"))


def test_all_but_uploads_works_without_javascript(browser: Browser, server: Server) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.link)
    page.goto(f"{server.url}/add")
    page.get_by_label("Path or URL").fill(str(server.data.parent / "archive" / "alice" / "m3.bin"))
    page.get_by_label("Proof").select_option("none")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Convert 1 model").click()
    name = page.get_by_role("heading", level=1).inner_text()
    page.goto(f"{server.url}/?q=m3.bin")
    page.get_by_role("row", name=re.compile("m3.bin")).first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_role("heading", name="Delete 1 model?")).to_be_visible()
    assert name == "m3.bin"
    context.close()


def test_the_keyboard_reaches_the_selection(page: Page, server: Server) -> None:
    planned(server.client(), server.data.parent / "archive" / "old.bin")
    page.goto(f"{server.url}/?q=old.bin")
    page.get_by_label("Search in names and folders").focus()
    for _ in range(25):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "job":
            break
    page.keyboard.press("Space")
    assert page.locator('input[name="job"]:checked').count() == 1
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_two_models_are_compared_and_tensors_looked_into(page: Page, server: Server, tmp_path: Path) -> None:
    client = server.client()
    source = server.data.parent / "archive" / "old.bin"
    for outtype in ("keep", "f16"):
        (job,) = submitted(client, source, verify="none", outtype=outtype)
        ended(client, job)
    page.goto(f"{server.url}/?q=old.bin&state=done")
    boxes = page.locator('input[name="job"]')
    expect(boxes).to_have_count(2)
    boxes.nth(0).check()
    page.get_by_role("button", name="Compare two").click()
    expect(page.locator(".problem")).to_contain_text("two models are compared")
    page.go_back()
    for number in (0, 1):
        boxes.nth(number).check()
    page.get_by_role("button", name="Compare two").click()
    expect(page.get_by_role("heading", name="How two models differ")).to_be_visible()
    expect(page.get_by_role("rowheader", name="general.file_type")).to_be_visible()
    check_access(page)
    look(page, "difference", tmp_path)
    page.goto(f"{server.url}/models/{job}")
    page.get_by_role("link", name="token_embd.weight").click()
    expect(page.locator("svg.chart rect")).to_have_count(64)
    check_access(page)
    look(page, "histogram", tmp_path)


def test_keys_are_changed_on_the_page(page: Page, server: Server, tmp_path: Path) -> None:
    client = server.client()
    (job,) = submitted(client, server.data.parent / "archive" / "old.bin", verify="none")
    ended(client, job)
    page.goto(f"{server.url}/models/{job}")
    page.get_by_text("Change its keys").click()
    check_access(page)
    look(page, "model-keys", tmp_path)
    page.get_by_label("Set").fill("general.name=Another name\ngeneral.author=Me")
    page.get_by_role("button", name="Make the new file").click()
    page.wait_for_url(lambda url: job not in url)
    expect(page.get_by_text("Asked for by the link printed at the start")).to_be_visible()
    edited = page.url.rpartition("/")[2]
    found = client.get(f"/models/{job}/difference", params={"other": edited}).json()
    assert {each["key"]: each["second"] for each in found["keys"]}.items() >= {"general.author": "Me:str"}.items()
    assert not found["tensors"]


def test_a_ladder_is_seen_as_a_picture(page: Page, server: Server, tmp_path: Path) -> None:
    client = server.client()
    (job,) = submitted(client, server.data.parent / "archive" / "alice" / "m2.bin", outtype="f16,q8_0,q5_0,q4_0")
    assert ended(client, job, 120)["state"] == "done"
    page.goto(f"{server.url}/models/{job}")
    expect(page.locator(".plot svg circle")).to_have_count(4)
    check_access(page)
    look(page, "model-ladder", tmp_path)
