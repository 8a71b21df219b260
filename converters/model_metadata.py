"""The metadata of an output file: general.*, the architecture's keys, the tokenizer's, each with its origin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.graph import ModelGraph
from ggferry.converters.metadata import Entry
from ggferry.converters.plan import Options, Step
from ggferry.converters.tokenizers.base import Tokenizer
from ggferry.formats.gguf_values import Value, ValueType


def architecture_entries(graph: ModelGraph) -> dict[str, Entry]:
    """The hparams under their GGUF keys."""
    entries = {}
    for spec in graph.architecture.hparams:
        param = graph.hparams.get(spec.name)
        if spec.key and param is not None:
            entries[f"{graph.architecture.name}.{spec.key}"] = Entry(_value(spec.kind, param.value), param.origin)
    return entries


def _value(kind: ValueType, data: Any) -> Value:
    return Value(kind, float(data) if kind in (ValueType.FLOAT32, ValueType.FLOAT64) else data)


def tokenizer_entries(tokenizer: Tokenizer | None) -> dict[str, Entry]:
    """The tokenizer's keys, with the origin of each where it is known."""
    if tokenizer is None:
        return {}
    origins = tokenizer.origins
    return {
        key: Entry(value, origins.get(key.rsplit(".", 1)[-1].removesuffix("_token_id"), "the source's vocabulary"))
        for key, value in tokenizer.to_kv().items()
    }
