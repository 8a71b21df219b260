"""Merge the adapters that were opened with a model into it, whatever the form of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.merge import Model, merged_into
from ggferry.converters.adapters.merge_gguf import merged_gguf
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.reader import Kind, kind_of


def with_adapters(checkpoint: Checkpoint) -> Checkpoint:
    """Return a model with its `adapters` merged into it; one without adapters as it is.

    Raises:
        UnsupportedError: An adapter, or a base, of which this is not possible.
        UnexpectedTensorError: An adapter changes what the base has not.
        ShapeError: It does not fit the base.
        CorruptError: Another of its subclasses, for damaged adapters.
    """
    if not checkpoint.adapters:
        return checkpoint
    kind = kind_of(checkpoint.container)
    if kind is Kind.GGUF:
        return merged_gguf(checkpoint)
    if kind is not Kind.TRAINING:
        raise UnsupportedError(
            "--lora merges into models in Hugging Face's form or GGUF's",
            path=checkpoint.path,
            found=checkpoint.container,
        )
    plain = dequantized(checkpoint)
    return merged_into(Model(_without_scheme(plain) if plain is not checkpoint else plain), checkpoint)


def _without_scheme(checkpoint: Checkpoint) -> Checkpoint:
    """Return a dequantized model without what its configuration says of the quantization."""
    names = ("quantization_config", "compression_config", "quantization")

    def cleaned(place: Mapping[str, Any]) -> JSONObject:
        kept = {key: value for key, value in place.items() if key not in names}
        inner = ("text_config", "llm_config")
        return {
            key: cleaned(value) if key in inner and isinstance(value, dict) else value for key, value in kept.items()
        }

    beside = {role: path for role, path in checkpoint.sidecars.items() if role != "quantize_config"}
    return replace(checkpoint, metadata=cleaned(checkpoint.metadata), sidecars=beside)
