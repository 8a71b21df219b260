"""Which blocks of LLaMA's kin have a window, as their classes read it; which defaults are no guess."""

from dataclasses import replace

from ggferry.converters.schema.architecture import Default
from ggferry.converters.schema.block_patterns import window_layers
from ggferry.converters.schema.derivations import Values

UNWINDOWED = ("LlamaForCausalLM", "LlamaModel", "HeliumForCausalLM")
ALIKE = ("MistralForCausalLM", "MixtralForCausalLM")


def windows(values: Values) -> tuple[bool, ...] | None:
    """Return which blocks have it; None where all have."""
    return None if values.get("hf_class") in ALIKE else window_layers(values)


def not_of_gguf(defaults: tuple[Default, ...]) -> tuple[Default, ...]:
    """Return the defaults for every form that may lack the value.

    A GGUF file without a required key is damaged, of whatever model: what LLaMA 1 and 2 were trained with would be a
    guess, and llama.cpp does not load such a file.
    """
    forms = ("ggml", "meta", "mistral-format", "hf")
    return tuple(replace(default, dialect=form) for form in forms for default in defaults)
