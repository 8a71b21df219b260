"""Llama 4's tower: the class token behind the patches, learned positions and a rotation along two axes, squares of
patches merged.

Source: transformers `Llama4VisionModel`; llama.cpp `tools/mtmd/models/llama4.cpp`. llama.cpp's own converter (b11549)
puts the second norm of every block where the runtime takes it for one behind attention (`attn_post_norm`), which its
table means for Gemma 4; the norm before the feed-forward then has no weights. It is `ln2` here.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    *clip.VISION,
    replace(clip.V_EPS, fields={}, defaults=(Default(1e-5, "torch's: no norm reads norm_eps", dialect="hf"),)),
    vit.ROPE,
    HParam(
        "shuffle_ratio",
        None,
        clip.F32,
        {"hf": "vision_config.pixel_shuffle_ratio"},
        required=False,
        check="0 < shuffle_ratio",
    ),
    HParam(
        "v_merge",
        "vision.projector.scale_factor",
        derive=vit.inverse_of("shuffle_ratio"),
        defaults=(vit.UNMERGED,),
        check="0 < v_merge",
    ),
    *vit.activation(gelu="gelu"),
    HParam("n_inner", None, fields={"hf": "vision_config.projector_input_dim"}, required=False),
    HParam("n_outer", None, fields={"hf": "vision_config.projector_output_dim"}, required=False),
)

ROLES = roles(
    """
    v.patch_embd.weight plain  : v_n_embd 3*v_patch_size*v_patch_size | hf vision_model.patch_embedding.linear.weight
    v.class_embd f32           : v_n_embd | hf vision_model.class_embedding
    """,
    f"v.position_embd.weight f32 : {vit.PATCHES}+1 v_n_embd | hf vision_model.positional_embedding_vlm",
    vit.norm("v.pre_ln", "vision_model.layernorm_pre"),
    vit.blocks(
        "vision_model.model.layers.{n}.",
        vit.norm("ln1", "input_layernorm"),
        vit.attention(out="o_proj"),
        vit.norm("ln2", "post_attention_layernorm"),
        vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.norm("v.post_ln", "vision_model.layernorm_post"),
    """
    mm.model.mlp.1.weight : n_inner v_n_embd*v_merge*v_merge | hf vision_model.vision_adapter.mlp.fc1.weight
    mm.model.mlp.2.weight : n_outer n_inner                  | hf vision_model.vision_adapter.mlp.fc2.weight
    mm.model.fc.weight    : v_projection n_outer             | hf multi_modal_projector.linear_1.weight
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="llama4",
    display_name="Llama 4, vision encoder",
    hf_classes=("Llama4ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("llama4"),
            drops=clip.TEXT,
            renames=(
                ("model.vision_model.", "vision_model."),
                ("model.multi_modal_projector.", "multi_modal_projector."),
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                vit.AXIAL,
                IgnoredKey("vision_config.norm_eps", "every norm of transformers' class has torch's epsilon"),
                IgnoredKey("vision_config.vision_output_dim", "the matrices say it", follows="n_outer"),
                IgnoredKey("vision_config.multi_modal_projector_bias", "no matrix of it has one", (False,)),
                IgnoredKey(
                    "vision_config.vision_feature_select_strategy vision_config.vision_feature_layer",
                    "which transformers does not read, either",
                ),
                IgnoredKey(
                    "preprocessor.max_patches preprocessor.resize_to_max_canvas",
                    "how pictures are cut into tiles, which llama.cpp does its own way",
                ),
            ),
        ),
    ),
    caveats=(
        Caveat(
            "",
            "llama.cpp (b11549) hands the rows of a picture on column by column, transformers row by row",
            differs_in="llama.cpp",
        ),
    ),
    recipe={
        "computation": "projector",
        "vision": "llama4",
        "norm": "layer",
        "ffn": "plain",
        "activation": "gelu",
        "rope": "pairs",
    },
)
