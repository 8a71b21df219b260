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
from helpers.tiny_todays import TODAYS

BLOCK = "blk.1."
QUICK = ("gpt-oss", "gemma4 experts", "gemma3n")
pytestmark = pytest.mark.filterwarnings("ignore")


def moved(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=0) if x.shape[0] > 1 else x * np.float32(1.5)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TODAYS]
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
