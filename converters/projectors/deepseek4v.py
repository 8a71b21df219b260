"""DeepSeek V4's tower: gated blocks with RMSNorm, rotated along two axes; squares of patches go through a network, and
two lines of them stand side by side, between rows for the start, the end of a line and the end of the picture.

Source: the publisher's `inference/vision.py` and `image_processor.py`, as SGLang has them (sgl-project/sglang at
1320a811, `python/sglang/srt/models/deepseek_v4_vit.py`, `deepseek_v4_vl.py`); llama.cpp `conversion/deepseek.py`,
`tools/mtmd/models/deepseek4v.cpp`. A checkpoint without these tensors has a text model alone.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape, Split
from ggferry.converters.schema.roles import roles

_HALF = Default(0.5, "the publisher's image_processor.py, where a folder has no preprocessor_config.json", dialect="hf")
HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_PATCH_SIZE, fields={"hf": "vision_patch_size"}),
    replace(clip.V_IMAGE_SIZE, fields={}, derive="16*v_patch_size*v_square"),
    replace(clip.V_N_EMBD, fields={"hf": "vision_dim"}), replace(clip.V_N_FF, fields={"hf": "vision_inter_dim"}),
    replace(clip.V_N_LAYER, fields={"hf": "vision_n_layers"}),
    replace(clip.V_N_HEAD, fields={"hf": "vision_n_heads"}),
    *(replace(one, defaults=(_HALF,)) if one.name in ("stated_mean", "stated_std") else one for one in clip.COLORS),
    replace(clip.V_EPS, fields={}, defaults=(Default(1e-6, "the publisher's vision.py, all norms of it"),)),
    replace(clip.USE_SILU, absent=False),
    HParam("v_rope_theta", None, clip.F32, {"hf": "vision_rope_theta"}, words={10000: 10000.0}, required=False),
    HParam("v_square", "vision.projector.scale_factor", fields={"hf": "vision_downsample_ratio"}, check="0 < v_square"),
    HParam("v_min_pixels", "vision.image_min_pixels", fields={"hf": "vision_min_pixels"}, check="0 < v_min_pixels"),
    HParam("most_tokens", None, fields={"hf": "vision_max_n_token"}, words={384: 384}, required=False),
    HParam("widest", None, clip.F32, {"hf": "vision_max_wh_ratio"}, words={8: 8.0}, required=False),
)

ROLES = roles(
    "v.patch_embd.weight plain : v_n_embd 3 v_patch_size v_patch_size | hf vision.patch_embed.proj.weight @planes",
    "v.patch_embd.bias : v_n_embd | hf vision.patch_embed.proj.bias",
    vit.blocks(
        "vision.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False), vit.fused("attn.wqkv", "attn.wo"), vit.norm("ln2", "norm2", bias=False),
        roles(
            """
            ffn_gate.weight : v_n_ff v_n_embd | hf mlp.w1.weight @gate
            ffn_up.weight   : v_n_ff v_n_embd | hf mlp.w1.weight @up
            ffn_down.weight : v_n_embd v_n_ff | hf mlp.w2.weight
            """,
            gate=Split("0", "v_n_ff"), up=Split("v_n_ff", "2*v_n_ff"),
        ),
    ),
    vit.norm("v.post_ln", "vision.norm", bias=False),
    vit.linear("mm.1", "aligner.w1", "v_projection", "v_n_embd*v_square*v_square"),
    vit.linear("mm.2", "aligner.w2", "v_projection", "v_projection"),
    """
    v.image_newline f32        : v_projection | hf image_newline
    v.token_embd.img_start f32 : v_projection | hf image_start
    v.token_embd.img_end f32   : v_projection | hf image_end
    v.token_embd.img_pad f32   : v_projection | hf image_pad
    """,
    planes=Reshape(("v_n_embd", "3", "v_patch_size", "v_patch_size")),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="deepseek4v",
    display_name="DeepSeek V4, vision encoder",
    hf_classes=("DeepseekV4ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"ffn": "fused"},
            fixed={**clip.vision_fixed("deepseek4v"), "use_silu": True},
            drops=(*clip.TEXT, *(Drop(f"{name}*", "of the text model") for name in (
                "layers.", "embed.", "norm.", "head.", "hc_head", "mtp.", "model.embed.", "model.hc_head", "model.mtp.",
            ))),
            ignored_keys=(*vit.IGNORED_KEYS, IgnoredKey("vision_config vision_config.*", "the keys beside it say it")),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "deepseek4v", "norm": "rms", "ffn": "gated", "activation": "silu",
        "rope": "halves",
    },
)
