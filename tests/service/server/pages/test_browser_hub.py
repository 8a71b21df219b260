"""A model of the Hub searched for, chosen and converted by keyboard alone; in headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from helpers.browser import check_access, chromium, look, reach, signed_in
from helpers.hub import REPO, served_hub
from helpers.server import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_a_model_of_the_hub_is_found_and_converted(browser: Browser, fixtures: Path, tmp_path: Path) -> None:
    with served_hub(tmp_path / "repo", tmp_path / "home") as (_, env):
        shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", tmp_path / "repo" / "old.bin")
        with serving(tmp_path / "data", "--root", "hf://", **env) as server:
            for page in signed_in(browser, server):
                page.goto(f"{server.url}/add")
                look(page, "add-with-the-hub", tmp_path)
                reach(page, "#hub")
                page.keyboard.type("llama")
                page.keyboard.press("Enter")
                page.wait_for_url("**/hub?q=llama")
                expect(page.locator("tbody tr")).to_have_count(3)
                expect(page.locator("tbody tr").first).to_contain_text("elsewhere/<b>llama</b>")
                check_access(page)
                look(page, "hub", tmp_path)
                reach(page, f'tbody th a[href*="{REPO}"]')
                page.keyboard.press("Enter")
                expect(page.get_by_role("heading", name=REPO)).to_be_visible()
                check_access(page)
                look(page, "hub-files", tmp_path)
                reach(page, "tbody td a")
                page.keyboard.press("Enter")
                expect(page.locator("#path")).to_have_value(f"hf://{REPO}/old.bin")
                reach(page, "#path")
                page.keyboard.press("Enter")
                page.wait_for_url("**/plans/*")
                reach(page, "form.bottom button.primary")
                page.keyboard.press("Enter")
                page.wait_for_url("**/models/*")
                expect(page.locator(".badge").first).to_have_text("proved", timeout=60_000)
                page.goto(f"{server.url}/hub?q=nothing+of+the+kind")
                expect(page.get_by_role("heading", name="No model has such a name")).to_be_visible()
                check_access(page)
                page.goto(f"{server.url}/hub?q=refused")
                expect(page.locator(".problem")).to_contain_text("does not accept this server's token")
                check_access(page)
                look(page, "hub-refused", tmp_path)


def test_without_a_root_there_the_page_has_the_field_alone(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        for page in signed_in(browser, server):
            page.goto(f"{server.url}/add")
            expect(page.get_by_label("Path or URL")).to_be_visible()
            expect(page.locator("#hub")).to_have_count(0)
            page.goto(f"{server.url}/hub?q=llama")
            expect(page.locator(".problem")).to_contain_text("--root hf://")
