"""What LLaMA 4's configuration says of its blocks, and GGUF by constants."""

from ggferry.converters.schema.block_patterns import Flags, rotated_as_listed
from ggferry.converters.schema.derivations import Values


def listed_blocks(values: Values) -> int:
    """How many blocks `no_rope_layers` speaks of: all, or none."""
    return len(values["rope_stated"])


def listed_experts(values: Values) -> int:
    """How many blocks `moe_layers` names."""
    return len(values["moe_layers"])


def rotated(values: Values) -> Flags:
    """Blocks that turn queries and keys: as listed, where the list is not empty, or all but every so-many-th."""
    return rotated_as_listed({**values, "rope_stated": values.get("rope_stated") or None})


def chunked(values: Values) -> Flags:
    """Blocks that attend in chunks: as listed, or those that turn queries and keys."""
    listed = values.get("layer_chunks")
    return tuple(values["rope_layers"]) if listed is None else tuple(listed)


def normed(values: Values) -> bool:
    """Whether queries and keys are normed where they are turned, as llama.cpp tells the two published models apart."""
    return bool(values["n_expert"] != 128)


def temperature(values: Values) -> float:
    """attention.temperature_scale, 0 where queries do not grow with their position."""
    return float(values["temperature_stated"]) if values["tempered"] else 0.0


def expert_step(values: Values) -> int:
    """interleave_moe_layer_step: as the list of blocks with experts has it, which alone counts where there is one, or
    as stated."""
    declared, listed = values.get("step_stated"), values.get("moe_layers")
    if listed is None:
        return int(values["step_stated"])
    steps = ([] if declared is None else [int(declared)]) + list(range(1, values["n_layer"] + 1))
    return next((step for step in steps if _each(step, values["n_layer"]) == set(listed)), steps[0])


def _each(step: int, n_layer: int) -> set[int]:
    return {n for n in range(n_layer) if step and (n + 1) % step == 0}


def misplaced_experts(values: Values) -> int:
    """Blocks with experts that are not every `moe_step`th, or the other way about; GGUF has no word for them."""
    step, listed = values["moe_step"], values.get("moe_layers")
    return 0 if listed is None else len(_each(step, values["n_layer"]) ^ set(listed))
