"""Table pieces that mmproj files share: hparams of vision and audio encoders, drops, harmless keys.

Places under `hf` are whole paths in config.json; `preprocessor.…` is in preprocessor_config.json or
processor_config.json (`formats.checkpoint_folder.sidecars.with_preprocessor`). Keys: gguf-py `constants.Keys.Clip…`;
which are required: llama.cpp `tools/mtmd/clip.cpp`.
"""

from collections.abc import Mapping
from typing import Any

from ggferry.converters.schema.architecture import Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
VISION_BLOCKS, AUDIO_BLOCKS = {"v.blk.": "v_n_layer"}, {"a.blk.": "a_n_layer"}
"""What counts the blocks of either tower (`Architecture.blocks`)."""

_WIDTH = "text_config.hidden_size|llm_config.hidden_size|thinker_config.text_config.hidden_size|hidden_size"
"""The width of the text model, to which a projector leads."""


def _vision(name: str, key: str, place: str = "", kind: ValueType = ValueType.UINT32, **more: Any) -> HParam:
    return HParam(f"v_{name}", f"vision.{key}", kind, {"hf": place} if place else {}, **more)


def _audio(name: str, key: str, place: str = "", kind: ValueType = ValueType.UINT32, **more: Any) -> HParam:
    return HParam(f"a_{name}", f"audio.{key}", kind, {"hf": place} if place else {}, **more)


PROJECTOR = HParam("projector_type", "projector_type", STRING, required=False)
V_PROJECTOR = _vision("projector_type", "projector_type", kind=STRING, required=False)
A_PROJECTOR = _audio("projector_type", "projector_type", kind=STRING, required=False)
HAS_VISION = HParam("has_vision", "has_vision_encoder", BOOL, required=False)
HAS_AUDIO = HParam("has_audio", "has_audio_encoder", BOOL, required=False)
USE_GELU = HParam("use_gelu", "use_gelu", BOOL, required=False)
USE_SILU = HParam("use_silu", "use_silu", BOOL, required=False)

V_PROJECTION = _vision("projection", "projection_dim", _WIDTH)
V_IMAGE_SIZE = _vision("image_size", "image_size", "vision_config.image_size", check="0 < v_image_size")
V_PATCH_SIZE = _vision("patch_size", "patch_size", "vision_config.patch_size", check="0 < v_patch_size")
V_N_EMBD = _vision("n_embd", "embedding_length", "vision_config.hidden_size")
V_N_FF = _vision("n_ff", "feed_forward_length", "vision_config.intermediate_size")
V_N_LAYER = _vision("n_layer", "block_count", "vision_config.num_hidden_layers")
V_N_HEAD = _vision(
    "n_head", "attention.head_count", "vision_config.num_attention_heads",
    check="0 < v_n_head and v_n_embd % v_n_head == 0",
)
V_EPS = _vision("eps", "attention.layer_norm_epsilon", "vision_config.layer_norm_eps", F32)


def _scale(values: Values) -> float:
    """Return what a processor makes of white before it normalizes: 1 where it divides bytes by 255."""
    if not values.get("rescaled", True):
        return 255.0
    scale = 255 * float(values.get("rescale_factor", 1 / 255))
    if not 0 < scale <= 255:
        raise ValueError(f"rescale_factor {values['rescale_factor']}")
    return 1.0 if abs(scale - 1) < 1e-6 else scale


def _mean(values: Values) -> tuple[float, ...]:
    """Return the mean of pixels from 0 to 1 that a processor takes away."""
    if not values.get("normalized", True):
        return (0.0, 0.0, 0.0)
    return tuple(part / _scale(values) for part in _each_color(values["stated_mean"]))


def _std(values: Values) -> tuple[float, ...]:
    """Return by what a processor divides pixels from 0 to 1."""
    found = _each_color(values["stated_std"]) if values.get("normalized", True) else (1.0, 1.0, 1.0)
    if not all(found):
        raise ValueError(f"image_std {found}: nothing can be divided by it")
    return tuple(part / _scale(values) for part in found)


def _each_color(declared: tuple[float, ...] | float) -> tuple[float, ...]:
    return declared if isinstance(declared, tuple) else (declared,) * 3


