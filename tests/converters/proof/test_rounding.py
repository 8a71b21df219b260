"""The limit of what counts as the same model: measured in the model itself, where rounding costs more than elsewhere.

What float32 costs is held against transformers in float64; sound models with large scores, multipliers and norms pass,
the same models with a planted fault do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.compare import Case, compare_outputs
from ggferry.converters.proof.logits import LogitsProof, check_logits, exact_limit
from ggferry.converters.proof.passes import _once
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.understand import understand
from ggferry.formats.errors import VerificationError
from helpers.models.sizes import LONG
from helpers.tiny import ROPE
from helpers.tiny_models import TOKENS, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
SCORES = {"q_proj": 8.0, "k_proj": 8.0}
WILD: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "attention scores of some hundred": ("llama", {"num_hidden_layers": 8}, SCORES),
    "large residuals": ("granite", {"residual_multiplier": 4.0, "num_hidden_layers": 8}, SCORES),
    "multipliers and norms": (
        "falcon-h1 normed, tied",
        {
            "embedding_multiplier": 4.1,
            "attention_in_multiplier": 2.1,
            "key_multiplier": 6.4,
            "num_hidden_layers": 6,
            "ssm_multipliers": [0.44, 1.05, 6.1, 0.44, 0.55],
            "mlp_multipliers": [0.23, 0.7],
        },
        {"layernorm": 3.0},
    ),
}


def scaled(name: str, folder: Path, factors: dict[str, float], **changes: Any) -> ModelGraph:
    make(name, folder, **changes)
    tensors = load_file(folder / "model.safetensors")
    for part, factor in factors.items():
        for tensor in tensors:
            if part in tensor:
                tensors[tensor] = tensors[tensor] * np.float32(factor)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return understand(open_checkpoint(str(folder)))


def proof_of(
    graph: ModelGraph, path: Path, damage: Callable[[dict[str, np.ndarray]], None] | None = None
) -> LogitsProof:
    return check_logits(graph, understand(open_checkpoint(str(write(graph, path, damage)))))


def scale(name: str, factor: float, at: int | None = None) -> Callable[[dict[str, np.ndarray]], None]:
    def damage(tensors: dict[str, np.ndarray]) -> None:
        values = tensors[name].reshape(-1)
        values[slice(None) if at is None else at] *= np.float32(factor)

    return damage


def test_a_tied_matrix_is_read_for_one_of_the_two_that_it_is() -> None:
    whole, first, second = np.arange(4), np.array([0, 1, -1, -1]), np.array([-1, -1, 0, 1])
    embedding, output = (Node(name, None, (4, 2), (), SAME) for name in ("token_embd.weight", "output.weight"))  # type: ignore[arg-type]
    assert [(node.name, at.tolist()) for node, at in _once([(embedding, whole), (output, whole)])] == [
        ("token_embd.weight", [0, 1, 2, 3])
    ]
    assert [at.tolist() for _, at in _once([(embedding, first), (output, second)])] == [first.tolist(), second.tolist()]


def test_a_pass_in_float64_is_that_of_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    single = make("gpt2", tmp_path)
    net = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").double().eval()
    with torch.no_grad():
        expected = net(torch.tensor([TOKENS])).logits[0].numpy()
    graph = understand(open_checkpoint(str(tmp_path)))
    found = forward(graph, TOKENS, weights=Weights(graph, wide=True))
    assert found.dtype == np.float64 and relative(expected, found) <= 1e-11 < 1e-8 < relative(expected, single)


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "mamba2", "qwen3next"])
def test_every_kind_of_block_is_computed_in_float64(name: str, tmp_path: Path) -> None:
    """A float32 tensor left in between would make the layout of the output show."""
    make(name, tmp_path)
    graph = understand(open_checkpoint(str(tmp_path)))
    output = understand(open_checkpoint(str(write(graph, tmp_path / "a.gguf"))))
    wide, other = (forward(side, TOKENS, weights=Weights(side, wide=True)) for side in (graph, output))
    assert relative(wide, other) <= 1e-12 < 1e-8 < relative(wide, forward(graph, TOKENS)) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", WILD)
def test_sound_models_in_which_rounding_costs_more(case: str, tmp_path: Path) -> None:
    name, changes, factors = WILD[case]
    graph = scaled(name, tmp_path / "hf", factors, **changes)
    proof = proof_of(graph, tmp_path / "a.gguf")
    assert proof.relative_rms > exact_limit(graph) and proof.rounding and proof.in_float64 is not None
    assert {"rounding", "in_float64"} <= proof.as_dict().keys()
    with pytest.raises(VerificationError, match="in float64"):
        proof_of(graph, tmp_path / "b.gguf", scale("blk.0.attn_norm.weight", 1.001, 3))
    small = scale("blk.1.ffn_up.weight", 1.00001)
    if "falcon" in name:  # its products are rounded once more than that
        bad = understand(open_checkpoint(str(write(graph, tmp_path / "c.gguf", small))))
        with pytest.raises(VerificationError, match=r"ffn_up\.weight"):
            compare_outputs([Case(Sides(graph, bad, Encoding()), "full")])
        return
    with pytest.raises(VerificationError, match="in float64"):
        proof_of(graph, tmp_path / "c.gguf", small)


def test_ordinary_models_are_not_computed_twice(tmp_path: Path) -> None:
    graph = scaled("llama", tmp_path / "hf", {})
    proof = proof_of(graph, tmp_path / "a.gguf")
    assert proof.rounding is None and not {"rounding", "in_float64"} & proof.as_dict().keys()


FAR = 131072
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.3,
    "rope_theta": 500000.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("llama llama3", LLAMA3),
        ("llama longrope", {**LONG, "long_factor": [1.0, 1.7000000001, 2.3999999, 33.1]}),
        ("phi3 longrope", {**LONG, **ROPE, "long_factor": [1.08, 1.1000000238418579, 1.1300000000000001, 64.12435]}),
        ("llama linear", {"rope_type": "linear", "factor": 1.7, "rope_theta": 12345.678}),
        ("qwen2", {"rope_type": "default", "rope_theta": 12345.678}),
        (
            "llama yarn",
            {"rope_type": "yarn", "factor": 3.3, "rope_theta": 12345.678, "original_max_position_embeddings": 4096},
        ),
    ],
)
def test_numbers_that_float32_has_not(name: str, rope: dict[str, Any], tmp_path: Path) -> None:
    """Both sides compute with what GGUF holds: at 131,072 a rounded divisor turns a head visibly further."""
    changes = {"original_max_position_embeddings": 8} if name.startswith("phi3") else {}
    make(name, tmp_path / "hf", max_position_embeddings=FAR, rope_parameters=rope, **changes)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    proof = proof_of(graph, tmp_path / "a.gguf")
    assert proof.rounding is None and proof.reached
    if factors := [node.name for node in graph.nodes if node.name.startswith("rope_")]:
        with pytest.raises(VerificationError, match="forward pass"):
            proof_of(graph, tmp_path / "b.gguf", scale(factors[0], 1.00001))


@pytest.mark.parametrize("name", ["llama dynamic", "qwen2", "glm4", "smollm3"])
def test_what_only_the_source_stretches_is_no_difference(name: str, tmp_path: Path) -> None:
    """Up to its context the model is transformers'; beyond it no runtime stretches, which a note says."""
    rope: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0}
    rope |= {"partial_rotary_factor": 0.5} if name == "glm4" else {}
    expected = make(name, tmp_path / "hf", max_position_embeddings=40, rope_parameters=rope)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    output = understand(open_checkpoint(str(write(graph, tmp_path / "a.gguf"))))
    proof = check_logits(graph, output)
    assert proof.not_reached == ("positions beyond the original context of 40",)
    assert max(text.get("positions", [0])[-1] for text in proof.prompts) == 39
    assert relative(expected, forward(output, TOKENS)) <= 1e-5
    assert any("dynamically beyond 40 tokens" in note for note in graph.notes)
