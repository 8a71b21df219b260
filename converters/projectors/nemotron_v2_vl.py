"""Nemotron Nano VL 2's tower: RADIO, a vision transformer with registers, whose table of positions is resampled to the
size of pictures; squares of patches merged, and a network with a squared ReLU.

Sources: transformers `modeling_radio.py`, `modeling_nemotron_h_omni.py`; llama.cpp `conversion/nemotron.py`,
`tools/mtmd/models/nemotron-v2-vl.cpp`. llama.cpp's own converter (b11549) resamples with the corners aligned, which the
model does not.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.towers import Resampled
from ggferry.converters.schema.roles import roles

_TIMM = "as timm's, which RADIO is built of"
_NORMALIZED = {
    "stated_mean": "preprocessor.image_mean|preprocessor.norm_mean|norm_mean",
    "stated_std": "preprocessor.image_std|preprocessor.norm_std|norm_std",
}

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={"hf": "force_image_size"}, check="0 < v_image_size",
            defaults=(Default(512, "as llama.cpp's converter takes it", dialect="hf"),)),
    replace(clip.V_PATCH_SIZE, fields={"hf": "vision_config.patch_size|patch_size"},
            check="0 < v_patch_size and v_image_size % v_patch_size == 0"),
    replace(clip.V_N_EMBD, fields={"hf": "vision_config.hidden_size|vit_hidden_size|vision_hidden_size"}),
    replace(clip.V_N_FF, fields={}),
    replace(clip.V_N_LAYER, defaults=(Default(32, _TIMM, when="v_n_embd == 1280", dialect="hf"),
                                      Default(24, _TIMM, when="v_n_embd == 1024", dialect="hf"))),
    replace(clip.V_N_HEAD, defaults=(Default(16, _TIMM, when="v_n_embd == 1280 or v_n_embd == 1024", dialect="hf"),)),
    *(replace(one, fields={"hf": _NORMALIZED[one.name]}) if one.name in _NORMALIZED else one for one in clip.COLORS),
    replace(clip.V_EPS, defaults=(Default(1e-6, _TIMM, dialect="hf"),)),
    *vit.activation(usual="gelu", gelu="gelu"),
    HParam("downsample_ratio", None, clip.F32, {"hf": "downsample_ratio"}, required=False,
           check="0 < downsample_ratio"),
    HParam("v_merge", "vision.projector.scale_factor", derive=vit.inverse_of("downsample_ratio"),
           defaults=(Default(2, "transformers' default", dialect="hf"), vit.UNMERGED), check="0 < v_merge"),
    HParam("n_first", None, check="0 < n_first"),
    HParam("n_inner", None, fields={"hf": "projector_hidden_size"}, required=False),
    HParam("ps_version", None, clip.STRING, {"hf": "ps_version"}, words={"v2": "v2"}, required=False),
)

_AT = "vision_model.radio_model.model."
ROLES = roles(
    f"""
    v.patch_embd.weight plain  : v_n_embd 3 v_patch_size v_patch_size | hf {_AT}patch_generator.embedder.weight @planes
    v.class_embd f32           : n_first v_n_embd        | hf {_AT}patch_generator.cls_token.token
    v.position_embd.weight f32 : {vit.PATCHES} v_n_embd  | hf {_AT}patch_generator.pos_embed @resampled
    """,
    vit.blocks(
        f"{_AT}blocks.{{n}}.",
        vit.norm("ln1", "norm1"),
        vit.fused("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2"),
        vit.plain("mlp.fc1", "mlp.fc2"),
        """
        ls1.weight f32 optional : v_n_embd | hf layer_scale1.lambda1
        ls2.weight f32 optional : v_n_embd | hf layer_scale2.lambda1
        """,
    ),
    """
    mm.model.mlp.0.weight f32 : v_n_embd*v_merge*v_merge         | hf mlp1.0.weight
    mm.model.mlp.1.weight     : n_inner v_n_embd*v_merge*v_merge | hf mlp1.1.weight
    mm.model.mlp.3.weight     : v_projection n_inner             | hf mlp1.3.weight
    """,
    planes=Reshape(("v_n_embd", 3, "v_patch_size", "v_patch_size")),
    resampled=Resampled("v_image_size//v_patch_size"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="nemotron_v2_vl",
    display_name="Nemotron Nano VL 2, vision encoder",
    hf_classes=("NemotronH_Nano_VL_V2",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("nemotron_v2_vl"),
            drops=(
                *clip.TEXT,
                Drop(f"{_AT}patch_generator.video_embedder.*", "makes patches of several pictures at once: no "
                     "runtime's file has a place for it"),
                Drop("vision_model.radio_model.summary_idxs", "of what sums a picture up, which no text model reads"),
                Drop("vision_model.radio_model.input_conditioner.*", "normalizes pixels: the mean and the deviation "
                     "are keys"),
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.*", "what RADIO was trained with: the tensors say its sizes"),
                IgnoredKey("preprocessor.*", "how pictures are cut into tiles, which llama.cpp does its own way"),
            ),
        ),
    ),
    caveats=(vit.NONE_MERGED,),
    recipe={
        "computation": "projector", "vision": "nemotron_v2_vl", "norm": "layer", "ffn": "plain", "activation": "gelu",
    },
)
