"""Administration and sign-in by OpenID Connect as a person has them, in headless Chromium: `make browser`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from helpers.openid_provider import CLIENT, SECRET, openid_provider
from helpers.server import Server, serving
from helpers.third_party_fixtures import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = os.environ.get("GGFERRY_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
AXE = ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
SIZES = ({"width": 390, "height": 844}, {"width": 1280, "height": 900})
SHOTS = os.environ.get("GGFERRY_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("admin") / "data") as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(server.link)
    yield page
    context.close()
    assert not faults


TOO_WIDE = """() => {
    const width = document.documentElement.clientWidth;
    const ends = each => each.getBoundingClientRect().right;
    return document.documentElement.scrollWidth <= width ? [] : [...document.querySelectorAll("*")]
        .filter(each => !each.closest(".scroll") && ends(each) > width).map(each => each.outerHTML.slice(0, 80));
}"""
"""The elements that make a page wider than its window."""


def examine(page: Page, name: str) -> None:
    """Nothing is wider than the page, and axe finds nothing, at both widths, light and dark."""
    for size in SIZES:
        for scheme in ("light", "dark"):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert page.evaluate(TOO_WIDE) == [], (name, size)
            page.evaluate(AXE.read_text())
            found = page.evaluate(
                "axe.run().then(result => result.violations.map(each => [each.id, each.nodes[0].html]))"
            )
            assert found == [], (name, size, scheme)
            if SHOTS:
                page.screenshot(path=Path(SHOTS) / f"{name}-{size['width']}-{scheme}.png", full_page=True)


def test_a_token_is_made_and_ended_by_keyboard(page: Page) -> None:
    page.get_by_role("link", name="Tokens").focus()
    page.keyboard.press("Enter")
    page.get_by_label("What it is for").focus()
    page.keyboard.type("nightly build")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # submit
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    made = page.get_by_label("Token", exact=True)
    expect(made).to_have_value(re.compile("^ggf_"))
    examine(page, "tokens-made")
    page.goto(page.url)
    expect(page.get_by_label("Token", exact=True)).to_have_count(0)
    row = page.get_by_role("row", name="nightly build")
    expect(row).to_contain_text("submit")
    examine(page, "tokens")
    row.get_by_role("button", name="Revoke nightly build").press("Enter")
    expect(page.get_by_role("row", name="nightly build")).to_have_count(0)
    page.get_by_role("link", name="Audit log").press("Enter")
    expect(page.get_by_role("row", name="nightly build")).to_have_count(1)
    examine(page, "audit")


def test_a_person_comes_in_by_the_provider_and_stays(browser: Browser, tmp_path: Path) -> None:
    """The provider is another site, so what it leads to gets no SameSite=Strict cookie: a page of ours leads on."""
    with openid_provider() as provider:
        wanted = ("--oidc-issuer", provider.url, "--oidc-client", CLIENT, "--oidc-secret", "env:GGFERRY_OIDC")
        with serving(tmp_path / "data", *wanted, "--oidc-scope", "*=read", GGFERRY_OIDC=SECRET) as server:
            context = browser.new_context()
            page = context.new_page()
            own = f"http://localhost:{server.port}"
            page.goto(own)
            examine(page, "sign-in")
            page.get_by_role("link", name="Sign in with 127.0.0.1").click()
            page.wait_for_url(f"{own}/")
            expect(page.get_by_role("heading", name="No models yet")).to_be_visible()
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("link", name="Sign out of 127.0.0.1, too")).to_be_visible()
            examine(page, "signed-out")
            page.goto(own)
            assert page.url == f"{own}/login"
            context.close()
