"""Why no second file is made of models whose class is known to see or hear (llama.cpp's `conversion/__init__.py`)."""

from collections.abc import Mapping

_GLM = (
    "llama.cpp's ear of GLM-ASR adds a table of positions to its states, where the published model turns queries and "
    "keys, and has no such table"
)
_SPEAKS = "its second file is of what speaks, which is not read"
UNREAD: Mapping[str, str] = {
    "GlmAsrForConditionalGeneration": _GLM,
    "GlmasrModel": _GLM,
    "Gemma3nForConditionalGeneration": "its eye is timm's MobileNetV5, which transformers has no class for, and "
    "llama.cpp computes no ear of it",
    "MiMoV2ForCausalLM": "its ear turns sound into codes by a model of its own, in a folder of its own, which is "
    "not read",
    "Qwen3TTSForConditionalGeneration": _SPEAKS,
    "PocketTTSModel": _SPEAKS,
    "MusicFlamingoForConditionalGeneration": "it turns its states by time, and llama.cpp's musicflamingo is Audio "
    "Flamingo 3",
    "VoxtralRealtimeForConditionalGeneration": "llama.cpp has no ear that hears a recording as it comes",
}
"""Class → reason."""
