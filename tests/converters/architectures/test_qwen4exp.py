"""Qwen4-Exp: the numbers of its hash, in tensors of a checkpoint, of its configuration, and in GGUF."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.tiny_models import TOKENS, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
NAME = "qwen4exp"
AT = "model.layers.2.ple.ple_embedding."
HASH = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
Tensors = dict[str, np.ndarray]


def edited(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of the checkpoint in `folder`."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def configured(folder: Path, **changes: object) -> None:
    """Change what the configuration states."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_numbers_of_the_hash_are_whole_in_gguf(tmp_path: Path) -> None:
    make(NAME, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    made = open_gguf(str(write(understand(open_checkpoint(str(tmp_path))), tmp_path / "x.gguf")))
    keys = {"layer_multipliers": "layer_multipliers", "ngram_heads_vocab_sizes": "head_vocab_sizes",
            "ngram_heads_offsets": "head_offsets"}  # fmt: skip
    for name, key in keys.items():
        assert made.metadata[f"qwen4exp.ple.{key}"].data == tuple(tensors[f"{AT}{name}"].tolist())
    assert max(made.metadata["qwen4exp.ple.layer_multipliers"].data) > 1 << 53


@pytest.mark.slow
def test_without_its_tensors_they_are_what_transformers_computes(tmp_path: Path) -> None:
    logits = make(NAME, tmp_path)
    held = understand(open_checkpoint(str(tmp_path)))
    edited(tmp_path, lambda tensors: {name: x for name, x in tensors.items() if not name.endswith(HASH)})
    graph = understand(open_checkpoint(str(tmp_path)))
    numbers = ("multipliers", "head_sizes", "head_offsets")
    assert [graph.sizes[name] for name in numbers] == [held.sizes[name] for name in numbers]
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    configured(tmp_path, seed=1235)
    assert understand(open_checkpoint(str(tmp_path))).sizes["multipliers"] != held.sizes["multipliers"]


@pytest.mark.slow
def test_a_table_in_one_part_is_the_same(tmp_path: Path) -> None:
    logits = make(NAME, tmp_path)
    part = f"{AT}ngram_embedding.shard_"

    def joined(tensors: Tensors) -> Tensors:
        parts = [tensors.pop(f"{part}{n}.weight") for n in range(7)]
        return {**tensors, f"{AT}ngram_embedding.weight": np.concatenate(parts)}

    edited(tmp_path, joined)
    again = graph_of(str(write(understand(open_checkpoint(str(tmp_path))), tmp_path / "x.gguf")))
    assert relative(logits, forward(again, TOKENS)) <= 1e-5


def test_the_first_of_several_ends_ends_sequences(tmp_path: Path) -> None:
    make(NAME, tmp_path, eos_token_id=[42, 9])
    assert understand(open_checkpoint(str(tmp_path))).sizes["ple_eos"] == 42


BROKEN: dict[str, Callable[[Tensors], Tensors]] = {
    r"layer_multipliers.*expected a list of at most 4096 whole numbers": lambda tensors: {
        **tensors, f"{AT}layer_multipliers": np.ones(3, np.float32)
    },
    r"tensors \*\.ple\.ple_embedding\.layer_multipliers: found 2": lambda tensors: {
        **tensors, "model.layers.0.ple.ple_embedding.layer_multipliers": np.ones(3, np.int64)
    },
    r"head_sizes.*expected 1 to": lambda tensors: {
        **tensors, f"{AT}ngram_heads_vocab_sizes": np.zeros(8, np.int64)
    },
    r"least_rows <= ngram_rows": lambda tensors: {
        **tensors, f"{AT}ngram_heads_offsets": tensors[f"{AT}ngram_heads_offsets"] + 200
    },
    r"multipliers": lambda tensors: {**tensors, f"{AT}layer_multipliers": np.ones(4, np.int64)},
    r"ngram_embedding\.3\.weight. missing": lambda tensors: {
        name: x for name, x in tensors.items() if "shard_3" not in name
    },
}  # fmt: skip


def test_broken_ones_are_refused(tmp_path: Path) -> None:
    make(NAME, tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for words, change in BROKEN.items():
        save_file(change(dict(whole)), tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(GgferryError, match=words):
            understand(open_checkpoint(str(tmp_path)))
    save_file(whole, tmp_path / "model.safetensors", {"format": "pt"})
    for changes, words in (
        ({"output_gate_type": None}, "delta_gate"),
        ({"ple_layer_ids": [1, 3]}, "n_ple"),
        ({"ple_layer_ids": [0]}, "counts blocks from one|ple"),
        ({"indexer_budget": 7}, "block_tokens"),
        ({"indexer_kv_heads": 2}, "index_keys"),
    ):
        config = (tmp_path / "config.json").read_text()
        configured(tmp_path, **changes)
        with pytest.raises(GgferryError, match=words):
            understand(open_checkpoint(str(tmp_path)))
        (tmp_path / "config.json").write_text(config)
