"""Roles and hparams of the encoder of Segment Anything that stands before the tower of DeepSeek-OCR and its kin.

Its blocks see windows of the picture, but for four of them; queries also see how far keys are in rows and in columns.
Places are transformers' and those of the publisher's config.json.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey
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
ENCODER, _CLIP = "vision_config.encoder_config", "vision_config.width.clip-l-14-224"
"""Where transformers and the publisher say what stands behind this encoder in DeepSeek-OCR."""
NESTED = (ENCODER, _OURS, "vision_config")
"""Members of configurations, the inner ones first (`Dialect.nested`)."""
CODE = "the publisher's code"


def at(param: HParam, ours: str, theirs: str = "") -> HParam:
    """Return the hparam with its places in transformers' configuration and the publisher's."""
    places = [f"{ENCODER}.{ours}", *([f"{_CLIP}.{theirs}"] if theirs else [])]
    return replace(param, fields={"hf": "|".join(places)})


def known_at(param: HParam, ours: str, usual: float | None = None, theirs: str = "") -> HParam:
    """Return the hparam with its place in transformers' configuration, and what the publisher's code has by heart."""
    places = [f"{ENCODER}.{ours}", *([theirs] if theirs else [])]
    known = () if usual is None else (Default(usual, CODE, dialect="deepseek"),)
    return replace(param, fields={"hf": "|".join(places)}, defaults=known)


IGNORED_KEYS = (
    *vit.IGNORED_KEYS,
    IgnoredKey("vision_config.*.num_channels", "red, green, blue", (3,)),
    IgnoredKey("vision_config.sam_config.qkv_bias vision_config.sam_config.use_abs_pos "
             "vision_config.sam_config.use_rel_pos", "what all of them have", (True,)),
    IgnoredKey("vision_config.*.downsample_channels", "the tensors say it"),
    IgnoredKey("vision_config.*.initializer_range vision_config.*.initializer_factor "
             "vision_config.*.attention_dropout", "of training"),
    IgnoredKey("vision_config.mlp_ratio vision_config.model_name vision_config.image_size "
             "vision_config.sam_config.image_size", "the tensors say it"),
    IgnoredKey("preprocessor.candidate_resolutions* preprocessor.downsample_ratio preprocessor.*_token "
             "preprocessor.tile_size preprocessor.skip_tensor_conversion "
             "preprocessor.maximum_pad_value preprocessor.crop_to_patches "
             "preprocessor.add_special_token preprocessor.mask_prompt preprocessor.ignore_id "
             "preprocessor.pad_token preprocessor.sft_format preprocessor.background_color "
             "preprocessor.normalize", "how pictures are cut into tiles: the runtime does it"),
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
