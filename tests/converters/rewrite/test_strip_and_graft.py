"""Blocks that predict further tokens taken off a file, and put back: byte for byte what a conversion writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ggferry
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.rewrite.parts import parse_parts
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import InconsistentError, RefusedError, UsageError
from ggferry.support.progress import silent
from helpers.next_tokens import predicting

pytestmark = pytest.mark.filterwarnings("ignore")
FURTHER = ("glm4moe", "hy_v3", "qwen3next", "glm 5.3 flash", "nemotron-h latent", "qwen4exp")
KINDS: dict[str, dict[str, Any]] = {"all": {}, "trunk": {"mtp": False}, "only": {"mtp_only": True}}


def made(name: str, folder: Path, outtype: str = "f32", **changes: Any) -> dict[str, Path]:
    """The three files of one model: with such blocks, without them, and these alone."""
    predicting(name, folder / "hf", **changes)
    found = {}
    for kind, more in KINDS.items():
        found[kind] = folder / f"{kind}.gguf"
        vocab, options = VocabOptions(none=True), Options(outtype=outtype)
        convert(Request(str(folder / "hf"), str(found[kind]), options=options, vocab=vocab, level="fast", **more))
    return found


@pytest.mark.parametrize("name", ["qwen35", *(pytest.param(one, marks=pytest.mark.slow) for one in FURTHER)])
def test_files_are_those_of_the_conversion(name: str, tmp_path: Path) -> None:
    files = made(name, tmp_path)
    out = tmp_path / "out.gguf"
    done = ggferry.edit(files["all"], out, strip_mtp=True)
    assert out.read_bytes() == files["trunk"].read_bytes()
    assert not done.in_place and any(line.startswith("- tensor blk.") for line in done.lines)
    joined = ggferry.merge([files["trunk"], files["only"]], tmp_path / "joined.gguf")
    assert (tmp_path / "joined.gguf").read_bytes() == files["all"].read_bytes()
    assert joined.receipt_path is None and any("describe them apart" in note for note in joined.notes)


@pytest.mark.slow
def test_the_receipt_goes_on_and_the_stripped_file_is_verified(tmp_path: Path) -> None:
    files = made("qwen35", tmp_path)
    ggferry.edit(files["all"], strip_mtp=True)
    receipt = json.loads(Path(f"{files['all']}.receipt.json").read_text())
    assert [name for name in receipt["edits"][-1]["dropped"] if "nextn" in name]
    request = Request(str(tmp_path / "hf"), vocab=VocabOptions(none=True), level="fast")
    assert len(reverify(request, str(files["all"]), silent).proof.tensors) == len(
        parse_parts(str(files["trunk"]))[0].tensors
    )


@pytest.mark.slow
def test_two_blocks_and_other_types(tmp_path: Path) -> None:
    files = made("glm4moe", tmp_path, count=2)
    precise = tmp_path / "f16.gguf"
    request = Request(str(tmp_path / "hf"), str(precise), options=Options(outtype="f16"), mtp_only=True)
    convert(replace(request, vocab=VocabOptions(none=True), level="fast"))
    done = ggferry.merge([files["trunk"], precise], tmp_path / "joined.gguf")
    assert any("token_embd.weight has other bytes in both files (F32 and F16)" in note for note in done.notes)
    kinds = {tensor.name: tensor.type.name for tensor in parse_parts(done.output)[0].tensors}
    whole = {tensor.name: tensor.type.name for tensor in parse_parts(str(files["all"]))[0].tensors}
    assert kinds.keys() == whole.keys() and kinds["token_embd.weight"] == whole["token_embd.weight"]
    assert {kinds[name] for name in kinds if name.endswith("eh_proj.weight")} == {"F16"}


@pytest.mark.slow
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    files = made("qwen35", tmp_path / "one")
    others = made("glm4moe", tmp_path / "other")
    out = tmp_path / "x.gguf"
    with pytest.raises(InconsistentError, match=r"not of one model: general\.architecture"):
        ggferry.merge([files["trunk"], others["only"]], out)
    with pytest.raises(UsageError, match="has blocks that predict further tokens already"):
        ggferry.merge([files["all"], files["only"]], out)
    with pytest.raises(UsageError, match="no output name"):
        ggferry.merge([files["trunk"], files["only"]])
    with pytest.raises(UsageError, match="states no blocks"):
        ggferry.edit(files["trunk"], out, strip_mtp=True)
    with pytest.raises(RefusedError, match="nothing would be left"):
        ggferry.edit(files["only"], out, strip_mtp=True)
    edited = tmp_path / "edited.gguf"
    ggferry.edit(files["trunk"], edited, set={"qwen35.rope.freq_base": 77.0})
    with pytest.raises(InconsistentError, match=r"not of one model: qwen35\.rope\.freq_base"):
        ggferry.merge([edited, files["only"]], out)
    assert not out.exists()
