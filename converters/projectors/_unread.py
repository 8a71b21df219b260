"""Why no mmproj file is made of models whose class is known to be multimodal (llama.cpp's `conversion/__init__.py`)."""

from collections.abc import Mapping

_GLM = (
    "llama.cpp's audio encoder of GLM-ASR adds a table of positions to its states, where the published model turns "
    "queries and keys, and has no such table"
)
_TALKER = "its mmproj file is of the talker, which is not read"
_ALONE = "transformers has no class of it, so that nobody but llama.cpp could say whether a table is right"
_RADIO = (
    "a tower that no text model stands behind: llama.cpp's converter knows the class, and takes none of its tensors"
)
_ROUTED = "its vision encoder gives patches to experts, its audio encoder is one of its own: no table reads them yet"
UNREAD: Mapping[str, str] = {
    "CLIPModel": "the one file holds both its encoders",
    **dict.fromkeys(
        (
            "CogVLMForCausalLM",
            "Phi4ForCausalLMV",
            "YoutuVLForConditionalGeneration",
            "ClefModel",
            "PplxDeciderModel",
            "OpenJevModel",
            "D1OmniModel",
            "BailingMoeV3VLForConditionalGeneration",
        ),
        _ALONE,
    ),
    "RADIOModel": _RADIO,
    **dict.fromkeys(("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration"), _ROUTED),
    "DeepseekV4ForCausalLM": "transformers' class has no vision encoder that could be held against",
    "KimiVLForConditionalGeneration": "the pairs of its rotation take turns as Kimi K2.5's do, as far as is known, and "
    "neither llama.cpp nor its converter puts them apart; transformers has no class of it to decide",
    "GlmAsrForConditionalGeneration": _GLM,
    "GlmasrModel": _GLM,
    "Gemma3nForConditionalGeneration": "its vision encoder is timm's MobileNetV5, which transformers has no class for, "
    "and llama.cpp computes no audio encoder of it",
    "MiMoV2ForCausalLM": "its audio encoder turns sound into codes by a model of its own, in a folder of its own, "
    "which is not read",
    "Qwen3TTSForConditionalGeneration": _TALKER,
    "PocketTTSModel": _TALKER,
    "MusicFlamingoForConditionalGeneration": "it turns its states by time, and llama.cpp's musicflamingo is Audio "
    "Flamingo 3",
    "VoxtralRealtimeForConditionalGeneration": "llama.cpp has no audio encoder for a stream",
}
"""Class → reason."""
