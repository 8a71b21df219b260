"""Files of the blocks that predict further tokens alone: what they hold, their proof, and llama.cpp drafting by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.model import Places
from ggferry.converters.next_token_blocks import LOADED_ALONE
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.runtime_keys import check
from ggferry.converters.schema.layouts import SAME
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.llama_cpp import draft_candidates
from helpers.next_tokens import LAST, MODELS, further_logits, predicting, states_before
from helpers.tiny import TOKENS
from helpers.tiny_models import make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
OF_DECODER = ("token_embd.weight", "output_norm.weight", "output.weight")
"""What convert_hf_to_gguf.py --mtp keeps besides the blocks (`filter_tensors` of `conversion/qwen.py`, `glm.py`)."""


def request_of(source: Path, out: Path, **more: Any) -> Request:
    """The request for float32 without a vocabulary."""
    return Request(str(source), str(out), options=Options(outtype="f32"), vocab=VocabOptions(none=True), **more)


def contents(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The bytes of every tensor of a GGUF file, and its keys."""
    made = open_gguf(str(path))
    data = {name: made.files[0].read(ref.spans[0].offset, ref.nbytes) for name, ref in made.tensors.items()}
    return data, dict(made.metadata)


@pytest.mark.parametrize("name", ["qwen35", pytest.param("glm4moe", marks=pytest.mark.slow)])
def test_tensors_and_keys(name: str, tmp_path: Path) -> None:
    predicting(name, tmp_path / "hf")
    convert(request_of(tmp_path / "hf", tmp_path / "all.gguf", level="fast"))
    (made,) = convert(request_of(tmp_path / "hf", tmp_path / "only.gguf", mtp_only=True))
    whole, keys = contents(tmp_path / "all.gguf")
    only, own = contents(tmp_path / "only.gguf")
    last = keys[f"{made.receipt['architecture']}.block_count"].data - 1
    expected = {n: data for n, data in whole.items() if n in OF_DECODER or n.startswith(f"blk.{last}.")}
    assert only == expected and "blk.0.attn_norm.weight" in whole
    assert {k: v for k, v in own.items() if "size_label" not in k} == {
        k: v for k, v in keys.items() if "size_label" not in k
    }
    assert not [found for found in check(own["general.architecture"].data, own, only) if "tensor" in found.kind]
    assert any("of the decoder" in note for note in made.receipt["notes"])
    proved = made.receipt["logits"]
    assert proved["what"].startswith("logits of the blocks that predict further tokens (over fixed states")
    assert "blocks that predict further tokens: 1" in proved["reached"] and proved["limit"] < 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_over_the_decoders_states_it_computes_what_transformers_module_does(name: str, tmp_path: Path) -> None:
    count = 2 if name in LAST else 1
    predicting(name, tmp_path / "hf", count)
    further = further_logits(name, tmp_path / "hf", count)
    states = states_before(tmp_path / "hf")
    source = understand(graph_of(str(tmp_path / "hf")).checkpoint, mtp_only=True)
    assert relative(further, forward(source, TOKENS, inputs={"states": states})) <= 1e-5
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    whole = forward(made, TOKENS, inputs={"states": states})
    assert relative(further, whole) <= 1e-5
    some = forward(made, TOKENS, inputs={"states": states}, places=Places(rows=(0, 1)))
    assert len(some) == 2 * count and relative(whole[:2], some[:2]) <= 1e-5
    with pytest.raises(UsageError, match="one a token"):
        forward(made, TOKENS, inputs={"states": states[1:]})


@pytest.mark.parametrize("wrong", ["nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"])
def test_a_mistake_in_the_layout_is_noticed_by_the_forward_pass(wrong: str, tmp_path: Path) -> None:
    """Qwen's norms are written with 1 added: one that is not has the values that the layout, so planted, asks for."""
    predicting("qwen35", tmp_path / "hf")
    source = understand(graph_of(str(tmp_path / "hf")).checkpoint, mtp_only=True)
    nodes = [replace(node, layout=SAME) if node.name.endswith(f".{wrong}") else node for node in source.nodes]
    planted = replace(source, nodes=tuple(nodes), by_name={node.name: node for node in nodes})
    assert check_logits(source, graph_of(str(write(source, tmp_path / "good.gguf")))).relative_rms < 1e-5
    with pytest.raises(VerificationError, match="the forward pass of the output differs"):
        check_logits(source, graph_of(str(write(planted, tmp_path / "x.gguf"))))


def test_it_is_verified_without_an_option_and_not_taken_for_another(tmp_path: Path) -> None:
    predicting("qwen35", tmp_path / "hf")
    request = request_of(tmp_path / "hf", tmp_path, mtp_only=True, level="fast")
    made = Path(convert(request)[0].path)
    assert made.name.startswith("mtp-")  # as convert_hf_to_gguf.py calls it
    made.with_name(f"{made.name}.receipt.json").unlink()
    plain = request_of(tmp_path / "hf", made)
    assert reverify(plain, str(made), silent).proof.tensors
    assert graph_of(str(made)).by_name.keys() == {n.name for n in graph_of(str(made)).nodes}
    data = bytearray(made.read_bytes())
    data[-40] ^= 0xFF
    made.write_bytes(data)
    with pytest.raises(VerificationError):
        reverify(plain, str(made), silent)


def test_refusals(tmp_path: Path) -> None:
    make("llama", tmp_path / "llama")
    with pytest.raises(UsageError, match=r"--mtp-only: .* found llama, expected bailingmoe2, .*cohere2moe, "):
        convert(request_of(tmp_path / "llama", tmp_path / "x.gguf", mtp_only=True))
    predicting("qwen35", tmp_path / "hf")
    with pytest.raises(UsageError, match="--no-mtp and --mtp-only"):
        convert(request_of(tmp_path / "hf", tmp_path / "x.gguf", mtp_only=True, mtp=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_drafts_with_it_as_with_the_whole_file(name: str, tmp_path: Path) -> None:
    """Beside a file of the decoder alone: the same proposals, token by token, with the same probabilities."""
    predicting(name, tmp_path / "hf")
    source = str(tmp_path / "hf")
    files = [
        write(understand(graph_of(source).checkpoint, **options), tmp_path / f"{number}.gguf")
        for number, options in enumerate(({}, {"mtp": False}, {"mtp_only": True}))
    ]
    assert graph_of(str(files[2])).architecture.name in LOADED_ALONE
    together, _ = draft_candidates(TOKENS[:12], 4, files[0], files[0], "MTP", 1)
    apart, _ = draft_candidates(TOKENS[:12], 4, files[1], files[2], "MTP", 1)
    assert apart == together and together
