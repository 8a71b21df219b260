"""Tiny checkpoints of today's architectures, from end to end: transformers' float64 logits, the reigning tool's keys,
names and bytes where they are right, llama.cpp's continuation where it runs the model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.third_party_fixtures import CORPUS
from helpers.tiny_models import relative

assert CORPUS is not None
ARCH = CORPUS / "arch"
MANIFEST = json.loads((ARCH / "MANIFEST.json").read_text())
MODELS: dict[str, dict[str, Any]] = MANIFEST["models"]
TOKENS: list[int] = MANIFEST["tokens"]
KNOWN = {name for spec in architectures().values() for name in spec.hf_classes}
NAMES = [name for name, model in MODELS.items() if set(model["architectures"]) & KNOWN]
DECODERS = [name for name in NAMES if MODELS[name]["output_kind"] == "logits"]
each_decoder = pytest.mark.parametrize("name", DECODERS)
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]

REFUSED: dict[str, str] = {}
"""What no GGUF file can say: a part of the reason that must be given."""
UNREAD: dict[str, str] = {}
"""Decoders of the corpus whose classes are not read, and why."""
LOOSE: dict[str, float] = {}
"""Where transformers itself computes in less than float64."""
GRANITE = [name for name in MODELS if name.startswith(("granitehybrid", "bamba"))]
ELSEWHERE: dict[str, set[str]] = {
    # counts what we drop; what readers take without it
    "*": {"nextn_predict_layers", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"},
    "exaone_moe": {"rope.scaling.type"},  # none
    # the tool writes 2^20 for all of Granite 4, and lists where all blocks are alike
    **{name: {"context_length", "attention.head_count_kv", "rope.scaling.finetuned"} for name in GRANITE},
    "granitehybrid_dense": {"context_length", "expert_shared_feed_forward_length"},  # there are no experts
    "granitehybrid_attn": {
        "attention.head_count_kv",
        "expert_shared_feed_forward_length",
        "rope.scaling.finetuned",
        *(f"ssm.{name}" for name in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank")),
    },  # there is no state space
    # its norms are LayerNorms; the width of a head is not embedding / heads
    **{name: {"attention.layer_norm_rms_epsilon", "rope.scaling.type"} for name in ("nemotron", "nemotron_hd16")},
    "nemotron": {"attention.layer_norm_rms_epsilon", "rope.scaling.type", "rope.dimension_count"},
    # 2^20 for all; nothing is turned
    **{name: {"context_length", "rope.dimension_count"} for name in MODELS if name.startswith("nemotron_h_")},
    "nemotron_h": {"*"},  # the tool takes it for a mixture
    "kimi_linear": {"expert_group_used_count", "attention.value_length"},  # one group; values are the latent vector
    "ernie4_5_moe": {"expert_shared_feed_forward_length"},  # the tool divides by the heads of keys
    **{name: {"rope.scaling.type"} for name in ("cohere2", "cohere2moe")},  # none
    "orion": {"tensor_data_layout"},  # of the specification, and said of others than it is for
    **{name: {"tensor_data_layout"} for name in ("xverse", "xverse_gqa")},
    # the tool takes neither of them from transformers' configuration
    "glm": {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "context_length"},
    "exaone3": {"attention.layer_norm_epsilon"},  # its norms are RMS norms
    "exaone3_rms": {"attention.layer_norm_epsilon"},
}
"""Keys that the reigning tool writes and we do not, or otherwise, by model; '*' for all: it is wrong there."""
OWN_TENSORS: dict[str, str] = {
    "qwen3vlmoe_tf5": "_exps",
    "bamba": "attn_",
    "xverse_gqa": "attn_k",
    # as if they were turned by position: the order of a head's rows, which changes nothing
    **{name: "attn_" for name in MODELS if name.startswith("nemotron_h")},
}
"""Tensors that the reigning tool has wrong, by model: a part of their names."""
COMPUTED = ("rope_freqs", "ssm_a")
"""Tensors whose last bit is the order of operations', or the library's exponential."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The F32 conversion of every checkpoint, proved, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("arch")

    class Made(dict[str, str]):
        def __missing__(self, name: str) -> str:
            request = Request(str(ARCH / name / "ckpt"), str(folder / f"{name}.gguf"), Options(outtype="f32"))
            self[name] = convert(request)[0].path
            return self[name]

    return Made()


