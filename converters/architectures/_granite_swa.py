"""Which blocks of a Granite with windows turn, and by which base: a list has one a block, 0 where it does not turn."""

from __future__ import annotations

from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL


def base(values: Values) -> float:
    """Return rope.freq_base. Raises ValueError where blocks have several, for which GGUF has no key."""
    listed = {base for base in values.get("rope_bases", ()) if base}
    if len(listed) > 1:
        raise ValueError(f"layer_rope_theta with {len(listed)} bases: GGUF has one for all blocks")
    return float(listed.pop() if listed else values.get("base_stated", 10000.0))


def rotated(values: Values) -> tuple[bool, ...]:
    """Return attention.rope_pattern: the blocks with a base, or those of a list, or all."""
    listed = values.get("rope_bases", values.get("rope_stated"))
    return (True,) * values["n_layer"] if listed is None else tuple(bool(item) for item in listed)


ROTATED = (
    HParam("rope_bases", None, F32, {"hf": "layer_rope_theta"}, length="n_layer", required=False),
    HParam("rope_stated", None, BOOL, {"hf": "no_rope_layers"}, words={1: True, 0: False}, length="n_layer",
           required=False, own_only=True),
    HParam("base_stated", None, F32, rope.BASE.fields, required=False),
    HParam("rope_base", "rope.freq_base", F32, derive=base, check="rope_base > 1"),
    HParam("rope_layers", "attention.rope_pattern", BOOL, derive=rotated, implied="each n >= 0", length="n_layer"),
)
WINDOWS = (
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa",
           defaults=(Default(128, "transformers' default", dialect="hf"),)),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, {"hf": "layer_types"}, length="n_layer",
           words={"sliding_attention": True, "full_attention": False}, derive="each n % 4 != 0"),
)
