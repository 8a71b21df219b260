"""RWKV checkpoints: BlinkDL's state dicts without a configuration, and what transformers makes of RWKV-4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.convert import Request, convert, graph_of
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.load import VocabOptions, open_checkpoint, understand
from ggferry.converters.plan import Options
from ggferry.formats.errors import GgferryError, MissingError, UnexpectedTensorError

from tiny_models import TOKENS, make, relative

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)


@pytest.fixture(scope="module")
def pth(oracle: Path) -> Path:
    return oracle / "legacy-other" / "hf" / "rwkv4-s64" / "rwkv4-tiny.pth"


def saved(path: Path, tensors: dict[str, Any]) -> Path:
    import torch

    torch.save(tensors, path)
    return path


def test_rwkv4_pth_computes_the_oracles_logits_from_both_sides(pth: Path, tmp_path: Path) -> None:
    result = convert(Request(str(pth), str(tmp_path / "x.gguf"), Options(outtype="f32"), vocab=BARE))
    expected, ids = np.load(pth.parent / "logits.npy"), json.loads((pth.parent / "logits.json").read_text())["ids"]
    for side in (str(pth), result.path):
        assert relative(expected, forward(graph_of(side), ids)) <= 1e-5
    assert result.receipt["verified"] == "full" and result.receipt["logits"]["relative_rms"] == 0
    assert result.receipt["runtimes"] == {"run_it": [], "none": True}


def test_every_value_of_a_bare_pth_has_an_origin(pth: Path) -> None:
    graph = understand(open_checkpoint(str(pth)))
    origins = {key: origin for key, _, origin in graph.written()}
    assert origins["rwkv.block_count"] == "blocks of tensors"
    assert origins["rwkv.embedding_length"].startswith("shape of")
    assert origins["rwkv.context_length"].startswith("default: ")
    assert origins["rwkv.attention.layer_norm_epsilon"].startswith("default: ")


def test_the_name_says_the_context(pth: Path, tmp_path: Path) -> None:
    named = tmp_path / "RWKV-4-Pile-169M-20220807-8023-ctx4096.pth"
    named.write_bytes(pth.read_bytes())
    assert understand(open_checkpoint(str(named))).sizes["n_ctx"] == 4096
    assert understand(open_checkpoint(str(named)), {"context_length": "8192"}).sizes["n_ctx"] == 8192


def test_the_vocabulary_alone_of_a_bare_pth(pth: Path) -> None:
    assert understand(open_checkpoint(str(pth)), vocab_only=True).architecture.name == "rwkv"


def test_an_incomplete_pth_is_refused(pth: Path, tmp_path: Path) -> None:
    import torch

    whole = torch.load(pth, weights_only=True)
    for name in ("blocks.1.att.key.weight", "blocks.0.ln0.bias", "head.weight", "blocks.0.att.time_decay"):
        rest = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(MissingError):
            understand(open_checkpoint(str(saved(tmp_path / "less.pth", rest))))
    more = {**whole, "blocks.0.att.gate.weight": whole["blocks.0.att.key.weight"]}  # RWKV-5 has one
    with pytest.raises(UnexpectedTensorError, match=r"att\.gate"):
        understand(open_checkpoint(str(saved(tmp_path / "more.pth", more))))
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(saved(tmp_path / "other.pth", {"a": whole["emb.weight"]}))))


def test_what_transformers_rescales_differs_by_the_norms_epsilon_only(tmp_path: Path) -> None:
    """It halves the stream every so many blocks at inference; the weights in the file are the trained ones."""
    expected = make("rwkv", tmp_path, rescale_every=1)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert 1e-7 < relative(expected, forward(graph, TOKENS)) < 2e-4
    assert any("rescale_every=1" in note for note in graph.notes)
