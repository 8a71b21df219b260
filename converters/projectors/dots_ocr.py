"""dots.ocr's tower: normed patches, gated blocks with RMSNorm that see all of a picture, rotated along two axes; a norm
behind them, another one, and a network for every square of patches.

Source: the publisher's `modeling_dots_vision.py` (remote code; transformers has no class of it); llama.cpp
`conversion/dotsocr.py`, `tools/mtmd/models/dotsocr.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(
        clip.V_IMAGE_SIZE, fields={}, check="",
        defaults=(Default(0, "pictures are of any size; llama.cpp's own converter writes this", dialect="hf"),),
    ),
    clip.V_PATCH_SIZE, replace(clip.V_N_EMBD, fields={"hf": "vision_config.embed_dim|vision_config.hidden_size"}),
    clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "vision_config.rms_norm_eps"}),
    replace(qwen.MERGE, key="vision.projector.scale_factor"), *vit.activation(silu="silu", usual="silu"), *vit.pixels(),
)

ROLES = roles(
    vit.patches("vision_tower.patch_embed.patchifier.proj"),
    vit.norm("v.pre_ln", "vision_tower.patch_embed.patchifier.norm", bias=False),
    vit.blocks(
        "vision_tower.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False), vit.fused("attn.qkv", "attn.proj", bias="optional"),
        vit.norm("ln2", "norm2", bias=False), vit.gated("mlp.fc1", "mlp.fc3", "mlp.fc2", bias="optional"),
    ),
    vit.norm("mm.post_norm", "vision_tower.post_trunk_norm", bias=False),
    vit.norm("mm.input_norm", "vision_tower.merger.ln_q"),
    qwen.merger("vision_tower.merger.mlp.0", "vision_tower.merger.mlp.2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="dots_ocr",
    display_name="dots.ocr, vision encoder",
    hf_classes=("DotsOCRForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("dots_ocr"),
            drops=clip.TEXT,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.hidden_size", "the width behind the projector", follows="v_projection"),
                IgnoredKey("vision_config.post_norm", "a norm behind the blocks", (True,)),
                IgnoredKey("vision_config.temporal_patch_size", "a patch spans one frame", (1,)),
                IgnoredKey("vision_config.is_causal", "patches see each other", (False,)),
                IgnoredKey("vision_config.use_bias", "the tensors say it"),
                IgnoredKey("vision_config.init_merger_std vision_config.attn_implementation", "of training"),
            ),
        ),
    ),
    recipe={"computation": "projector", "vision": "dots_ocr", "norm": "rms", "ffn": "gated", "rope": "halves"},
)
