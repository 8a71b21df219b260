"""Whatever a configuration or a GGUF header says, the answer is a result or one of our errors."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.gguf.values import Value, ValueType, u32
from helpers.hostile import GGUF, JSON, answers
from helpers.tiny_models import TINY, make, write

QUICK = ("llama yarn", "phi3 longrope", "gemma3, old", "deepseek v3", "mamba2", "falcon mamba", "rwkv", "gpt2",
         "falcon rw")
SLOW = (
    "gemma4 shared",
    "gemma4 experts",
    "gemma3n",
    "llama4 chunks",
    "gpt-oss",
    "qwen3vlmoe",
    "smollm3 otherwise",
    "exaone_moe",
    "olmo3 yarn",
    "ministral3",
    "starcoder heads",
    "gptj",
    "gptneo",
    "gptneox",
    "mpt clip",
    "bloom",
    "falcon 40b",
)
MODELS = (*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW))
TRIES = pytest.mark.parametrize("tries", [25, pytest.param(250, marks=pytest.mark.slow)])
MORE = {
    "sliding_window": 4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "head_dim": 8, "clip_qkv": 1.0,
    "tie_word_embeddings": True, "partial_rotary_factor": 0.5, "num_experts": 2, "n_group": 2, "text_config": {},
    "original_max_position_embeddings": 4, "sliding_window_pattern": 2, "use_sliding_window": True,
}
pytestmark = pytest.mark.filterwarnings("ignore")


def places(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))


def changed(config: dict[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    found = copy.deepcopy(config)
    reduce(getitem, place[:-1], found)[place[-1]] = value
    return found


@pytest.mark.sampled(3)
@TRIES
@pytest.mark.parametrize("name", MODELS)
def test_any_configuration(name: str, tries: int, tmp_path: Path) -> None:
    make(name, tmp_path)
    checkpoint, chance = open_checkpoint(str(tmp_path)), random.Random(name)
    given = dict(checkpoint.metadata)
    wanted = [(place, value) for place in places({**MORE, **given}) for value in (*JSON, MORE.get(place[0]))]
    for place, value in chance.sample(wanted, min(tries, len(wanted))):
        config = changed({**MORE, **given} if place not in set(places(given)) else given, place, value)
        answers(replace(checkpoint, metadata=config), (place, value))


@pytest.mark.slow
@pytest.mark.unix
@pytest.mark.parametrize("name", sorted(TINY))
def test_numbers_larger_than_any_memory(name: str, tmp_path: Path) -> None:
    import resource  # not on Windows

    make(name, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given = dict(checkpoint.metadata)
    for place in places(given):
        if type(reduce(getitem, place, given)) is int:
            answers(replace(checkpoint, metadata=changed(given, place, 2**32 - 2)), place)
    of_gguf = open_checkpoint(str(write(understand(checkpoint), tmp_path / "x.gguf")))
    for key, value in of_gguf.metadata.items():
        if not key.startswith("tokenizer.") and getattr(value, "type", None) is ValueType.UINT32:
            answers(replace(of_gguf, metadata={**of_gguf.metadata, key: u32(2**32 - 2)}), key)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB


@pytest.mark.sampled(3)
@TRIES
@pytest.mark.parametrize("name", MODELS)
def test_any_header(name: str, tries: int, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    checkpoint = open_checkpoint(str(write(graph, tmp_path / "x.gguf")))
    keys = [f"{graph.architecture.name}.{spec.key}" for spec in graph.architecture.hparams if spec.key]
    wanted: list[tuple[str, Value | None]] = [(key, value) for key in keys for value in GGUF]
    for key, value in random.Random(name).sample(wanted, min(tries, len(wanted))):
        header = {**checkpoint.metadata, key: value}
        answers(replace(checkpoint, metadata={k: v for k, v in header.items() if v is not None}), (key, value))
