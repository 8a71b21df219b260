"""Models of which transformers' float64 differs from ours by more than float32 rounds elsewhere: whose rounding it is.

transformers computes parts of delta attention in float32 whatever the type of the weights, and MiniMax's rates of decay
with 1e-5 in another place than MiniMax's own code. Here its modules are taken with float64 where they say float32, or
with the publisher's rates.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from helpers.tiny_models import TINY, make, relative

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
LONG = [int(token) for token in np.random.default_rng(601).integers(3, 320, 60)]
YARN = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "partial_rotary_factor": 0.5,
}
LIMIT = 1e-5
"""The most measured against float64 throughout is 7e-6, of Qwen3.5-MoE; transformers' own is 8e-6 from it."""


def logits(kind: Any, folder: Path) -> np.ndarray:
    found = kind.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float64, experts_implementation="eager"
    )
    with torch.no_grad():
        return np.asarray(found.eval()(torch.tensor([LONG])).logits[0].numpy())


def in_float64(name: str) -> Any:
    """The class of a module of transformers that says float64 wherever it says float32."""
    module = sys.modules[getattr(transformers, TINY[name].cls).__module__]
    text = inspect.getsource(module)
    for single, double in (("torch.float32", "torch.float64"), (".float()", ".double()")):
        assert single in text
        text = text.replace(single, double)
    again = ModuleType(module.__name__)
    again.__dict__.update(__package__=module.__package__, __file__=module.__file__)
    exec(compile(text, str(module.__file__), "exec", dont_inherit=True), again.__dict__)
    return getattr(again, TINY[name].cls)


@pytest.mark.parametrize(
    ("name", "built"), [("qwen35moe", {}), ("qwen3next", {}), ("qwen3next", {"rope_parameters": YARN}), ("ling 3", {})]
)
def test_delta_attention_is_nearer_to_float64_than_transformers_own_logits(
    name: str, built: dict[str, Any], tmp_path: Path
) -> None:
    make(name, tmp_path, **built)
    exact, theirs = logits(in_float64(name), tmp_path), logits(getattr(transformers, TINY[name].cls), tmp_path)
    ours = forward(understand(open_checkpoint(str(tmp_path))), LONG)
    assert relative(exact, ours) <= LIMIT
    assert relative(exact, ours) <= 2 * relative(exact, theirs)
    assert relative(exact, theirs) > 5e-7


def test_the_rates_of_minimax_are_its_publishers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """modeling_minimax_text_01.py: rate · (1 - block / (blocks - 1 + 1e-5) + 1e-5), of which llama.cpp and we leave out
    the first 1e-5, which keeps a model of one block from dividing by zero."""
    make("minimax-01", tmp_path)
    ours = forward(understand(open_checkpoint(str(tmp_path))), LONG)
    kind = transformers.MiniMaxForCausalLM
    theirs = logits(kind, tmp_path)
    attention = sys.modules[kind.__module__].MiniMaxLightningAttention
    assert relative(theirs, ours) > 3e-6

    def rates(self: Any, device: Any = None) -> torch.Tensor:
        heads = self.num_attention_heads
        share = 1 - self.layer_idx / (self.num_hidden_layers - 1) + 1e-5
        return (2 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads) * share)[:, None, None]

    loads: Callable[..., Any] = kind.from_pretrained

    def from_pretrained(*args: Any, **named: Any) -> Any:
        model = loads(*args, **named)
        for part in model.modules():
            if isinstance(part, attention):
                part.slope_rate = rates(part)
                part.query_decay, part.key_decay, part.diagonal_decay = part.decay_factors(part.slope_rate)
        return model

    monkeypatch.setattr(kind, "from_pretrained", from_pretrained)
    assert relative(logits(kind, tmp_path), ours) <= 1.5e-6
