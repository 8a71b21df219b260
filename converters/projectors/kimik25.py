"""Kimi K2.5's tower (MoonViT), and GLM-5V's: stretched positions, a rotation along two axes that take turns in pairs,
squares of patches, normed one by one, through a network.

Source: transformers `Kimi_K25VisionModel`; llama.cpp `conversion/kimivl.py`, `tools/mtmd/models/kimik25.cpp`. GGUF
has the pairs of one axis before those of the other.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _kimi as kimi
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=kimi.image_size),
    clip.V_PATCH_SIZE,
    *(
        replace(param, fields={"hf": f"{param.fields['hf']}|vision_config.vt_{place}"})
        for param, place in (
            (clip.V_N_EMBD, "hidden_size"),
            (clip.V_N_FF, "intermediate_size"),
            (clip.V_N_LAYER, "num_hidden_layers"),
            (clip.V_N_HEAD, "num_attention_heads"),
        )
    ),
    *clip.COLORS,
    replace(
        clip.V_EPS,
        fields={"hf": "projection_layer_norm_eps|vision_config.projector_ln_eps"},
        defaults=(Default(1e-5, "torch.nn.LayerNorm's", dialect="hf"),),
    ),
    vit.ROPE,
    HParam(
        "positions_high",
        None,
        fields={"hf": "vision_config.pos_emb_height|vision_config.init_pos_emb_height"},
        required=False,
    ),
    HParam(
        "positions_wide",
        None,
        fields={"hf": "vision_config.pos_emb_width|vision_config.init_pos_emb_width"},
        required=False,
        check="positions_wide == positions_high",
    ),
    HParam("merges", None, fields={"hf": "vision_config.merge_kernel_size"}, length="2", required=False),
    HParam("v_merge", "vision.projector.scale_factor", derive=kimi.side, check="0 < v_merge"),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam(
        "patch_limit",
        None,
        fields={"hf": "preprocessor.in_patch_limit|preprocessor.max_patches"},
        required=False,
        defaults=(Default(16384, "llama.cpp's own converter takes it", dialect="hf"),),
    ),
    HParam("v_min_pixels", "vision.image_min_pixels", derive="8*v_patch_size*v_patch_size"),
    HParam("v_max_pixels", "vision.image_max_pixels", derive="patch_limit*v_patch_size*v_patch_size"),
)

_SQUARE = "v_n_embd*v_merge*v_merge"
ROLES = roles(
    vit.patches("vision_tower.patch_embed.proj"),
    "v.position_embd.weight f32 : positions_high positions_wide v_n_embd | hf vision_tower.patch_embed.pos_emb.weight",
    vit.blocks(
        "vision_tower.encoder.blocks.{n}.",
        vit.norm("ln1", "norm0"),
        roles("attn_qkv.weight : 3*v_n_embd v_n_embd | hf wqkv.weight @apart", apart=kimi.AXES_APART),
        roles("attn_qkv.bias : 3*v_n_embd | hf wqkv.bias @apart", apart=kimi.AXES_APART),
        vit.linear("attn_out", "wo", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "norm1"), vit.plain("mlp.fc0", "mlp.fc1"),
    ),
    vit.norm("v.post_ln", "vision_tower.encoder.final_layernorm"),
    vit.norm("mm.input_norm", "mm_projector.pre_norm"),
    vit.linear("mm.1", "mm_projector.proj.0", _SQUARE, _SQUARE),
    vit.linear("mm.2", "mm_projector.proj.2", "v_projection", _SQUARE),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="kimik25",
    display_name="Kimi K2.5, vision encoder",
    hf_classes=(
        "KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration", "Glm5vForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"axes": "in_turn"},
            fixed=clip.vision_fixed("kimik25"),
            drops=(*clip.TEXT, *kimi.DROPS),
            renames=kimi.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS, vit.AXIAL,
                IgnoredKey("vision_config.*pos_emb_time vision_config.video_* vision_config.merge_type "
                         "vision_config.pos_emb_type vision_config.mm_projector_type vision_config.mm_hidden_size "
                         "vision_config.text_hidden_size vision_config.projector_hidden_act vision_config._attn*",
                         "of films, or what all of them have"),
                IgnoredKey("preprocessor.in_patch_limit* preprocessor.fixed_output_tokens preprocessor.*frame* "
                         "preprocessor.patch_limit* preprocessor.merge_kernel_size preprocessor.config_type "
                         "preprocessor.timestamp_mode preprocessor.sample_fps preprocessor.sampling_strategy",
                         "limits of pictures and films"),
            ),
        ),
    ),
    caveats=(vit.NONE_MERGED,),
    recipe={
        "computation": "projector", "vision": "kimi", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "rope": "pairs",
    },
)
