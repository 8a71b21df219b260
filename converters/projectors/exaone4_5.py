"""EXAONE 4.5's tower: Qwen2.5-VL's, in which heads share keys and values.

Source: transformers `Exaone4_5_VisionModel`; llama.cpp `conversion/exaone.py`, `tools/mtmd/models/exaone4_5.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.projectors import _windows as windows
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, qwen.IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF,
    qwen.N_LAYER, qwen.N_HEAD,
    HParam("v_n_head_kv", "vision.attention.head_count_kv", fields={"hf": "vision_config.num_key_value_heads"},
           check="0 < v_n_head_kv and v_n_head % v_n_head_kv == 0"),
    *clip.COLORS, qwen.EPS, vit.ROPE, qwen.MERGE, *vit.activation(), *vit.pixels(),
    windows.FULL, windows.COUNT, windows.PATTERN, replace(windows.WINDOW, absent=None),
)

_ROWS = "v_n_embd+2*v_n_head_kv*(v_n_embd/v_n_head)"
ROLES = roles(
    qwen.frames("visual.patch_embed.proj"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False),
        vit.linear("attn_qkv", "attn.qkv", _ROWS, vit.WIDTH), vit.linear("attn_out", "attn.proj", vit.WIDTH, vit.WIDTH),
        vit.norm("ln2", "norm2", bias=False), vit.gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ),
    vit.norm("v.post_ln", "visual.merger.ln_q", bias=False),
    qwen.merger("visual.merger.mlp.0", "visual.merger.mlp.2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="exaone4_5",
    display_name="EXAONE 4.5, vision encoder",
    hf_classes=("Exaone4_5_ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("exaone4_5"),
            drops=clip.TEXT,
            renames=qwen.NAMES,
            nested=("vision_config",),
            ignored_keys=qwen.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "vision": "qwen_vl", "norm": "rms", "ffn": "gated", "activation": "gelu",
            "rope": "halves"},
)
