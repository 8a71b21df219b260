"""Why no mmproj file is made of models whose class is known to be multimodal (llama.cpp's `conversion/__init__.py`)."""

from collections.abc import Mapping

_SOUND = (
    "its speaker encoder, its code predictor and what makes waves of codes, which llama.cpp reads of an mmproj file, "
    "are computed by nothing here, so that no file could be proved"
)
_LATENTS = (
    "its encoder of voices, its flow net and its codec, which llama.cpp reads of an mmproj file, are computed by "
    "nothing here, so that no file could be proved"
)
_RADIO = (
    "a tower that no text model stands behind: llama.cpp's converter knows the class, and takes none of its tensors"
)
UNREAD: Mapping[str, str] = {
    "CLIPModel": "the one file holds both its encoders",
    "D1OmniModel": "its two projectors are LFM2's with other networks, of which llama.cpp's graph alone was read: no "
    "second definition was found",
    "RADIOModel": _RADIO,
    "MiMoV2ForCausalLM": "its audio encoder turns sound into codes by a model of its own, in a folder of its own, "
    "which is not read; what its vision encoder's sinks are, three programs compute in three ways",
    "Qwen3TTSForConditionalGeneration": _SOUND,
    "PocketTTSModel": _LATENTS,
    "MusicFlamingoForConditionalGeneration": "it turns its states by time, and llama.cpp's musicflamingo is Audio "
    "Flamingo 3",
    "VoxtralRealtimeForConditionalGeneration": "llama.cpp has no audio encoder for a stream",
}
"""Class → reason."""
