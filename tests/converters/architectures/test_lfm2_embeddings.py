"""LFM2 without its output: states by transformers, also from both sides; matrices behind them; llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import InconsistentError
from helpers.sentence_transformers import dense, listed, pooled
from helpers.tiny_models import relative, shake

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)
LIMIT = 2e-6
IDS = [2, 17, 42, 9, 3, 60, 31, 8, 77, 12, 5, 90]
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "block_auto_adjust_ff_dim": False, "max_position_embeddings": 40, "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv"], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}


def model(folder: Path, **changes: Any) -> Any:
    torch.manual_seed(8)
    config = transformers.Lfm2Config(**SIZES | changes, attn_implementation="eager")
    made = transformers.Lfm2Model(config).eval()
    shake(made)
    made.save_pretrained(folder)
    return made


def centered(x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None, **_: Any) -> torch.Tensor:
    return torch.nn.functional.conv1d(x, kernel[:, None], bias, padding="same", groups=len(kernel))


def states(made: Any, *, both_sides: bool = False) -> np.ndarray:
    """The states of the tokens; seen from both sides, nothing is hidden and a kernel's middle tap meets the token."""
    mask = {"full_attention": torch.zeros(1, 1, len(IDS), len(IDS)), "conv": None} if both_sides else None
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        if both_sides:
            patch.setattr(transformers.models.lfm2.modeling_lfm2, "causal_conv1d_fn", centered)
        return made(input_ids=torch.tensor([IDS]), attention_mask=mask, use_cache=False).last_hidden_state[0].numpy()


def renamed(folder: Path, name: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]}))


@pytest.mark.parametrize("both_sides", [False, True])
def test_states_are_transformers(both_sides: bool, tmp_path: Path) -> None:
    expected = states(model(tmp_path / "hf"), both_sides=both_sides)
    if both_sides:
        renamed(tmp_path / "hf", "Lfm2BidirectionalModel")
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path
    for side in (str(tmp_path / "hf"), path):
        assert relative(expected, forward(graph_of(side), IDS)) <= LIMIT


@pytest.mark.parametrize("bias", [False, True])
def test_a_matrix_on_every_token(bias: bool, tmp_path: Path) -> None:
    """ColBERT has no pooling; the mean of its vectors is compared."""
    expected = states(model(tmp_path / "hf")).mean(0)
    listed(tmp_path / "hf", ("Dense", "1_Dense"))
    tensors = dense(tmp_path / "hf", "1_Dense", 24, 64, bias=bias)
    expected = expected @ tensors["linear.weight"].numpy().T + (tensors["linear.bias"].numpy() if bias else 0)
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path
    graph = graph_of(path)
    assert relative(expected / np.linalg.norm(expected), embedding(graph, forward(graph, IDS))) <= LIMIT
    assert graph.checkpoint.metadata["lfm2.embedding_length_out"].data == 24
    assert graph.checkpoint.metadata["lfm2.pooling_type"].data == 0


def test_an_even_kernel_has_no_middle(tmp_path: Path) -> None:
    model(tmp_path, conv_L_cache=4)
    understand(open_checkpoint(str(tmp_path)))
    renamed(tmp_path, "Lfm2BidirectionalModel")
    with pytest.raises(InconsistentError):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize("matrix", [False, True])
def test_llama_cpp_gives_the_vectors(both_sides: bool, matrix: bool, tmp_path: Path, fixtures: Path) -> None:
    """The oracle's BERT lends its vocabulary."""
    model(tmp_path / "hf", vocab_size=384)
    if both_sides:
        renamed(tmp_path / "hf", "Lfm2BidirectionalModel")
    if matrix:
        listed(tmp_path / "hf", ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize"))
        pooled(tmp_path / "hf", "cls_token" if both_sides else "lasttoken")
        dense(tmp_path / "hf", "2_Dense", 24, 64, bias=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), witness=("llama.cpp",))
    heard = convert(request)[0].receipt["testimonies"]
    said = {one["what"]: one["why"] for one in heard if one["witness"] == "llama.cpp"}
    assert said["embeddings"] is None
