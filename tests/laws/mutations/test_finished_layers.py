"""Every tensor of today's families matters: with its rows, or its experts, one place on, the forward pass of the output
differs from the source's, which is what the proof sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from helpers.tiny_models import TOKENS, make, relative, write

BLOCK = "blk.1."
QUICK = ("gpt-oss", "gemma4 experts", "gemma3n")
SLOW = (
    "gemma4 keys as values", "gemma4 shared", "gemma3n shared", "llama4", "llama4 chunks", "gpt-oss rounded", "qwen3vl",
    "qwen3vlmoe", "qwen2vl", "smollm3", "smollm3 otherwise", "seed_oss", "seed_oss output bias", "olmo3", "olmo3 yarn",
    "olmoe", "olmoe grouped", "glm4", "glm4moe", "exaone4", "exaone4 windows", "exaone_moe", "minimax_m2", "ministral3",
)
pytestmark = pytest.mark.filterwarnings("ignore")


def moved(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=0) if x.shape[0] > 1 else x * np.float32(1.5)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_tensor_is_seen(name: str, tmp_path: Path) -> None:
    expected = make(name, tmp_path / "hf")
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    tensors = [node.name for node in source.nodes if not node.role.per_block or node.name.startswith(BLOCK)]
    assert len(tensors) > 8
    unseen = []
    for number, tensor in enumerate(tensors):
        made = write(source, tmp_path / f"{number}.gguf", lambda held, key=tensor: held.update({key: moved(held[key])}))
        if relative(expected, forward(understand(open_checkpoint(str(made))), TOKENS)) <= 1e-4:
            unseen.append(tensor)
        made.unlink()
    assert unseen == []
