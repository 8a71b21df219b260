"""Step 3.7's tower, and Step3-VL's: stretched positions, a norm before the blocks, rotation along two axes, branches
scaled; two convolutions that halve rows and columns, then one matrix.

Source: transformers `Step3p7VisionModel`; llama.cpp `conversion/step3.py`, `tools/mtmd/models/step3vl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _tower_sizes as towers
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    clip.V_IMAGE_SIZE,
    clip.V_PATCH_SIZE,
    replace(clip.V_N_EMBD, fields={"hf": "vision_config.hidden_size|vision_config.width"}),
    HParam("mlp_ratio", None, clip.F32, {"hf": "vision_config.mlp_ratio"}, required=False),
    replace(clip.V_N_FF, derive=towers.step_feed_forward),
    replace(clip.V_N_LAYER, fields={"hf": "vision_config.num_hidden_layers|vision_config.layers"}),
    replace(clip.V_N_HEAD, fields={"hf": "vision_config.num_attention_heads|vision_config.heads"}),
    *clip.COLORS,
    clip.V_EPS,
    vit.ROPE,
    HParam(
        "v_merge",
        "vision.projector.scale_factor",
        defaults=(Default(4, "two convolutions, each of which halves rows and columns"),),
        words={4: 4},
    ),
    HParam(
        "v_longest",
        "vision.preproc_image_size",
        defaults=(Default(3024, "llama.cpp's own converter writes this, of the publisher's processor"),),
    ),
    *vit.activation(),
)

ROLES = roles(
    vit.patches("vision_model.conv1", bias=False),
    f"v.position_embd.weight f32 : {vit.PATCHES} v_n_embd | hf vision_model.positional_embedding",
    vit.norm("v.pre_ln", "vision_model.ln_pre"),
    vit.blocks(
        "vision_model.transformer.resblocks.{n}.",
        vit.norm("ln1", "ln_1"),
        """
        attn_qkv.weight : 3*v_n_embd v_n_embd | hf attn.in_proj_weight
        attn_qkv.bias   : 3*v_n_embd          | hf attn.in_proj_bias
        ls1.weight f32  : v_n_embd            | hf ls_1.gamma
        ls2.weight f32  : v_n_embd            | hf ls_2.gamma
        """,
        vit.linear("attn_out", "attn.out_proj", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "ln_2"),
        vit.plain("mlp.c_fc", "mlp.c_proj"),
    ),
    """
    mm.0.weight plain   : 2*v_n_embd v_n_embd 3 3   | hf vision_model.vit_downsampler1.weight
    mm.0.bias           : 2*v_n_embd                | hf vision_model.vit_downsampler1.bias
    mm.1.weight plain   : 4*v_n_embd 2*v_n_embd 3 3 | hf vision_model.vit_downsampler2.weight
    mm.1.bias           : 4*v_n_embd                | hf vision_model.vit_downsampler2.bias
    mm.model.fc.weight  : v_projection 4*v_n_embd   | hf vit_large_projector.weight
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="step3vl",
    display_name="Step 3.7 and Step3-VL, vision encoder",
    hf_classes=("Step3p7ForConditionalGeneration", "StepVLForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("step3vl"),
            drops=clip.TEXT,
            renames=(("model.vision_model.", "vision_model."), ("model.vit_large_projector.", "vit_large_projector.")),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                vit.AXIAL,
                IgnoredKey("vision_config.layer_scale_init_value vision_config.ls_init_value", "of training"),
                IgnoredKey("vision_config.max_position_embeddings", "the table says it"),
                IgnoredKey("understand_projector_stride", "how the first convolution steps", (2,)),
                IgnoredKey("vision_config.use_cls_token vision_config.use_ln_post", "neither is there", (False,)),
                IgnoredKey(
                    "vision_config.use_abs_posemb vision_config.use_rope2d vision_config.use_ln_pre",
                    "what every tower of the kind has",
                    (True,),
                ),
                IgnoredKey("vision_config.pool_type", "patches stay apart", ("none",)),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "step3vl", "norm": "layer", "ffn": "plain", "activation": "gelu",
        "rope": "pairs",
    },
)
