"""Why no mmproj file is made of models whose class is known to be multimodal (llama.cpp's `conversion/__init__.py`)."""

from collections.abc import Mapping

_TALKER = "its mmproj file is of the talker, which is not read"
_RADIO = (
    "a tower that no text model stands behind: llama.cpp's converter knows the class, and takes none of its tensors"
)
_ROUTED = "its vision encoder gives patches to experts, its audio encoder is one of its own: no table reads them yet"
UNREAD: Mapping[str, str] = {
    "CLIPModel": "the one file holds both its encoders",
    "D1OmniModel": "its two projectors are LFM2's with other networks: no table reads them yet",
    "RADIOModel": _RADIO,
    **dict.fromkeys(("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration"), _ROUTED),
    "MiMoV2ForCausalLM": "its audio encoder turns sound into codes by a model of its own, in a folder of its own, "
    "which is not read",
    "Qwen3TTSForConditionalGeneration": _TALKER,
    "PocketTTSModel": _TALKER,
    "MusicFlamingoForConditionalGeneration": "it turns its states by time, and llama.cpp's musicflamingo is Audio "
    "Flamingo 3",
    "VoxtralRealtimeForConditionalGeneration": "llama.cpp has no audio encoder for a stream",
}
"""Class → reason."""
