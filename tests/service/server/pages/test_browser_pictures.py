"""The pictures of README.md and docs/service.md, of a small archive of two people; in headless Chromium.

`GGFERRY_SCREENSHOTS=docs .venv/bin/python -m pytest -m browser -n 0 -k pictures_of_the_documents` puts them where the
documents have them.
"""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from helpers.browser import SHOTS, chromium
from helpers.builders import Llama
from helpers.server import Server, ended, made_token, planned, serving, submitted
from helpers.third_party_fixtures import FIXTURES, ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WIDTH = 1180
SIZES = {"archive": 900, "plan": 820, "model": 1330, "quality": 900}
"""Height of each picture."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Page, Server, dict[str, str]]]:
    """A page of a program's, a server with its models and alice's, and the jobs by the names of files."""
    root = Path(tempfile.mkdtemp(prefix="models-", dir="/tmp"))
    try:
        legacy = FIXTURES / "legacy-llama"
        for name, source in (
            ("alpaca/alpaca-native-q4_0", "ggjt3-20230821"),
            ("llama-7b/ggml-model-q4_0", "ggjt1-20230428"),
        ):
            (root / "2023" / name).parent.mkdir(parents=True)
            shutil.copy(legacy / source / "q4_0.bin", root / "2023" / f"{name}.bin")
        for number, name in enumerate(("wizard", "orca", "guanaco", "koala")):
            (root / "2023" / name).mkdir()
            own = Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1)
            own.write(root / "2023" / name / f"{name}-f16.bin")
        whole = (root / "2023" / "koala" / "koala-f16.bin").read_bytes()
        (root / "2023" / "koala" / "koala-cut.bin").write_bytes(whole[:-9000])
        with serving(tmp_path / "data", "--root", root) as server, chromium() as browser:
            tokens = {name: made_token(server.data, name, "submit") for name in ("alice", "ci")}
            jobs = _converted(server, root / "2023", tokens)
            yield _signed_in(browser, server, tokens["ci"]), server, jobs
    finally:
        shutil.rmtree(root)


def _converted(server: Server, models: Path, tokens: dict[str, str]) -> dict[str, str]:
    jobs: dict[str, str] = {}
    alice, ci = (server.client(tokens[name]) for name in ("alice", "ci"))
    for client, name, types in (
        (alice, "alpaca", "keep"),
        (alice, "llama-7b", "keep"),
        (alice, "orca", "keep"),
        (ci, "koala", "keep"),
        (ci, "wizard", "f16,q8_0,q5_0,q4_0"),
    ):
        for job in submitted(client, models / name, outtype=types):
            jobs[Path(ended(client, job, 120)["source"]).name] = job
    planned(ci, models / "guanaco")
    return jobs


def _signed_in(browser: Browser, server: Server, token: str) -> Page:
    context = browser.new_context(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
    found = context.new_page()
    found.goto(f"{server.url}/?token={token}")
    return found


def taken(page: Page, name: str, folder: Path) -> None:
    """Take a picture of the top of a page, in as few colors as it has nearly."""
    page.set_viewport_size({"width": WIDTH, "height": SIZES[name]})
    page.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    assert picture.width == WIDTH and picture.height >= SIZES[name]
    Path(SHOTS or folder).mkdir(exist_ok=True, parents=True)
    small = picture.crop((0, 0, WIDTH, SIZES[name])).quantize(256, dither=Image.Dither.NONE)
    small.save(Path(SHOTS or folder) / f"page-{name}.png", optimize=True)


def test_the_pictures_of_the_documents(page: tuple[Page, Server, dict[str, str]], tmp_path: Path) -> None:
    shown, server, jobs = page
    shown.goto(f"{server.url}/add")
    wizard = next(
        Path(each["source"]) for each in server.client().get("/models", params={"q": "wizard"}).json()["items"]
    )
    shown.get_by_label("Path or URL").fill(str(wizard.parent))
    shown.get_by_label("Type of the output").select_option("q8_0")
    shown.get_by_label("More output types").fill("q5_0, q4_0")
    shown.get_by_role("button", name="Preview").click()
    shown.wait_for_url("**/plans/*")
    expect(shown.locator(".ladder li")).to_have_count(3)
    taken(shown, "plan", tmp_path)
    shown.goto(f"{server.url}/")
    expect(shown.get_by_role("row", name=re.compile("alpaca")).first).to_contain_text("alice")
    expect(shown.get_by_role("row", name=re.compile("koala-cut")).first).to_contain_text("ends inside tensor")
    taken(shown, "archive", tmp_path)
    shown.goto(f"{server.url}/models/{jobs['wizard-f16.bin']}")
    expect(shown.locator(".plot svg circle")).to_have_count(4)
    expect(shown.get_by_text("SHA-256").first).to_be_visible()
    taken(shown, "model", tmp_path)
    shown.get_by_role("link", name="Quality on a text").click()
    shown.get_by_label("Text", exact=True).fill((ROOT / "README.md").read_text()[:8000])
    shown.get_by_label("Tokens of a chunk").select_option("128")
    shown.get_by_role("button", name="Compare").click()
    expect(shown.locator(".plot svg circle")).to_have_count(4, timeout=120_000)
    taken(shown, "quality", tmp_path)
    for name in SIZES:
        assert (ROOT / "docs" / f"page-{name}.png").is_file()
        assert Image.open(ROOT / "docs" / f"page-{name}.png").size == (WIDTH, SIZES[name])