V_MEAN = _vision("mean", "image_mean", kind=F32, derive=_mean, length="3")
V_STD = _vision("std", "image_std", kind=F32, derive=_std, length="3")
NORMALIZED = (
    HParam("stated_mean", None, F32, {"hf": "preprocessor.image_mean"}, length="3", allow_scalar=True, required=False),
    HParam("stated_std", None, F32, {"hf": "preprocessor.image_std"}, length="3", allow_scalar=True, required=False),
    HParam("normalized", None, BOOL, {"hf": "preprocessor.do_normalize"}, required=False),
    HParam("rescaled", None, BOOL, {"hf": "preprocessor.do_rescale"}, required=False),
    HParam("rescale_factor", None, F32, {"hf": "preprocessor.rescale_factor"}, required=False),
)
"""What a processor states of pixels."""
COLORS = (*NORMALIZED, V_MEAN, V_STD)
"""How pixels become numbers. llama.cpp knows one way: they are divided by 255, the mean is taken away, and the rest is
divided by the deviation. A processor that does not normalize, or that rescales otherwise, has another mean and
deviation there."""
VISION = (
    HAS_VISION, V_PROJECTION, V_IMAGE_SIZE, V_PATCH_SIZE, V_N_EMBD, V_N_FF, V_N_LAYER, V_N_HEAD, *COLORS,
)
"""What every vision tower declares, but its projector's type and its epsilon."""

A_PROJECTION = _audio("projection", "projection_dim", _WIDTH)
A_N_MELS = _audio("n_mels", "num_mel_bins", "audio_config.num_mel_bins", check="0 < a_n_mels")
A_N_EMBD = _audio("n_embd", "embedding_length", "audio_config.hidden_size|audio_config.d_model")
A_N_FF = _audio("n_ff", "feed_forward_length", "audio_config.intermediate_size|audio_config.encoder_ffn_dim")
A_N_LAYER = _audio("n_layer", "block_count", "audio_config.num_hidden_layers|audio_config.encoder_layers")
A_N_HEAD = _audio(
    "n_head", "attention.head_count", "audio_config.num_attention_heads|audio_config.encoder_attention_heads",
    check="0 < a_n_head and a_n_embd % a_n_head == 0",
)
A_EPS = _audio("eps", "attention.layer_norm_epsilon", kind=F32, defaults=(
    Default(1e-5, "torch.nn.LayerNorm's, which Whisper's encoder uses"),
))
AUDIO = (HAS_AUDIO, A_PROJECTION, A_N_EMBD, A_N_FF, A_N_LAYER, A_N_HEAD, A_N_MELS)
"""What every audio tower declares, but its projector's type and its epsilon."""


def projector_act(*words: str) -> HParam:
    """Return the activation of a projector, which GGUF has no key for: the only ones that runtimes compute."""
    return HParam(
        "projector_act", None, STRING, {"hf": "projector_hidden_act"}, words={word: word for word in words},
        required=False,
    )


def vision_fixed(projector: str) -> Mapping[str, Any]:
    """Return what a file of pictures alone states of its kind (`Dialect.given`)."""
    return {"projector_type": projector, "has_vision": True}


def audio_fixed(projector: str) -> Mapping[str, Any]:
    """Return what a file of sound alone states of its kind."""
    return {"projector_type": projector, "has_audio": True}


def both_fixed(vision: str, audio: str) -> Mapping[str, Any]:
    """Return what a file of both states of its kind."""
    return {"v_projector_type": vision, "a_projector_type": audio, "has_vision": True, "has_audio": True}


_TEXT = "of the text model"
TEXT = tuple(
    Drop(pattern, _TEXT)
    for pattern in (
        "language_model.*", "model.language_model.*", "lm_head.*", "model.lm_head.*", "model.layers.*",
        "model.embed_tokens.*", "model.norm.*", "model.text_model.*", "text_model.*", "llm.*",
    )
)
"""The text model's tensors, which the other file holds."""

IGNORED_KEYS = (
    IgnoredKey("multimodal_projector_bias projector_bias projector_use_layernorm projector_hidden_size",
             "the tensors say it"),
    IgnoredKey("preprocessor.image_processor_type preprocessor.processor_class preprocessor.feature_extractor_type "
             "preprocessor._processor_class preprocessor.auto_map", "names a program"),
    IgnoredKey("preprocessor.do_resize preprocessor.do_center_crop preprocessor.do_convert_rgb preprocessor.do_pad "
             "preprocessor.do_image_splitting preprocessor.do_pan_and_scan preprocessor.do_sample_frames "
             "preprocessor.do_convert_annotations preprocessor.do_split_image preprocessor.return_* "
             "preprocessor.data_format preprocessor.input_data_format preprocessor.device "
             "preprocessor.disable_grouping preprocessor.default_to_square",
             "how a picture comes to be a tensor, which the runtime does its own way"),
    IgnoredKey("preprocessor.do_flip_channel_order", "red, green, blue", (False,)),
    IgnoredKey("preprocessor.resample", "how pixels are interpolated: the runtime has its own way for each projector"),
    IgnoredKey("preprocessor.chat_template preprocessor.tokenizer*", "read with the tokenizer"),
)
"""Keys of a processor that every table may leave unread."""
