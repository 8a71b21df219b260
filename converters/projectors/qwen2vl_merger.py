"""Qwen2-VL's tower: plain blocks with layer norms, rotated by two axes, and squares of patches merged.

Source: transformers `Qwen2VisionTransformerPretrainedModel`; llama.cpp `conversion/qwenvl.py`,
`tools/mtmd/models/qwen2vl.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, qwen.IMAGE_SIZE, clip.V_PATCH_SIZE,
    replace(clip.V_N_EMBD, fields={"hf": "vision_config.embed_dim"}),
    replace(clip.V_N_FF, fields={}),
    qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS, qwen.EPS, vit.ROPE, qwen.MERGE, *vit.activation(),
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1"), vit.cut("attn.qkv", "attn.proj"),
        vit.norm("ln2", "norm2"), vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.norm("v.post_ln", "visual.merger.ln_q"),
    qwen.merger("visual.merger.mlp.0", "visual.merger.mlp.2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen2vl_merger",
    display_name="Qwen2-VL, vision encoder",
    hf_classes=("Qwen2VLForConditionalGeneration", "Qwen2VLModel", "Sarashina2VisionForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "fused"},
            fixed=clip.vision_fixed("qwen2vl_merger"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *qwen.IGNORED_KEYS,
                IgnoredKey("vision_config.hidden_size", "the width of the text model", follows="v_projection"),
                IgnoredKey("vision_config.mlp_ratio", "the matrices say it"),
            ),
        ),
    ),
    recipe={"computation": "projector", "vision": "qwen_vl", "norm": "layer", "ffn": "plain", "activation": "gelu",
            "rope": "halves"},
)
