"""Qwen2.5-Omni's vision encoder, which is Qwen2.5-VL's, and its audio encoder, which is Qwen2-Audio's with sines for
positions.

Source: transformers `modeling_qwen2_5_omni.py`; llama.cpp `conversion/qwenvl.py`, which calls both halves by one name.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_audio_encoder as encoder
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.projectors import _windows as windows
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    *encoder.thinking(
        clip.HAS_VISION, clip.V_PROJECTION, qwen.IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF,
        qwen.N_LAYER, qwen.N_HEAD, *clip.COLORS, qwen.EPS, vit.ROPE, qwen.MERGE,
        *vit.activation(silu="silu"), *windows.EVERY,
    ),
    *encoder.hparams(),
)

ROLES = roles(
    qwen.frames("visual.patch_embed.proj"),
    vit.blocks(
        "visual.blocks.{n}.",
        vit.norm("ln1", "norm1", bias=False), vit.attention("attn.", "q", "k", "v", "proj"),
        vit.norm("ln2", "norm2", bias=False), vit.gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ),
    vit.norm("v.post_ln", "visual.merger.ln_q", bias=False),
    qwen.merger("visual.merger.mlp.0", "visual.merger.mlp.2"),
    encoder.EARLIER,
)
_CHUNKS = (
    "it hears a recording in chunks of {a_window} frames twice, each with positions of its own and without the others; "
    "llama.cpp hears up to thirty seconds at once, as Qwen2-Audio does"
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen2.5o",
    display_name="Qwen2.5-Omni, vision and audio encoders",
    hf_classes=("Qwen2_5OmniModel",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, **clip.AUDIO_BLOCKS},
    dialects=(
        Dialect(
            "hf",
            fixed={**clip.vision_fixed("qwen2.5o"), **clip.audio_fixed("qwen2.5o")},
            drops=(*encoder.DROPS, *encoder.TALKER,
                   Drop("audio_tower.audio_bos_eos_token.weight", "no model reads it")),
            renames=(*qwen.NAMES, ("thinker.audio_tower.", "audio_tower.")),
            nested=("thinker_config.vision_config", "thinker_config.audio_config"),
            ignored_keys=(*encoder.thought(*qwen.IGNORED_KEYS), *encoder.IGNORED_KEYS),
            caveats=(*windows.CAVEATS, Caveat("a_window < 1500", _CHUNKS, differs_in="llama.cpp")),
        ),
    ),
    recipe={"computation": "projector", "vision": "qwen_vl", "audio": "qwen2a", "norm": "rms", "ffn": "gated",
            "rope": "halves"},
)
