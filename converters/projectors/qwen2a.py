"""Qwen2-Audio's audio encoder: Whisper's encoder, whose states are averaged by two and projected by one matrix.

Source: transformers `modeling_qwen2_audio.py`; llama.cpp `conversion/ultravox.py`, `tools/mtmd/models/whisper-enc.cpp`.
"""

from ggferry.converters.projectors import _audio_encoder as encoder
from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import roles

ROLES = roles(
    encoder.whisper(),
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
    hparams=encoder.WHISPER,
    roles=ROLES,
    blocks=clip.AUDIO_BLOCKS,
    dialects=(
        Dialect(
            "hf", fixed=clip.audio_fixed("qwen2a"), drops=clip.TEXT, renames=encoder.NAMES, nested=("audio_config",),
            ignored_keys=encoder.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "projector", "audio": "qwen2a", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
