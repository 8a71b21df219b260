"""Qwen's towers, and those built like them: Conv3D over two frames, patches merged by squares, rotated by two axes."""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Item
from ggferry.converters.schema.roles import Roles, roles

NAMES = (("model.visual.", "visual."), ("thinker.visual.", "visual."), ("thinker.model.visual.", "visual."))
"""The prefixes of transformers 5 and of the models that also hear (`Dialect.renames`)."""
N_LAYER = replace(clip.V_N_LAYER, fields={"hf": "vision_config.depth|vision_config.num_hidden_layers"})
N_HEAD = replace(clip.V_N_HEAD, fields={"hf": "vision_config.num_heads|vision_config.num_attention_heads"})
IMAGE_SIZE = replace(
    clip.V_IMAGE_SIZE,
    defaults=(Default(560, "pictures are of any size; llama.cpp's own converter writes this", dialect="hf"),),
)
EPS = replace(clip.V_EPS, fields={}, defaults=(Default(1e-6, "transformers: every norm of this tower", dialect="hf"),))
MERGE = HParam(
    "v_merge", None, fields={"hf": "vision_config.spatial_merge_size"}, words={2: 2}, required=False,
    defaults=(Default(2, "squares of two by two patches"),),
)
IGNORED_KEYS = (
    *vit.IGNORED_KEYS,
    vit.AXIAL,
    IgnoredKey("vision_config.temporal_patch_size", "a patch spans two frames", (2,)),
    IgnoredKey("vision_config.attention_bias", "the tensors say it"),
    IgnoredKey("vision_config.tokens_per_second", "of films, which this file is not for"),
    IgnoredKey("vision_config.out_hidden_size", "the width of the text model", follows="v_projection"),
)


def frames(source: str, bias: bool = False) -> Roles:
    """Return the two convolutions that make patches of two frames, cut from one of three axes."""
    shape = f"{vit.WIDTH} 3 v_patch_size v_patch_size"
    more = f"v.patch_embd.bias : {vit.WIDTH} | hf {source}.bias" if bias else ""
    return roles(
        f"""
        v.patch_embd.weight plain   : {shape} | hf {source}.weight @first
        v.patch_embd.weight.1 plain : {shape} | hf {source}.weight @second
        {more}
        """,
        first=Item(2, 0), second=Item(2, 1),
    )


def merger(first: str, second: str) -> Roles:
    """Return the network that makes one row of each square of patches."""
    square = f"4*{vit.WIDTH}"
    return roles(vit.linear("mm.0", first, square, square), vit.linear("mm.2", second, "v_projection", square))
