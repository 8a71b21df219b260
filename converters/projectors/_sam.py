"""Roles and hparams of the encoder of Segment Anything that stands before the tower of DeepSeek-OCR and its kin.

Its blocks see windows of the picture, but for four of them; queries also see how far keys are in rows and in columns.
Places are transformers' and those of the publisher's config.json.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import block, roles

BLOCKS = {"v.sam.blk.": "v_sam_n_layer"}
"""What counts its blocks (`Architecture.blocks`)."""
_GLOBAL = (2, 5, 8, 11)
"""The blocks that see the whole picture, which llama.cpp knows by heart (clip-model.h, `global_attn_indices`)."""
_OURS, _THEIRS = "vision_config.sam_config", "vision_config.width.sam_vit_b"


def _reach(values: Values) -> tuple[int, ...]:
    """Return for each block over how many patches of a row its queries see."""
    listed = tuple(values.get("sam_global") or _GLOBAL)
    count, side = values["v_sam_n_layer"], values["sam_side"]
    if {n for n in listed if n < count} != {n for n in _GLOBAL if n < count}:
        raise ValueError(f"blocks {listed} see the whole picture, where llama.cpp computes {_GLOBAL}")
    return tuple(side if n in _GLOBAL else values["v_sam_window"] for n in range(count))


def _count(values: Values) -> int:
    return len(values["sam_global"])


HPARAMS = (
    HParam(
        "v_sam_n_layer", "vision.sam.block_count",
        fields={"hf": f"{_OURS}.num_hidden_layers|{_THEIRS}.layers"}, check="0 < v_sam_n_layer",
    ),
    HParam(
        "v_sam_n_embd", "vision.sam.embedding_length", fields={"hf": f"{_OURS}.hidden_size|{_THEIRS}.width"},
    ),
    HParam(
        "v_sam_n_head", "vision.sam.head_count", fields={"hf": f"{_OURS}.num_attention_heads|{_THEIRS}.heads"},
        check="0 < v_sam_n_head and v_sam_n_embd % v_sam_n_head == 0",
    ),
    HParam(
        "v_sam_window", "vision.window_size", fields={"hf": f"{_OURS}.window_size"}, check="0 < v_sam_window",
        defaults=(Default(14, "the publisher's code, and transformers' default", dialect="hf"),),
    ),
    HParam("sam_patch", None, fields={"hf": f"{_OURS}.patch_size"}, required=False, check="sam_patch == 16"),
    HParam(
        "sam_global", None, fields={"hf": f"{_OURS}.global_attn_indexes|{_THEIRS}.global_attn_indexes"},
        length="n_sam_global", required=False,
    ),
    HParam("n_sam_global", None, derive=_count, required=False),
    HParam("sam_reach", None, derive=_reach, length="v_sam_n_layer"),
    HParam("sam_side", None, fields={}, required=False),
    HParam("sam_ff", None, fields={"hf": f"{_OURS}.mlp_dim"}, required=False),
    HParam("sam_neck", None, fields={"hf": f"{_OURS}.output_channels"}, required=False),
    HParam("sam_middle", None, fields={}, required=False),
    HParam(
        "sam_eps", None, clip.F32, {"hf": f"{_OURS}.layer_norm_eps"}, words={1e-6: 1e-6}, required=False,
    ),
    *vit.activation(f"{_OURS}.hidden_act", "gelu", gelu="gelu"),
)
_W = "v_sam_n_embd"
_AT = "model.sam_model."
ROLES = roles(
    f"""
    v.sam.patch_embd.weight plain : {_W} 3 sam_patch sam_patch       | hf patch_embed.proj.weight
    v.sam.patch_embd.bias         : {_W}                             | hf patch_embed.proj.bias
    v.sam.pos_embd.weight f32     : 1 sam_side sam_side {_W}         | hf pos_embed
    v.sam.neck.0.weight f32       : sam_neck {_W} 1 1                | hf neck.0.weight
    v.sam.neck.1.weight f32       : sam_neck                         | hf neck.1.weight
    v.sam.neck.1.bias             : sam_neck                         | hf neck.1.bias
    v.sam.neck.2.weight f32       : sam_neck sam_neck 3 3            | hf neck.2.weight
    v.sam.neck.3.weight f32       : sam_neck                         | hf neck.3.weight
    v.sam.neck.3.bias             : sam_neck                         | hf neck.3.bias
    v.sam.net_2.weight f32        : sam_middle sam_neck 3 3          | hf net_2.weight
    v.sam.net_3.weight f32        : v_n_embd sam_middle 3 3          | hf net_3.weight
    """,
    block(
        vit.norm("pre_ln", "norm1", width=_W),
        f"""
        attn.qkv.weight       : 3*{_W} {_W}                         | hf attn.qkv.weight
        attn.qkv.bias         : 3*{_W}                              | hf attn.qkv.bias
        attn.out.weight       : {_W} {_W}                           | hf attn.proj.weight
        attn.out.bias         : {_W}                                | hf attn.proj.bias
        attn.pos_h.weight f32 : 2*sam_reach-1 {_W}/v_sam_n_head     | hf attn.rel_pos_h
        attn.pos_w.weight f32 : 2*sam_reach-1 {_W}/v_sam_n_head     | hf attn.rel_pos_w
        """,
        vit.norm("post_ln", "norm2", width=_W),
        vit.linear("mlp.lin1", "mlp.lin1", "sam_ff", _W),
        vit.linear("mlp.lin2", "mlp.lin2", _W, "sam_ff"),
        name="v.sam.blk.{n}.", layer="blocks.{n}.",
    ),
    under={"hf": _AT},
)
