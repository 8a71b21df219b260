"""The form of a conversion with everything that `convert` takes, by keyboard alone; in headless Chromium."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from playwright.sync_api import Browser, Page, expect
from safetensors.numpy import load_file

from helpers.browser import check_access, chromium, look, reach, signed_in
from helpers.merged_adapters import assert_alike, converted, with_peft
from helpers.server import Server, serving
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import make

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("form")
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "llama_k256", folder / "archive" / "k256")
    make("llama", folder / "archive" / "base")
    with serving(folder / "data", "--root", folder / "archive") as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    yield from signed_in(browser, server)


def test_shards_a_recipe_metadata_and_an_imatrix_by_keyboard(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    reach(page, "#path")
    page.keyboard.type(str(server.data.parent / "archive" / "k256"))
    reach(page, ".options > summary")
    page.keyboard.press("Enter")
    reach(page, "#split_max_tensors")
    page.keyboard.type("8")
    reach(page, "#tensor_first_split")
    page.keyboard.press("Space")
    (tmp_path / "mine.recipe").write_text("recipe mine\ndefault Q4_K\nffn_down -> Q6_K\n")
    reach(page, "#recipe-text")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(str(tmp_path / "mine.recipe"))
    expect(page.locator("#recipe")).to_have_value("recipe mine\ndefault Q4_K\nffn_down -> Q6_K\n")
    reach(page, "#imatrix-file")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(str(FIXTURES / "quantize" / "k256.imatrix.gguf"))
    expect(page.locator("#imatrix")).to_have_value(re.compile("^upload:[0-9a-f]{24}$"), timeout=20_000)
    reach(page, "#metadata")
    page.keyboard.type('{"general.license": "mit",')
    check_access(page)
    look(page, "form-filled", tmp_path)
    reach(page, "#path")
    page.keyboard.press("Enter")

    expect(page.locator(".problem").first).to_contain_text("Metadata")
    expect(page.locator("#recipe")).to_have_value("recipe mine\ndefault Q4_K\nffn_down -> Q6_K\n")
    expect(page.locator("#split_max_tensors")).to_have_value("8")
    expect(page.locator("#tensor_first_split")).to_be_checked()
    check_access(page)
    look(page, "form-refused", tmp_path)
    reach(page, "#metadata")
    page.keyboard.press("Control+a")
    page.keyboard.type('{"general.license": "mit"}')
    reach(page, "#path")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plans/*")
    expect(page.locator(".lines ins")).to_contain_text(re.compile(r"-00001-of-0000\d\.gguf"))

    first = page.url
    reach(page, "section.panel > details > summary")
    page.keyboard.press("Enter")
    expect(page.locator("#c-metadata")).to_have_value('{\n  "general.license": "mit"\n}')
    reach(page, "#c-split_max_tensors")
    page.keyboard.press("Control+a")
    page.keyboard.type("12")
    check_access(page)
    look(page, "form-on-a-plan", tmp_path)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url != first)
    expect(page.locator("form.bottom button.primary")).to_be_visible(timeout=60_000)  # the page loads again until then
    reach(page, "form.bottom button.primary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/*")
    expect(page.locator(".badge").first).to_have_text("proved", timeout=90_000)
    job = page.url.rpartition("/")[2]
    client = server.client()
    names = [each["name"] for each in client.get(f"/jobs/{job}/files").json()]
    output = Path(client.get(f"/jobs/{job}").json()["output"])
    readers = [gguf.GGUFReader(output.parent / name) for name in names]
    assert len(readers) > 2 and not readers[0].tensors and max(len(each.tensors) for each in readers) == 12
    assert readers[0].fields["general.license"].contents() == "mit"
    assert "quantize.imatrix.file" in readers[0].fields
    kinds = {each.name: each.tensor_type.name for each in (tensor for one in readers for tensor in one.tensors)}
    assert kinds["blk.0.ffn_down.weight"] == "Q6_K" and kinds["blk.0.ffn_up.weight"] == "Q4_K"
    expect(page.get_by_role("link", name=re.compile("^Download"))).to_have_count(len(names))
    check_access(page)
    look(page, "model-of-shards", tmp_path)
    reach(page, "#text")
    page.keyboard.type("The cat")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".tokens li").first).to_be_visible()


def test_a_file_that_is_no_text_is_not_loaded(page: Page, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    page.get_by_text("All options").click()
    (tmp_path / "odd.recipe").write_bytes(b"\xff\xfe\x00")
    page.locator("#recipe-text").set_input_files(str(tmp_path / "odd.recipe"))
    expect(page.get_by_text("odd.recipe is not UTF-8 text.")).to_be_visible()
    (tmp_path / "long.recipe").write_text("x" * 200_001)
    page.locator("#recipe-text").set_input_files(str(tmp_path / "long.recipe"))
    expect(page.get_by_text("long.recipe is longer than 200000 characters.")).to_be_visible()
    expect(page.locator("#recipe")).to_have_value("")
    check_access(page)


def test_an_adapter_is_sent_and_merged_and_a_size_is_asked_for(page: Page, server: Server, tmp_path: Path) -> None:
    base = server.data.parent / "archive" / "base"
    with_peft(base, tmp_path / "a", tmp_path / "theirs", target_modules=["q_proj"])
    page.goto(page.url + "add")
    page.locator("#path").fill(str(base))
    page.get_by_text("All options").click()
    page.locator("#no_vocab").check()
    files = [tmp_path / "a" / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    page.locator("#lora-file").set_input_files(files)
    expect(page.locator("#lora")).to_have_value(re.compile("^upload:[0-9a-f]{24}$"), timeout=20_000)
    page.locator("#lora").scroll_into_view_if_needed()
    check_access(page)
    look(page, "form-adapter", tmp_path)
    page.locator("#outtype").select_option("f32")
    page.locator("#path").press("Enter")
    page.wait_for_url("**/plans/*")
    page.locator("section.panel > details > summary").first.click()
    expect(page.locator("#c-lora")).to_have_value(re.compile("^upload:[0-9a-f]{24}$"))
    page.locator("form.bottom button.primary").click()
    page.wait_for_url("**/models/*")
    expect(page.locator(".badge").first).to_have_text("proved", timeout=90_000)
    output = server.client().get(f"/jobs/{page.url.rpartition('/')[2]}").json()["output"]
    converted(tmp_path / "theirs", tmp_path / "theirs.gguf", level="fast")
    assert_alike(Path(output), tmp_path / "theirs.gguf")

    page.goto(server.url + "/add")
    page.locator("#path").fill(str(server.data.parent / "archive" / "k256"))
    page.get_by_text("All options").click()
    page.locator("#target_bpw").fill("many")
    page.locator("#path").press("Enter")
    expect(page.locator(".problem").first).to_contain_text("a number, such as 4.5")
    page.locator("#target_bpw").fill("5.5")
    page.locator("#path").press("Enter")
    page.wait_for_url("**/plans/*")
    expect(page.get_by_text("the types are chosen when the weights are read")).to_be_visible()
    expect(page.locator(".lines ins")).to_contain_text("types for a size")
    check_access(page)
    look(page, "plan-sized", tmp_path)
    page.locator("form.bottom button.primary").click()
    page.wait_for_url("**/models/*")
    expect(page.locator(".badge").first).to_have_text("proved", timeout=90_000)
    check_access(page)
    look(page, "model-sized", tmp_path)


def test_a_folder_by_keyboard_with_what_goes_with_its_format(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto(page.url + "add")
    reach(page, "#path")
    page.keyboard.type(str(server.data.parent / "archive" / "k256"))
    reach(page, ".options > summary")
    page.keyboard.press("Enter")
    expect(page.locator("#dtype")).to_be_hidden()
    expect(page.locator("#split_max_tensors")).to_be_visible()
    page.locator("#outtype").select_option("iq2_xs")
    reach(page, "#to")
    page.keyboard.type("MLX")
    expect(page.locator("#to")).to_have_value("mlx")
    expect(page.locator("#outtype")).to_have_value("keep")  # of those that MLX has groups for
    expect(page.locator("#further")).to_be_hidden()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#to")).to_have_value("safetensors")
    for name in ("outtype", "further", "split_max_tensors", "pure", "imatrix", "mmproj"):
        expect(page.locator(f"#{name}")).to_be_hidden()
    expect(page.get_by_role("group", name="Importance matrix")).to_be_hidden()
    for name in ("dtype", "max_shard_size", "arch", "no_vocab", "witness"):
        expect(page.locator(f"#{name}")).to_be_visible()
    reach(page, "#verify")
    page.keyboard.type("fast")
    reach(page, "#dtype")
    page.keyboard.type("f16")
    reach(page, "#max_shard_size")
    page.keyboard.type("200K")
    check_access(page)
    look(page, "form-folder", tmp_path)
    reach(page, "#path")
    page.keyboard.press("Enter")

    page.wait_for_url("**/plans/*")
    expect(page.locator(".lines ins")).to_contain_text("k256-safetensors · Hugging Face folder, llama, F16")
    expect(page.get_by_text("Compare the sizes of")).to_have_count(0)
    page.locator("section.panel > details > summary").first.click()
    expect(page.locator("#c-to")).to_have_value("safetensors")
    expect(page.locator("#c-max_shard_size")).to_have_value("200K")
    expect(page.locator("#c-outtype")).to_be_hidden()
    check_access(page)
    look(page, "plan-folder", tmp_path)
    page.get_by_role("button", name="Convert 1 model").click()
    page.wait_for_url("**/models/*")
    expect(page.get_by_role("heading", name="Proved files")).to_be_visible(timeout=60_000)
    names = page.locator(".file b").all_inner_texts()
    assert "k256-safetensors" in names and "ggferry.receipt.json" in names and "model.safetensors.index.json" in names
    expect(page.get_by_text(re.compile(r"SHA-256 [0-9a-f]{64} *model-00001-of")).first).to_be_visible(timeout=20_000)
    check_access(page)
    look(page, "model-folder", tmp_path)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all files as one tar file").click()
    assert download.value.suggested_filename == "k256-safetensors.tar"
    with tarfile.open(download.value.path()) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "k256-safetensors"
    assert sorted(path.name for path in folder.iterdir()) == sorted(names[1:])
    assert {str(kind) for _, kind in _types(folder)} == {"float16"}


def _types(folder: Path) -> Iterator[tuple[str, object]]:
    """The tensors of a folder with their types, as the library reads them."""
    for path in folder.glob("*.safetensors"):
        yield from ((name, tensor.dtype) for name, tensor in load_file(path).items())