def theirs(name: str) -> dict[str, Any] | None:
    """What the reigning tool's file says; None where it made none."""
    path = ARCH / name / f"{name}.f32.gguf.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_every_decoder_of_the_corpus_is_read_or_named() -> None:
    decoders = {name for name, model in MODELS.items() if model["output_kind"] == "logits"}
    assert decoders - set(DECODERS) <= UNREAD.keys() <= decoders
    assert set(REFUSED) | set(LOOSE) <= set(DECODERS)


def test_what_no_file_can_say_is_refused_with_the_reason(made: dict[str, str]) -> None:
    for name, reason in REFUSED.items():
        with pytest.raises(GgferryError, match=reason):
            made[name]


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(GgferryError, match=UNREAD[name]):
        graph_of(str(ARCH / name / "ckpt"))


CONVERTED = [name for name in DECODERS if name not in REFUSED]


@pytest.mark.parametrize("name", CONVERTED)
def test_both_sides_compute_what_transformers_does(name: str, made: dict[str, str]) -> None:
    expected = np.load(ARCH / name / "hf_logits_f64.npy")
    for side in (graph_of(str(ARCH / name / "ckpt")), graph_of(made[name])):
        assert relative(expected, forward(side, TOKENS)) <= LOOSE.get(name, 2e-5)


@pytest.mark.parametrize("name", [name for name in CONVERTED if theirs(name)])
def test_keys_are_the_reigning_tools(name: str, made: dict[str, str]) -> None:
    other = theirs(name)
    assert other is not None
    ours, odd = open_gguf(made[name]).metadata, ELSEWHERE.get(name, set()) | ELSEWHERE.get("*", set())
    for key, (_, value) in other["kv"].items() if "*" not in odd - ELSEWHERE["*"] else ():
        if value and not key.startswith(("general.", "tokenizer.")) and key.partition(".")[2] not in odd:
            assert key in ours, key
            data = list(ours[key].data) if isinstance(value, list) else ours[key].data
            assert data == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key


@pytest.mark.parametrize("name", [name for name in CONVERTED if theirs(name)])
def test_tensors_are_the_reigning_tools(name: str, made: dict[str, str]) -> None:
    other = theirs(name)
    assert other is not None
    ours, own = open_gguf(made[name]), OWN_TENSORS.get(name, "nothing")
    assert set(ours.tensors) == set(other["tensors"])
    right = {tensor: said for tensor, said in other["tensors"].items() if own not in tensor}
    for tensor, (kind, shape, digest) in right.items():
        ref = ours.tensors[tensor]
        assert list(ref.shape[::-1]) == shape, tensor
        same = kind == ref.type.name == "F32"  # llama-quantize's rules keep Gemma's per_layer_model_proj as it is
        if same and not any(part in tensor for part in COMPUTED):
            data = ours.files[0].read(ref.spans[0].offset, ref.nbytes)
            assert hashlib.sha256(data).hexdigest() == digest, tensor


def test_kept_blocks_are_the_reigning_tools(tmp_path: Path) -> None:
    other = theirs("gpt_oss_mxfp4")
    assert other is not None
    made = open_gguf(convert(Request(str(ARCH / "gpt_oss_mxfp4" / "ckpt"), str(tmp_path / "x.gguf")))[0].path)
    blocks = {name: said for name, said in other["tensors"].items() if said[0] == "MXFP4"}
    assert len(blocks) == 12
    for name, (_, _, digest) in blocks.items():
        ref = made.tensors[name]
        assert ref.type.name == "MXFP4"
        assert hashlib.sha256(made.files[0].read(ref.spans[0].offset, ref.nbytes)).hexdigest() == digest


def test_llama_cpp_continues_as_we_do(made: dict[str, str]) -> None:
    run = [name for name in CONVERTED if "llama.cpp" in graph_of(str(ARCH / name / "ckpt")).runtimes]
    assert len(run) > 20
    prompt, count = TOKENS[:6], 4
    for name, answer in zip(run, continuations(prompt, count, *(Path(made[n]) for n in run)), strict=True):
        history = list(prompt)
        for token, _ in answer:
            scores = forward(graph_of(made[name]), history)[-1]
            assert scores.max() - scores[token] < 5e-3, name
            history.append(token)
