"""The prompts of the proof: tokens with gaps between them against transformers and against the rule of windows, and
what the receipt says that they came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.model import Choices, Places
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.prompts import MOST_TOKENS, prompts, tokens_for_experts
from ggferry.converters.understand import understand
from ggferry.formats.errors import UnsupportedError, UsageError, VerificationError
from helpers.models.sizes import LONG
from helpers.tiny import ROPE
from helpers.tiny_models import TOKENS, make, relative, write

LIMIT = 1e-5
FEW = TOKENS[:8]
pytestmark = pytest.mark.filterwarnings("ignore")


def model(name: str, folder: Path, **changes: Any) -> ModelGraph:
    make(name, folder, **changes)
    return understand(open_checkpoint(str(folder)))


def logits_at(folder: Path, positions: list[int]) -> np.ndarray:
    """transformers' logits of FEW at these positions, one after the other."""
    import torch
    import transformers

    cls = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    net = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        return net(torch.tensor([FEW]), position_ids=torch.tensor([positions])).logits[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama llama3", {}),
        ("llama yarn", {}),
        ("llama dynamic", {}),
        ("llama longrope short", {}),
        ("phi3 longrope", {}),
        ("gemma3", {"sliding_window": 40}),
    ],
)
@pytest.mark.parametrize("start", [0, 30, 400])
def test_far_positions_are_transformers(name: str, changes: dict[str, Any], start: int, tmp_path: Path) -> None:
    """Each regime of rotary embeddings, the second of which begins at 8, 32 or 64 here."""
    graph = model(name, tmp_path, **changes)
    at = list(range(start, start + len(FEW)))
    found = forward(graph, FEW, places=Places(tuple(at)))
    assert relative(logits_at(tmp_path, at), found) <= LIMIT


def test_learned_positions_may_have_gaps(tmp_path: Path) -> None:
    graph, at = model("gpt2", tmp_path), [0, 1, 2, 30, 31, 40, 62, 63]
    assert relative(logits_at(tmp_path, at), forward(graph, FEW, places=Places(tuple(at)))) <= LIMIT
    with pytest.raises(UsageError, match="65"):
        forward(graph, FEW, places=Places((*at[:-1], 64)))


def test_what_a_window_hides_makes_no_difference(tmp_path: Path) -> None:
    """A window of seven tokens: one at distance six is seen, one at distance seven is not."""
    graph = model("mistral window", tmp_path, num_hidden_layers=1)
    alone = forward(graph, FEW[-1:], places=Places((40,)))
    behind = forward(graph, FEW[-2:], places=Places((33, 40), rows=(1,)))
    within = forward(graph, FEW[-2:], places=Places((34, 40), rows=(1,)))
    assert relative(alone, behind) <= 1e-6 < 1e-3 < relative(alone, within)


def test_rows_are_those_of_the_whole(tmp_path: Path) -> None:
    graph = model("qwen2", tmp_path)
    assert relative(forward(graph, FEW)[[2, 7]], forward(graph, FEW, places=Places(rows=(2, 7)))) <= 1e-6


def test_a_model_without_positions_takes_none(tmp_path: Path) -> None:
    graph = model("mamba", tmp_path)
    assert [text.name for text in prompts(graph)] == ["start"]
    with pytest.raises(UnsupportedError, match="placed"):
        forward(graph, FEW, places=Places(tuple(range(8, 16))))


def test_the_receipt_says_what_was_reached(tmp_path: Path) -> None:
    graph = model("mistral window", tmp_path / "a", sliding_window=40, max_position_embeddings=300)
    proof = check_logits(graph, understand(open_checkpoint(str(write(graph, tmp_path / "a.gguf")))))
    assert proof.reached == ("positions beyond the window of 40", "positions beyond the original context of 300")
    assert not proof.not_reached and [text["name"] for text in proof.prompts] == ["start", "far"]
    assert proof.prompts[1]["positions"] == [0, 1, 2, 39, 40, 41, 299, 300, 301]


def test_experts_without_a_token_are_named(tmp_path: Path) -> None:
    wide = {"num_local_experts": 64, "num_experts_per_tok": 1}
    assert tokens_for_experts({"n_expert": 64, "n_expert_used": 1}) == MOST_TOKENS
    assert tokens_for_experts({"n_expert": 8, "n_expert_used": 2}) == 17
    graph = model("mixtral", tmp_path / "a", **wide)
    proof = check_logits(graph, graph)
    assert any(line.startswith("blk.0.experts without a token: ") for line in proof.not_reached)
    graph = model("mixtral", tmp_path / "b")
    assert "all 5 experts of 3 blocks" in check_logits(graph, graph).reached


def test_factors_of_long_texts_are_proved(tmp_path: Path) -> None:
    """They act beyond the original context only: sixteen tokens never come to them."""
    rope = {**LONG, **ROPE, "original_max_position_embeddings": 500}
    graph = model("phi3 longrope", tmp_path / "a", rope_parameters=rope, original_max_position_embeddings=500)

    def damage(tensors: dict[str, np.ndarray]) -> None:
        tensors["rope_factors_long.weight"] = tensors["rope_factors_short.weight"].copy()

    good = understand(open_checkpoint(str(write(graph, tmp_path / "good.gguf"))))
    assert "positions beyond the original context of 500" in check_logits(graph, good).reached
    bad = understand(open_checkpoint(str(write(graph, tmp_path / "bad.gguf", damage))))
    with pytest.raises(VerificationError, match="forward pass"):
        check_logits(graph, bad)


def test_a_choice_of_experts_that_rounding_decides(tmp_path: Path) -> None:
    """Two experts are preferred alike, and in the output one of them by a last digit less: no difference of models,
    though other experts are computed."""
    from safetensors.numpy import load_file, save_file

    make("mixtral", tmp_path / "hf", num_experts_per_tok=1)
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    router = next(name for name in tensors if "layers.0" in name and name.endswith("gate.weight"))
    tensors[router][1] = tensors[router][0]
    save_file(tensors, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    graph = understand(open_checkpoint(str(tmp_path / "hf")))

    def nudge(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.ffn_gate_inp.weight"][1] *= np.float32(1 - 2.0**-22)

    written = understand(open_checkpoint(str(write(graph, tmp_path / "x.gguf", nudge))))
    tokens = prompts(graph)[0].tokens
    assert relative(forward(graph, tokens), forward(written, tokens)) > 1e-3
    check_logits(graph, written)
    first, choices = Choices(), Choices()
    forward(graph, tokens, choices=first)
    forward(written, tokens, choices=choices)
    assert first.close == choices.close < len(tokens) and not first.chosen["blk.0."].equal(choices.chosen["blk.0."])
