"""The queue on the page: seen in its order and changed by keyboard, as far as one may; in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from helpers.browser import check_access, chromium, look, reach, signed_in
from helpers.builders import Llama
from helpers.server import Server, made_token, serving, submitted

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that converts nothing, with four models that wait, two of them alice's."""
    for number in range(4):
        folder = tmp_path / "root" / ("alice" if number < 2 else "team")
        folder.mkdir(parents=True, exist_ok=True)
        Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1).write(folder / f"m{number}.bin")
    with serving(tmp_path / "data", "--root", tmp_path / "root", "--jobs", "0") as server:
        token = made_token(server.data, "alice", "submit")
        (tmp_path / "alice").write_text(token)
        submitted(server.client(token), tmp_path / "root" / "alice", verify="none")
        submitted(server.client(), tmp_path / "root" / "team", verify="none")
        yield server


def names(page: Page) -> list[str]:
    return page.locator("[data-queue] tbody th a").all_inner_texts()


def test_the_order_is_changed_by_keyboard(browser: Browser, server: Server, tmp_path: Path) -> None:
    for page in signed_in(browser, server):
        page.goto(f"{server.url}/activity")
        assert names(page) == ["m3.bin", "m2.bin", "m1.bin", "m0.bin"]
        check_access(page)
        look(page, "queue", tmp_path)
        reach(page, "tr:nth-child(4) button[name=move][value^=top]")
        page.keyboard.press("Enter")
        expect(page.locator("[data-queue] tbody th a").first).to_have_text("m0.bin")
        assert names(page) == ["m0.bin", "m3.bin", "m2.bin", "m1.bin"]
        expect(page.locator("[data-moved]")).to_have_text("m0.bin is number 1 of 4.")
        focused = page.evaluate(
            "document.activeElement.value.split(' ')[0] + document.activeElement.closest('tr').rowIndex"
        )
        assert focused == "down1", "the only thing that is left to do with it"
        page.keyboard.press("Enter")
        expect(page.locator("[data-queue] tbody th a").first).to_have_text("m3.bin")
        assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
        page.keyboard.press("Enter")
        expect(page.locator("[data-moved]")).to_have_text("m0.bin is number 3 of 4.")
        expect(page.locator("[data-queue] tbody th a").nth(2)).to_have_text("m0.bin")
        assert names(page) == ["m3.bin", "m2.bin", "m0.bin", "m1.bin"]
        check_access(page)
        page.reload()
        assert names(page) == ["m3.bin", "m2.bin", "m0.bin", "m1.bin"]


def test_what_somebody_may_not_move_has_no_buttons(browser: Browser, server: Server, tmp_path: Path) -> None:
    for token, buttons in (
        ((tmp_path / "alice").read_text(), 6),
        (made_token(server.data, "reader", "read"), 0),
    ):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{server.url}/?token={token}")
        page.goto(f"{server.url}/activity")
        expect(page.locator("[data-queue] tbody tr")).to_have_count(4)
        expect(page.locator("[data-queue] button")).to_have_count(buttons)
        check_access(page)
        if buttons:
            page.get_by_role("button", name="Move m1.bin up").click()
            expect(page.locator("[data-moved]")).to_contain_text("another token asked for")
            assert names(page) == ["m3.bin", "m2.bin", "m1.bin", "m0.bin"]
            check_access(page)
            look(page, "queue-refused", tmp_path)
        context.close()


def test_the_order_is_changed_without_javascript(browser: Browser, server: Server) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.link)
    page.goto(f"{server.url}/activity")
    page.get_by_role("button", name="Move m1.bin to the top").click()
    assert page.url.endswith("/activity#queue") and names(page)[0] == "m1.bin"
    context.close()
