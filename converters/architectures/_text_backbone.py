"""The text half of a multimodal model: what its part of the configuration and of the weights is called,
and what is left out.

Names: transformers 4 kept the text model under `language_model.`, transformers 5 under `model.language_model.`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey

WITHIN = "text_config"
WHOLES = (
    "AudioFlamingo3ForConditionalGeneration", "Cohere2VisionForConditionalGeneration", "DotsOCRForCausalLM",
    "Exaone4_5_ForConditionalGeneration", "GlmAsrForConditionalGeneration", "Granite4VisionForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration", "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration", "JanusForConditionalGeneration",
    "LightOnOcrForConditionalGeneration", "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration", "MERaLiON2ForConditionalGeneration", "Phi4ForCausalLMV",
    "Qwen2AudioForConditionalGeneration", "Sarashina2VisionForCausalLM", "SmolVLMForConditionalGeneration",
    "StepVLForConditionalGeneration", "VoxtralForConditionalGeneration",
)
"""Classes whose text half is a model that also stands alone; which one, their configurations say."""
RENAMES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_VISION = "the vision half: this file holds the text model"
_AUDIO = "the audio encoder: this file holds the text model"
VISION_KEYS = IgnoredKey("vision_config vision_config.* vision_feature_* image_seq_length",
    "of the vision half, dropped")
AUDIO_KEYS = IgnoredKey("audio_config audio_config.* audio_soft_tokens_per_image", "of the audio encoder, dropped")
# Qwen3-VL and Qwen3-Omni add features of some layers of their vision half to the first blocks.
_LAYERS = "vision_config.deepstack_visual_indexes"
DEEPSTACK = (
    HParam("deepstack_layers", None, fields={"hf": f"{_LAYERS}|thinker_config.{_LAYERS}"}, length="n_deepstack",
           required=False),
    HParam("n_deepstack", "n_deepstack_layers", derive=lambda values: len(values["deepstack_layers"]), required=False),
)
INTERLEAVED = IgnoredKey(
    "rope_parameters.mrope_interleaved rope_scaling.mrope_interleaved",
    "how three axes of position share the frequencies: for text they are one",
)


def drop_vision(*patterns: str) -> tuple[Drop, ...]:
    """Return the drops of tensors that see: shell patterns of their names."""
    return tuple(Drop(pattern, _VISION) for pattern in patterns)


def drop_audio(*patterns: str) -> tuple[Drop, ...]:
    """Return the drops of tensors that hear: shell patterns of their names."""
    return tuple(Drop(pattern, _AUDIO) for pattern in patterns)


def drop_talker(*patterns: str) -> tuple[Drop, ...]:
    """Return the drops of tensors that speak: shell patterns of their names."""
    return tuple(Drop(pattern, "the audio decoder: this file holds the text model") for pattern in patterns)


# Qwen's models of everything keep text model, vision and audio encoder together, apart from the talker.
THINKERS = IgnoredKey(
    "talker_config talker_config.* token2wav_config token2wav_config.* code2wav_config "
    "code2wav_config.* enable_audio_output enable_talker "
    "thinker_config.audio_config thinker_config.audio_config.* thinker_config.vision_config "
    "thinker_config.vision_config.* thinker_config.*_token_* thinker_config.model_type thinker_config.architectures "
    "thinker_config.initializer_range thinker_config.position_id_per_seconds thinker_config.seconds_per_chunk "
    "thinker_config.user_token_id thinker_config.torch_dtype thinker_config.dtype "
    "thinker_config.tie_word_embeddings",
    "of the parts that see, hear and speak, dropped",
)
_VISION_TENSORS = (
    "*vision_tower.*", "*vision_model.*", "*visual.*", "*vision_encoder.*", "*vision_projection.*", "*connector.*",
    "*multi_modal_projector.*", "*mm_projector.*", "*image_newline", "*vit_large_projector.*", "model.aligner.*",
    "model.vqmodel.*", "model.generation_*", "model.layerwise_projectors.*", "model.spatial_projectors.*",
)
_AUDIO_TENSORS = (
    "*audio_tower.*", "encoder.*", "projector.*", "model.encoder.*", "model.projector.*", "speech_encoder.*",
    "ln_speech.*", "speech_audio_adapter.*",
)
_OTHER_HALF = IgnoredKey(
    "vision_config vision_config.* vision_feature_* vision_aspect_ratio image_seq_length image_grid_pinpoints "
    "downsample_* projector_* multimodal_projector_bias scale_factor spatial_merge_size vq_config vq_config.* "
    "audio_config audio_config.* token_classification_bias encoder_config encoder_config.* has_lora_adapter "
    "window_size mm_* alignment_intermediate_size img_processor img_processor.* speech_config speech_config.* "
    "speech_mlp_* qformer_config qformer_config.* spatial_* use_spatial_sampling "
    "use_image_newline_parameter",
    "of the vision or audio encoder, dropped",
)
_WHOLE = IgnoredKey("tie_word_embeddings", "what the whole model says wins, and tensors are there or not",
    (False, True))
_REPEATED = IgnoredKey("hidden_size", "repeats the text half's width", follows="n_embd")


CHATS = ("InternVLChatModel",)
"""Classes of publishers whose text half is any model, of which `llm_config` holds the configuration."""
_CHAT_WITHIN = "llm_config"
_CHAT = IgnoredKey(
    "vision_config vision_config.* downsample_ratio select_layer template system_message use_backbone_lora "
    "use_llm_lora force_image_size dynamic_image_size use_thumbnail ps_version min_dynamic_patch max_dynamic_patch "
    "pad2square image_fold num_image_token* loss_version",
    "of the vision encoder, or of its publisher's program",
)


def of(dialect: Dialect, *types: str) -> tuple[Dialect, ...]:
    """Return the dialects of the same model as the text half of one of `WHOLES` or of `CHATS`.

    `types`: what its configuration is called there.
    """
    prefixes = (("model.text_model.", "model."), ("language_model.norm.", "model.norm."), ("llm.", ""),
            ("text_decoder.", ""))
    variant = replace(
        dialect, name="half", names=dialect.column, fields=dialect.source, classes=WHOLES, types=types,
        config_section=WITHIN,
        renames=(*RENAMES, *prefixes, *dialect.renames),
        drops=(*dialect.drops, *drop_vision(*_VISION_TENSORS), *drop_audio(*_AUDIO_TENSORS)),
        ignored_keys=(*dialect.ignored_keys, _OTHER_HALF, _WHOLE, _REPEATED),
    )
    chat = replace(
        variant, name="chat", classes=CHATS, config_section=_CHAT_WITHIN,
        renames=(*RENAMES, ("language_model.", ""), *dialect.renames),
        drops=(*dialect.drops, *drop_vision("vision_model.*", "mlp1.*")),
        ignored_keys=(*dialect.ignored_keys, _CHAT, _WHOLE, _REPEATED),
    )
    return variant, chat


HEADLESS = Caveat(
    "tied == 1",
    "a model without an output matrix, that turns texts into vectors: runtimes that ask it for words read them off the "
    "token embedding",
)


BARE = (("embed_tokens.", "model.embed_tokens."), ("layers.", "model.layers."), ("norm.", "model.norm."))
"""Names of the tensors of a model that stands alone, without what makes words of its states."""


def headless(dialect: Dialect, *classes: str) -> tuple[Dialect, ...]:
    """Return the dialect of the same model saved without what makes words of its last states (`…Model`)."""
    variant = replace(
        dialect, name="headless", names=dialect.column, fields=dialect.source, classes=classes,
        renames=BARE, fixed={**dialect.fixed, "tied": True, "without_output": True},
        caveats=(*dialect.caveats, HEADLESS),
        ignored_keys=(*dialect.ignored_keys,
            IgnoredKey("tie_word_embeddings", "there is no output matrix", (False, True))),
    )
    return (variant,)


def with_base(spec: Architecture, *classes: str) -> Architecture:
    """Return the table with a dialect 'headless' for classes of the base model alone, whose states are pooled.

    Their tensors lack the prefix that they have in the model around it, or not: either is read.
    """
    dialect = spec.dialect("hf")
    (base,) = headless(dialect, *classes)
    base = replace(
        base, renames=(*BARE, *dialect.renames), config_section="", required_tensors=(), forbidden_tensors=(),
        ignored_keys=(*base.ignored_keys, embeddings.IGNORED_KEYS),
    )
    return replace(
        spec, hf_classes=(*spec.hf_classes, *classes), hparams=(*spec.hparams, *embeddings.DECODER_POOLING),
        dialects=(*spec.dialects, base),
    )
