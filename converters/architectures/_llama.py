"""Which blocks of LLaMA's kin have a window: what their classes read."""

from ggferry.converters.schema.block_patterns import window_layers
from ggferry.converters.schema.derivations import Values

UNWINDOWED = ("LlamaForCausalLM", "LlamaModel", "HeliumForCausalLM")
ALIKE = ("MistralForCausalLM", "MixtralForCausalLM")


def window(values: Values) -> int | None:
    """Return the window that the class has."""
    return None if values.get("hf_class") in UNWINDOWED else values.get("window_stated")


def windows(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have it; None where all have."""
    return None if values.get("hf_class") in ALIKE else window_layers(values)
