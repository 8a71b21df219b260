"""What OLMo 3 alone computes of its settings."""

from ggferry.converters.schema.block_patterns import base_of_windows
from ggferry.converters.schema.derivations import Values

DEFAULT_BASE = 500000.0


def base(values: Values) -> float | None:
    """Return the rotary base of blocks with a window: `rope_theta` is that of the others in transformers' Olmo3."""
    of_window = base_of_windows(values)
    return DEFAULT_BASE if of_window and values.get("hf_class") == "Olmo3ForCausalLM" else of_window
