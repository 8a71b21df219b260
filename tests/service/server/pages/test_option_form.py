"""The form of a conversion: of every option, and read back as it was written."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from ggferry.converters.conversion.options import FORMATS, OPTIONS, PLAN_NAMES, Heading, options_of
from ggferry.formats.errors import EncodingError, GgferryError, UsageError
from ggferry.service.records.option_paths import with_paths
from ggferry.service.server.pages import render
from ggferry.service.server.pages.option_form import (
    LEFT_OUT,
    as_typed,
    form_of,
    in_words,
    needs,
    options_in,
    source_named,
)
from ggferry.service.server.pages.plan_pages import AddPage
from ggferry.service.server.pages.views import Shell
from ggferry.service.workers.analyze import check_recipe


class Fields(HTMLParser):
    """The fields of a form as a browser would send them, untouched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self._name, self._text, self._chosen = "", "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "input" and "name" in found and (found.get("type") != "checkbox" or "checked" in found):
            self.pairs.append((found["name"], found.get("value", "")))
        elif tag in ("select", "textarea"):
            self._name, self._text = found["name"], ""
        elif tag == "option" and self._name:
            self._chosen = "selected" in found and "value" not in found
            if "selected" in found and "value" in found:
                self.pairs.append((self._name, found["value"]))

    def handle_data(self, data: str) -> None:
        if self._chosen:
            self.pairs.append((self._name, data))
            self._chosen = False
        elif self._name:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.pairs.append((self._name, self._text))
        if tag in ("textarea", "select"):
            self._name = ""


def test_every_option_of_a_plan_has_one_control() -> None:
    form = form_of({})
    names = [control.name for group in form.groups for control in group.controls]
    assert sorted([*names, "to", "outtype", "verify"]) == sorted([*PLAN_NAMES, "like"])
    titles = [group.title for group in form.groups]
    assert titles == [each.value for each in Heading if each.value in titles], "the order of --help"
    text = render.page("add", Shell(), add=AddPage(form=form))
    for option in (each for each in OPTIONS if each.in_plan):
        assert text.count(f' name="{option.name}"') == 1, option.name


EVERY: dict[str, Any] = {
    "outtype": "q4_k_m,f16",
    "verify": "fast",
    "big_endian": True,
    "mmproj": "none",
    "mmproj_outtype": "f32",
    "expand": "q8_0",
    "pure": True,
    "output_tensor_type": "q6_k",
    "arch": "llama",
    "hparams": {"rope.freq_base": "10000", "attention.head_count": "4=5"},
    "tokenizer": "upload:" + "a" * 24,
    "imatrix": "/models/imatrix.gguf",
    "witness": ["transformers", "llama.cpp"],
    "no_vocab": True,
    "model_name": 'A "model" <b>of</b> mine',
    "device": "cuda:1",
    "rerank": "no",
    "tensor_types": ["attn_v=?=q8_0", "ffn_.*=q6_k"],
    "include_weights": ["blk.0", "blk.1"],
    "split_max_size": "4G",
    "split_max_tensors": 128,
    "tensor_first_split": False,
    "alignment": 64,
    "recipe": ["recipe mine", "", "default Q4_K", "ffn_down -> Q6_K  # more"],
    "metadata": {"general.license": "mit", "general.tags": ['a "b" <i>', "ü"], "general.author": None},
    "text": ["One line, with a comma", "a second=one"],
    "target_size": "4GiB",
    "target_bpw": 4.5,
    "among": "q4_k,q6_k",
    "lora": ["upload:" + "b" * 24 + ":0.5", "/models/an, adapter"],
}


def test_every_option_of_convert_is_in_the_form_or_left_out_with_a_reason() -> None:
    """Those that `ggferry convert --help` prints, each by its flag; every command has the three left out."""
    text = subprocess.run(
        [sys.executable, "-m", "ggferry", "convert", "--help"], capture_output=True, text=True, check=True
    ).stdout
    flags = {flag: each.name for each in options_of("convert") for flag in each.all_flags if flag[:2] == "--"}
    printed = set(re.findall(r"(?m)^ {2,6}(?:-\w, )?(--[a-z][a-z-]+)", text))
    printed -= {"--help", "--quiet", "--verbose", "--log-json"}
    assert printed <= flags.keys() and {flags[flag] for flag in printed} == {*flags.values()}
    form = form_of({})
    offered = {control.name for group in form.groups for control in group.controls} | {"to", "outtype", "verify"}
    assert offered.isdisjoint(LEFT_OUT)
    missing = {*flags.values()} - offered
    assert missing == LEFT_OUT.keys()
    assert all(len(why.split()) > 3 for why in LEFT_OUT.values())


