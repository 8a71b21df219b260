"""A ladder of types compared with its source on a text, by keyboard alone; in headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from helpers.browser import check_access, chromium, look, reach, signed_in
from helpers.server import Server, ended, made_token, serving, submitted
from helpers.third_party_fixtures import FIXTURES, ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TYPES = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("quality")
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "llama_k256", folder / "archive" / "k256")
    with serving(folder / "data", "--root", folder / "archive") as server:
        yield server


def test_a_ladder_is_compared_on_a_text(browser: Browser, server: Server, tmp_path: Path) -> None:
    client = server.client()
    (job,) = submitted(client, server.data.parent / "archive" / "k256", verify="fast", outtype=",".join(TYPES))
    assert ended(client, job, 120)["state"] == "done"
    (tmp_path / "text.txt").write_text((ROOT / "README.md").read_text()[:8000])
    for page in signed_in(browser, server):
        page.goto(f"{server.url}/models/{job}")
        reach(page, 'a[href$="/quality"]')
        page.keyboard.press("Enter")
        page.wait_for_url("**/quality")
        check_access(page)
        look(page, "quality-form", tmp_path)
        reach(page, "#q-text")
        page.keyboard.type("too short")
        texts = page.locator('section[aria-labelledby^="text-"]')
        before = texts.count()
        reach(page, "form.change button.primary")
        page.keyboard.press("Enter")
        expect(texts).to_have_count(before + 1, timeout=20_000)
        expect(page.locator("[data-reload]")).to_have_count(0, timeout=60_000)
        expect(texts.first.locator(".problem")).to_contain_text("shorter than one chunk", timeout=60_000)
        check_access(page)

        reach(page, "#q-file")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(str(tmp_path / "text.txt"))
        expect(page.locator("#q-text")).to_have_value((tmp_path / "text.txt").read_text())
        reach(page, "#q-context")
        page.keyboard.type("64")
        reach(page, "#q-chunks")
        page.keyboard.press("Control+a")
        page.keyboard.type("4")
        page.keyboard.press("Enter")
        rows = page.locator("section").first.locator("tbody tr")
        expect(rows).to_have_count(len(TYPES) + 1, timeout=120_000)
        expect(page.locator(".plot svg circle")).to_have_count(len(TYPES), timeout=30_000)
        figures = client.get(f"/models/{job}/quality").json()[0]["outputs"]
        for number, each in enumerate(figures, 1):
            expect(rows.nth(number)).to_contain_text(f"{each['perplexity']:.4g}")
        assert figures[0]["kl_divergence"] < figures[-1]["kl_divergence"]
        check_access(page)
        look(page, "quality", tmp_path)

    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/?token={made_token(server.data, 'reader', 'read')}")
    page.goto(f"{server.url}/models/{job}/quality")
    expect(page.locator("section").first.locator("tbody tr")).to_have_count(len(TYPES) + 1)
    expect(page.locator("#q-text")).to_have_count(0)
    context.close()
