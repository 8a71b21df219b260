"""HunYuan-VL's tower: plain blocks with stretched positions; squares merged by two convolutions, a row end behind every
row, a row before the picture and one behind it.

Source: transformers `HunYuanVLVisionModel`; llama.cpp `conversion/hunyuan.py`, `tools/mtmd/models/hunyuanvl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={"hf": "vision_config.max_image_size|vision_config.image_size"}),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "vision_config.rms_norm_eps"}),
    HParam("v_merge", "vision.spatial_merge_size", fields={"hf": "vision_config.spatial_merge_size"}),
    *vit.activation(gelu="gelu"), *vit.pixels(),
)

ROLES = roles(
    vit.patches("vit.embeddings.patch_embedding"),
    roles(
        f"v.position_embd.weight f32 : {vit.PATCHES} v_n_embd | hf vit.embeddings.position_embedding.weight @patches",
        patches=Split("1", f"{vit.PATCHES}+1"),
    ),
    vit.blocks(
        "vit.layers.{n}.",
        vit.norm("ln1", "input_layernorm"), vit.attention(out="o_proj"), vit.norm("ln2", "post_attention_layernorm"),
        vit.plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
    roles(
        """
        mm.pre_norm.weight f32  : v_n_embd | hf before_rms.weight
        mm.post_norm.weight f32 : v_projection | hf after_rms.weight
        mm.0.weight plain       : 2*v_n_embd v_n_embd v_merge v_merge | hf proj.0.weight
        mm.0.bias               : 2*v_n_embd | hf proj.0.bias
        mm.2.weight plain       : 4*v_n_embd 2*v_n_embd 1 1 | hf proj.2.weight
        mm.2.bias               : 4*v_n_embd | hf proj.2.bias
        mm.model.fc.weight      : v_projection 4*v_n_embd | hf mlp.weight
        mm.model.fc.bias        : v_projection | hf mlp.bias
        v.image_newline f32     : 4*v_n_embd | hf image_newline
        mm.image_begin f32      : v_projection | hf image_begin
        mm.image_end f32        : v_projection | hf image_end
        v.view_seperator f32    : v_projection | hf image_sep
        """,
        under={"hf": "vit.perceive."},
    ),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="hunyuanvl",
    display_name="HunYuan-VL, vision encoder",
    hf_classes=("HunYuanVLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("hunyuanvl"),
            drops=clip.TEXT,
            renames=(("model.vit.", "vit."),),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.num_key_value_heads", "every head has keys of its own", follows="v_n_head"),
                IgnoredKey(
                    "vision_config.text_hidden_size vision_config.out_hidden_size",
                    "the width of the text model",
                    follows="v_projection",
                ),
                IgnoredKey("vision_config.interpolate_mode", "how positions are stretched", ("bilinear",)),
                IgnoredKey("vision_config.temporal_patch_size", "of one frame", (1,)),
                IgnoredKey("preprocessor.spatial_patch_size", "patches are not joined before the tower", (1,)),
                IgnoredKey(
                    "vision_config.img_max_token_num vision_config.max_vit_seq_len vision_config.min_image_size "
                    "vision_config.anyres_* vision_config.cat_extra_token vision_config.video_* "
                    "vision_config.add_patchemb_bias vision_config.remove_prenorm vision_config.adaptor_patch_size",
                    "limits of pictures and films",
                ),
            ),
        ),
    ),
    caveats=(
        Caveat(
            "",
            "llama.cpp stretches the table of positions as if a picture had a tenth of a patch more each way, as the "
            "publisher's own code did; transformers does not",
            differs_in="llama.cpp",
        ),
    ),
    recipe={"computation": "projector", "vision": "hunyuanvl", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
