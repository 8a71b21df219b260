"""Kimi's towers (MoonViT): how their pairs are ordered, and what derives from their configuration."""

from ggferry.converters.schema.architecture import Drop
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import Rearrange, TrailingBlocks
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import Roles, roles

LAYER_NORM = 1e-5
"""Epsilon of torch.nn.LayerNorm."""

_PAIRS = (("axis", 2), ("pair", 2))
AXES_APART = Then(
    Rearrange("(h turn axis pair) -> (h axis turn pair)", (("h", "3*v_n_head"), *_PAIRS)),
    TrailingBlocks("2*v_n_embd", Rearrange("(h axis turn pair) -> (h turn axis pair)", (("h", "v_n_head"), *_PAIRS))),
)
"""From pairs whose axes take turns to all pairs of one axis, then of the other; of queries and keys, not of values."""
NAMES = (
    ("model.vision_tower.", "vision_tower."),
    ("model.mm_projector.", "mm_projector."),
    ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
    ("mm_projector.proj.linear_1.", "mm_projector.proj.0."),
    ("mm_projector.proj.linear_2.", "mm_projector.proj.2."),
    ("mm_projector.linear_1.", "mm_projector.proj.0."),
    ("mm_projector.linear_2.", "mm_projector.proj.2."),
)
DROPS = (
    Drop("vision_tower.patch_embed.pos_emb.time_weight", "of films, which this file is not for"),
    Drop("vision_tower.rotary_emb.*", "the rates of the rotation", follows=True),
)


def queries_keys_values(source: str) -> Roles:
    """Return queries, keys and values cut from one matrix, with the pairs of both axes apart."""
    apart = Rearrange("(h turn axis pair) -> (h axis turn pair)", (("h", "v_n_head"), *_PAIRS))
    parts = {x: Split(f"{i}*v_n_embd", f"{i + 1}*v_n_embd") for i, x in enumerate("qkv")}
    lines = [
        f"attn_{x}.{part} : {shape} | hf {source}.{part} @{x}"
        for x in "qkv" for part, shape in (("weight", "v_n_embd v_n_embd"), ("bias", "v_n_embd"))
    ]
    return roles("\n".join(lines), q=Then(parts["q"], apart), k=Then(parts["k"], apart), v=parts["v"])


def image_size(values: Values) -> int:
    """Return the side of the picture whose patches the table of positions counts."""
    return int(values["positions_high"] * values["v_patch_size"])


def side(values: Values) -> int:
    """Return how many patches of a row are merged: as many as of a column."""
    if len(set(values["merges"])) != 1:
        raise ValueError(f"squares of {values['merges']} patches")
    return int(values["merges"][0])
