"""A browser for tests of the page: signed in, with what looks for faults, and pictures for somebody to look at."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from helpers.server import Server
from helpers.third_party_fixtures import ROOT

CHROMIUM = os.environ.get("GGFERRY_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
AXE = ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
SHOTS = os.environ.get("GGFERRY_SCREENSHOTS")
"""Where the pictures are put for somebody to look at; a temporary folder without it."""


WATCH = """() => {
    sessionStorage.clear();
    window.addEventListener("beforeunload", () => sessionStorage.setItem("left", "1"));
    window.seen = [];
    const text = name => document.querySelector(name)?.textContent;
    new MutationObserver(() => window.seen.push([text("[data-phase]"), text("[data-rate]")]))
        .observe(document.body, {subtree: true, childList: true});
}"""
"""Notes what the meters of a page say, and whether it was left."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def signed_in(browser: Browser, server: Server) -> Generator[Page, None, None]:
    """A page that follows the printed link. Nothing may go wrong in its console, whatever the test does."""
    context = browser.new_context(viewport=DESK, reduced_motion="reduce", accept_downloads=True)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    # Without a listener from the start, half of all choosers open before Playwright asks Chromium to hand them over.
    page.on("filechooser", lambda chooser: None)
    page.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    page.goto(server.link)
    yield page
    context.close()
    assert not faults, faults


def is_fault(message: ConsoleMessage) -> bool:
    """Whether a message is more than the notice of an answer that is an error."""
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")


def drop(page: Page, files: dict[str, bytes]) -> None:
    """Drop files, as a file manager does."""
    given = [(name, base64.b64encode(data).decode()) for name, data in files.items()]
    script = """files => { const data = new DataTransfer();
        for (const [name, text] of files)
            data.items.add(new File([Uint8Array.from(atob(text), each => each.charCodeAt(0))], name));
        return data; }"""
    data = page.evaluate_handle(script, given)
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("[data-drop]", event, {"dataTransfer": data})


def look(page: Page, name: str, folder: Path) -> None:
    """Take a picture of the whole page: light, dark and on a phone; nothing may be wider than the page."""
    folder = Path(SHOTS or folder)
    folder.mkdir(exist_ok=True, parents=True)
    for kind, size, scheme in (("light", DESK, "light"), ("dark", DESK, "dark"), ("phone", PHONE, "light")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide ({kind})"
        assert not overlaps(page), (name, kind)
        page.screenshot(path=folder / f"{name}-{kind}.png", full_page=True)
    page.set_viewport_size(DESK)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="light")


def overlaps(page: Page) -> list[str]:
    """Texts that stand on one another: boxes of elements without children, in the document's flow."""
    script = """() => {
        const seen = [...document.querySelectorAll("main *, header *")].filter(each =>
            !each.closest("svg, .sr, datalist") && !each.children.length && each.textContent.trim()
            && each.checkVisibility()
            && !["OPTION", "SCRIPT", "TEXTAREA", "SELECT"].includes(each.tagName)
            && !["fixed", "absolute"].includes(getComputedStyle(each).position));
        const boxes = seen.flatMap(each => [...each.getClientRects()].map(box => [each, box]));
        boxes.sort((one, other) => one[1].top - other[1].top);
        const found = [];
        for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
            const [a, x] = boxes[i], [b, y] = boxes[j];
            if (y.top >= x.bottom - 3) break;
            if (a !== b && !a.contains(b) && !b.contains(a) && Math.min(x.right, y.right) - Math.max(x.left, y.left) > 2
                && !clipped(a) && !clipped(b)) found.push(a.textContent.trim() + " / " + b.textContent.trim());
        }
        function clipped(each) {
            const area = each.closest(".scroll");
            if (!area) return false;
            const inner = each.getBoundingClientRect(), outer = area.getBoundingClientRect();
            return inner.right > outer.right + 1 || inner.left < outer.left - 1;
        }
        return found.slice(0, 5);
    }"""
    return list(page.evaluate(script))


def reach(page: Page, selector: str, most: int = 200) -> None:
    """Press the key Tab until what a selector names has the focus, which must be seen."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            style = """() => { const each = document.activeElement, label = each.closest("label.button");
                return getComputedStyle(each).outlineStyle + (label ? getComputedStyle(label).outlineStyle : ""); }"""
            assert page.evaluate(style) not in ("none", "nonenone"), f"the focus on {selector} is not seen"
            return
    raise AssertionError(f"the key Tab does not lead to {selector}")


def check_access(page: Page) -> None:
    """Ask axe-core for what keeps people out, in both palettes."""
    assert AXE.is_file(), "axe-core is not installed: make browser"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        grave = [
            f"{each['id']} ({each['impact']}): {node['target']} {node.get('failureSummary', '')[:300]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical", "moderate")
            for node in each["nodes"][:3]
        ]
        assert not grave, (page.url, scheme, grave)
    page.emulate_media(color_scheme="light")


def small_pieces(page: Page) -> None:
    """Let uploads go in pieces of 512 KiB."""
    script = (ROOT / "service" / "server" / "pages" / "static" / "upload.js").read_text()
    body = script.replace("PIECE = 8 * 1024 * 1024", "PIECE = 512 * 1024")
    assert body != script
    page.route("**/static/upload.js*", lambda route: route.fulfill(body=body, content_type="text/javascript"))