def test_a_control_is_shown_with_the_formats_that_take_it() -> None:
    """As the check of a request has it, which the command line makes, too."""
    form, given = form_of({"to": "mlx"}), {"dtype": "f16", "max_shard_size": 5, "pure": True, "trim_vocab": True}
    given |= {"arch": "llama", "allow_requantize": True, "dequantize": True, "metadata": {"general.license": "mit"}}
    controls = {control.name: control for group in form.groups for control in group.controls}
    for name, value in given.items():
        for to in FORMATS:
            try:
                check_recipe("x", {"to": to, name: value})
                is_taken = True
            except UsageError as error:
                assert " is for --to " in error.message
                is_taken = False
            assert is_taken is (to in (controls[name].formats or FORMATS)), (name, to)
    types = dict(form.outtypes)
    assert types["q8_0"] == ("gguf", "mlx", "whisper.cpp") and types["iq2_xs"] == ("gguf",) and types["keep"] == FORMATS
    text = render.page("add", Shell(), add=AddPage(form=form))
    assert '<option value="mlx" selected>MLX folder</option>' in text and 'data-for="safetensors mlx"' in text


def test_what_cannot_be_read_stays_as_it_was_typed() -> None:
    pairs = [("outtype", "q8_0"), ("further", "f16 , "), ("metadata", '{"general.license": '), ("pure", "on")]
    with pytest.raises(EncodingError, match="Metadata"):
        options_in(pairs)
    form = as_typed(form_of({}), pairs)
    values = {control.name: control.value for group in form.groups for control in group.controls}
    assert (form.outtype, form.further) == ("q8_0", "f16 , ")
    assert {name: value for name, value in values.items() if value} == {
        "metadata": '{"general.license": ',
        "pure": "on",
    }


@pytest.mark.parametrize("text", ["[1]", '{"a": 1, "a": 2}', "[" * 100_000, "x" * 200_001, '{"a": NaN}'])
def test_metadata_that_is_none(text: str) -> None:
    with pytest.raises(GgferryError):
        options_in([("metadata", text)])


def test_a_form_that_is_sent_back_states_the_same_options() -> None:
    folder = {"outtype": "keep", "to": "safetensors", "dtype": "bf16", "max_shard_size": "2GB"}
    for options in (EVERY, {"outtype": "keep"}, folder, {"outtype": "q8_0", "to": "mlx"}):
        text = render.page("add", Shell(), add=AddPage(form=form_of(options)))
        form = text[text.index("data-plan-form") :]
        pairs = Fields(form[: form.index("</form>")]).pairs
        assert options_in(pairs) == options


def test_a_file_of_an_upload_is_named_by_the_upload() -> None:
    assert source_named("/data/uploads/abc/m/config.json", "/data/uploads") == "upload:abc"
    assert source_named("/data/uploads-2/abc", "/data/uploads") == "/data/uploads-2/abc"
    form = form_of({"tokenizer": "/data/uploads/abc/tokenizer.json"}, uploads="/data/uploads")
    control = next(each for group in form.groups for each in group.controls if each.name == "tokenizer")
    assert control.value == "upload:abc"
    lora = ["/data/uploads/abc/adapter:0.5", "/models/other"]
    form = form_of({"lora": lora}, uploads="/data/uploads")
    control = next(each for group in form.groups for each in group.controls if each.name == "lora")
    assert control.lines == ["upload:abc:0.5", "/models/other"] and control.is_sent


def test_an_adapter_of_an_upload_has_a_scale_only_where_one_follows_its_id() -> None:
    """An id of digits alone is none."""
    digits, seen = "upload:" + "12" * 12, []
    options = {"lora": [digits, f"{digits}:0.5", "/models/a:2", "/models/b"]}
    found = with_paths(options, lambda path: seen.append(path) or f"<{path}>")  # type: ignore[func-returns-value]
    assert found == {"lora": [f"<{digits}>", f"<{digits}>:0.5", "</models/a>:2", "</models/b>"]}


def test_what_an_error_needs_is_offered() -> None:
    hint = "--tokenizer DIR (the model's own), or --no-vocab; --memory SIZE"
    assert needs(hint) == ["tokenizer", "no_vocab"]
    assert in_words(hint) == "“Tokenizer” (the model's own), or “No vocab”; --memory SIZE"
    assert [each.name for each in form_of({}, hint=hint).needed] == ["tokenizer", "no_vocab"]


def test_types_from_a_table_of_sizes() -> None:
    pairs = [("outtype", "q8_0"), ("type", "q4_k_m"), ("type", "q2_k"), ("further", "")]
    assert options_in(pairs)["outtype"] == "q4_k_m,q2_k"


@pytest.mark.parametrize("text", ["no sign", "=value", "a=b\nnothing"])
def test_pairs_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        options_in([("hparams", text)])
