"""Qwen2-Audio's audio encoder: Whisper's encoder, whose states are averaged by two and projected by one matrix.

Source: transformers `modeling_qwen2_audio.py`; llama.cpp `conversion/ultravox.py`, `tools/mtmd/models/whisper-enc.cpp`.
"""

from ggferry.converters.projectors import _audio_encoder as ear
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import roles

ROLES = roles(
    ear.whisper(),
    """
    mm.a.fc.weight : a_projection a_n_embd | hf multi_modal_projector.linear.weight
    mm.a.fc.bias   : a_projection          | hf multi_modal_projector.linear.bias
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="qwen2a",
    display_name="Qwen2-Audio, audio encoder",
    hf_classes=("Qwen2AudioForConditionalGeneration",),
    hparams=ear.WHISPER,
    roles=ROLES,
    blocks=clip.HEARD,
    dialects=(
        Dialect(
            "hf", fixed=clip.hears("qwen2a"), drops=clip.TEXT, renames=ear.NAMES, nested=("audio_config",),
            ignored_keys=ear.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "audio": "qwen2a", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
