"""The text half of a model that also sees or hears: what its part of the configuration and of the weights is called,
and what is left out.

Names: transformers 4 kept the text model under `language_model.`, transformers 5 under `model.language_model.`.
"""

from ggferry.converters.schema.architecture import Drop, Harmless, HParam

WITHIN = "text_config"
RENAMES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_VISION = "the vision half: this file holds the text model"
_AUDIO = "the half that hears: this file holds the text model"
VISION_KEYS = Harmless("vision_config vision_config.* vision_feature_* image_seq_length", "of the vision half, dropped")
AUDIO_KEYS = Harmless("audio_config audio_config.* audio_soft_tokens_per_image", "of the half that hears, dropped")
# Qwen3-VL adds features of some layers of its vision half to the first blocks.
DEEPSTACK = (
    HParam("deepstack_layers", None, fields={"hf": "vision_config.deepstack_visual_indexes"}, many="n_deepstack",
           required=False),
    HParam("n_deepstack", "n_deepstack_layers", derive=lambda values: len(values["deepstack_layers"]), required=False),
)  # fmt: skip
INTERLEAVED = Harmless(
    "rope_parameters.mrope_interleaved rope_scaling.mrope_interleaved rope_parameters.mrope_section",
    "how three axes of position share the frequencies: for text they are one",
)


def unseen(*patterns: str) -> tuple[Drop, ...]:
    """Return the drops of tensors that see: shell patterns of their names."""
    return tuple(Drop(pattern, _VISION) for pattern in patterns)


def unheard(*patterns: str) -> tuple[Drop, ...]:
    """Return the drops of tensors that hear: shell patterns of their names."""
    return tuple(Drop(pattern, _AUDIO) for pattern in patterns)
