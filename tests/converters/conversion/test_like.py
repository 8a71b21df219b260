"""`--like FILE.gguf`: the types of a published file, tensor by tensor, and so the bytes of the mixture that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggferry
from ggferry.converters.conversion.like import recipe_like
from ggferry.formats.errors import GgferryError
from ggferry.quant.recipes.text import parse_recipe


@pytest.fixture(scope="module")
def source(fixtures: Path) -> Path:
    return fixtures / "hf/ckpt/llama"


@pytest.mark.parametrize("outtype", ["q4_k_m", "q5_k_m", "iq4_xs", "f16"])
def test_the_bytes_are_those_of_the_mixture_that_made_the_file(outtype: str, source: Path, tmp_path: Path) -> None:
    first = ggferry.convert(source, tmp_path / "a.gguf", outtype=outtype, verify="fast")
    again = ggferry.convert(source, tmp_path / "b.gguf", like=first.output, verify="fast")
    assert Path(again.output).read_bytes() == Path(first.output).read_bytes()
    ggferry.verify(source, again.output, level="fast")


def test_single_tensors_that_differ_are_taken_over(source: Path, tmp_path: Path) -> None:
    made = ggferry.convert(
        source, tmp_path / "a.gguf", outtype="q4_0", tensor_types={r"blk\.1\.ffn_up": "q8_0"}, verify="fast"
    )
    again = ggferry.convert(source, tmp_path / "b.gguf", like=made.output, verify="fast")
    types = {name: tensor.type for name, tensor in ggferry.inspect(made.output).tensors.items()}
    assert {name: tensor.type for name, tensor in ggferry.inspect(again.output).tensors.items()} == types
    assert types["blk.1.ffn_up.weight"] == "Q8_0" and types["blk.0.ffn_up.weight"] == "Q4_0"
    text = recipe_like(made.output)
    assert "blk.*.ffn_up.weight -> Q4_0" in text and "blk.1.ffn_up.weight -> Q8_0" in text
    assert parse_recipe(text).default == "Q4_0"


def test_a_published_file_of_llama_quantize_is_followed(fixtures: Path) -> None:
    path = fixtures / "quantize/k256.Q4_K_M.gguf"
    rules = recipe_like(str(path))
    types = {tensor.type for tensor in ggferry.inspect(path).tensors.values() if len(tensor.shape) > 1}
    assert all(f"-> {kind}" in rules for kind in types) and "file_type Q4_K_M" in rules


def test_what_has_no_types_is_refused(source: Path, fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="expected a GGUF file"):
        ggferry.convert(source, tmp_path / "x.gguf", like=fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin")
    recipe = tmp_path / "recipe"
    recipe.write_text("default Q8_0\n")
    with pytest.raises(GgferryError, match="two recipes"):
        ggferry.convert(source, tmp_path / "x.gguf", like=fixtures / "quantize/k256.Q4_K_M.gguf", recipe=recipe)
