"""Roles of vision transformers of the SigLIP kind, under Hugging Face's names, which several projectors share."""

from math import isqrt

from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import roles

NAMES = (
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_model.", "vision_tower."),
    ("vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.connector.", "connector."),
)
"""The prefixes of several versions of transformers (`Dialect.renames`)."""


LAST_NORM = vit.norm("v.post_ln", "vision_tower.post_layernorm")
BLOCKS = vit.blocks(
    "vision_tower.encoder.layers.{n}.",
    vit.norm("ln1", "layer_norm1"), vit.attention(), vit.norm("ln2", "layer_norm2"), vit.plain("mlp.fc1", "mlp.fc2"),
)
TOWER = roles(
    vit.patches("vision_tower.embeddings.patch_embedding"), vit.table("vision_tower.embeddings.position_embedding"),
    LAST_NORM, BLOCKS,
)
"""The whole tower."""


def side(positions: int) -> int:
    """Return how many patches a row has of a picture for which a table of so many positions was learned."""
    found = isqrt(positions)
    if found * found != positions:
        raise ValueError(f"{positions} positions are not a square")
    return found


def image_size(values: Values) -> int:
    """Return the side of the picture whose patches a table of `n_positions` counts."""
    return side(values["n_positions"]) * int(values["v_patch_size"])


def patches_a_square(values: Values) -> int:
    """Return how many patches in a row, and in a column, are averaged: a picture has `mm_tokens` squares."""
    side = isqrt(values["mm_tokens"])
    if side < 1:
        raise ValueError(f"{values['mm_tokens']} squares of a picture")
    return int(values["v_image_size"] // values["v_patch_size"] // side)
