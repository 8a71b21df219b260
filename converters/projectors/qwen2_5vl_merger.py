"""Qwen2.5-VL's tower: gated blocks with RMSNorm that see windows of the picture, all of it in every n-th one.

Source: transformers `Qwen2_5_VisionTransformerPretrainedModel`; llama.cpp `conversion/qwenvl.py`,
`tools/mtmd/models/qwen2vl.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.projectors import _windows as windows
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, qwen.IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF,
    qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS, qwen.EPS, vit.ROPE, qwen.MERGE, *vit.activation(),
    *windows.EVERY,
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False), vit.cut("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2", bias=False), vit.gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ),
    vit.norm("v.post_ln", "visual.merger.ln_q", bias=False),
    qwen.merger("visual.merger.mlp.0", "visual.merger.mlp.2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen2.5vl_merger",
    display_name="Qwen2.5-VL, vision encoder",
    hf_classes=("Qwen2_5_VLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "fused"},
            fixed=clip.vision_fixed("qwen2.5vl_merger"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            nested=("vision_config",),
            ignored_keys=qwen.IGNORED_KEYS,
            caveats=windows.CAVEATS,
        ),
    ),
    recipe={"computation": "projector", "vision": "qwen_vl", "norm": "rms", "ffn": "gated", "activation": "gelu",
            "rope": "halves"},
)
