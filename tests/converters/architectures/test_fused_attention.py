"""`--fuse-qkv`: the tensors are those of llama.cpp's converter byte for byte, the proof holds, and the road back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import UsageError
from ggferry.support.progress import silent
from helpers.hf_export import check_tensors
from helpers.llama_cpp import continuations
from helpers.make_converter_fixtures import tensors
from helpers.third_party_fixtures import hf_tokens, witness
from helpers.tiny import TOKENS
from helpers.tiny_models import TINY, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
FUSED = json.loads(witness("hf/out/fused.json").read_text())
"""What convert_hf_to_gguf.py of b11549 makes with `--fuse-qkv` of checkpoints (`helpers.make_converter_fixtures`)."""


def request_of(source: Path, out: Path, level: str = "fast", **more: Any) -> Request:
    """The request for float32 with fused matrices."""
    options, vocab = Options(outtype="f32"), VocabOptions(none=True)
    request = Request(str(source), str(out), options=options, vocab=vocab, level=level, fuse_qkv=True)
    return replace(request, **more)


@pytest.mark.parametrize("name", FUSED)
def test_tensors_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    (made,) = convert(request_of(witness(f"hf/ckpt/{name}"), tmp_path / "x.gguf"))
    assert tensors(tmp_path / "x.gguf") == FUSED[name]
    listed = {each["name"]: each for each in made.receipt["tensors"]}
    sources = listed["blk.0.attn_qkv.weight"]["from"]
    assert [part.split(".")[-2] for part in sources] == ["q_proj", "k_proj", "v_proj"]


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_proof_and_the_road_back(name: str, tmp_path: Path) -> None:
    source, out = witness(f"hf/ckpt/{name}"), tmp_path / "x.gguf"
    convert(request_of(source, out, "full"))
    apart = forward(graph_of(str(source)), hf_tokens())
    assert relative(apart, forward(graph_of(str(out)), hf_tokens())) <= 1e-6
    (tmp_path / "x.gguf.receipt.json").unlink()
    assert reverify(request_of(source, out, fuse_qkv=False), str(out), silent).proof.logits is None
    convert(Request(str(out), str(tmp_path / "back"), to="safetensors", level="fast", vocab=VocabOptions(none=True)))
    check_tensors(source, tmp_path / "back")


@pytest.mark.slow
def test_it_quantizes_and_llama_cpp_says_the_same(tmp_path: Path) -> None:
    make("qwen2", tmp_path / "hf")
    plain = understand(open_checkpoint(str(tmp_path / "hf")))
    fused = understand(open_checkpoint(str(tmp_path / "hf")), fuse_qkv=True)
    one, other = write(plain, tmp_path / "a.gguf"), write(fused, tmp_path / "b.gguf")
    assert len(fused.nodes) == len(plain.nodes) - 4 * plain.sizes["n_layer"]
    apart, joined = continuations(TOKENS, 1, one, other)
    assert apart[0][0] == joined[0][0] and apart[0][1] == pytest.approx(joined[0][1], abs=1e-5)
    small = Request(str(other), str(tmp_path / "q.gguf"), options=Options(outtype="q8_0", allow_requantize=True))
    assert "blk.0.attn_qkv.weight" in {each["name"] for each in convert(small)[0].receipt["tensors"]}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bloom", "not for this model"),  # in one tensor as it is
        ("qwen35", "not for this model"),  # its delta nets have a tensor of that name
        ("bitnet", "reads no attn_qkv of this architecture"),
        pytest.param("gptj", "not for this model", marks=pytest.mark.slow),  # its tables transpose them
    ],
)
def test_refused_in_a_line(name: str, why: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    with pytest.raises(UsageError, match=f"--fuse-qkv: .*{why}"):
        convert(request_of(tmp_path / "hf", tmp_path / "x.gguf"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_family_that_can_be_fused(name: str, tmp_path: Path) -> None:
    """The proof at its full depth: the source's own pass against that of the fused file, or a refusal by name."""
    make(name, tmp_path / "hf")
    try:
        convert(request_of(tmp_path / "hf", tmp_path / "x.gguf", "full", mmproj="none"))
    except UsageError as error:
        assert "--fuse-qkv" in str(error)
    else:
        assert any("attn_qkv" in tensor for tensor in tensors(tmp_path / "x.gguf"))
