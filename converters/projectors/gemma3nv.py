"""Gemma 3n's vision encoder: timm's MobileNetV5, whose two last stages are fused to 16 × 16 rows.

Sources: transformers `modeling_gemma3n.py` (`get_image_features`, `Gemma3nMultimodalEmbedder`), timm 1.0.31
`mobilenetv5.py`; llama.cpp `conversion/gemma.py`, `tools/mtmd/models/mobilenetv5.cpp`, whose loader asks for sizes of a
transformer that this encoder does not have.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _mobilenetv5 as mobilenet
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

_HF = "transformers' default"
_REQUESTED = "unused, and required by its loader; llama.cpp's converter"
_AUDIO = "of the audio encoder, of which llama.cpp computes nothing (clip.cpp skips it) and ggferry neither"
ROWS = 256

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={"hf": "preprocessor.size.height"},
            check=f"0 < v_image_size and v_image_size % {ROWS} == 0",
            defaults=(Default(768, "Gemma 3n's processor", dialect="hf"),)),
    HParam("v_width", None, fields={"hf": "preprocessor.size.width"}, required=False, check="v_width == v_image_size"),
    replace(clip.V_PATCH_SIZE, fields={}, derive=f"v_image_size//{ROWS}"),
    replace(clip.V_N_EMBD, defaults=(Default(2048, _HF, dialect="hf"),)),
    replace(clip.V_N_FF, fields={}, defaults=(Default(8192, _REQUESTED, dialect="hf"),)),
    replace(clip.V_N_LAYER, fields={}, defaults=(Default(128, _REQUESTED, dialect="hf"),)),
    replace(clip.V_N_HEAD, fields={}, defaults=(Default(8, _REQUESTED, dialect="hf"),), check="0 < v_n_head"),
    *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "vision_config.rms_norm_eps"}, defaults=(Default(1e-6, _HF, dialect="hf"),)),
    HParam("v_eps_known", None, clip.F32, {"hf": "vision_config.rms_norm_eps"}, words={1e-6: 1e-6}, required=False),
    HParam("v_timm", None, clip.STRING, {"hf": "vision_config.architecture"},
           words={"mobilenetv5_300m_enc": "mobilenetv5_300m_enc"}, required=False),
    HParam("v_rows", None, fields={"hf": "vision_soft_tokens_per_image"}, words={ROWS: ROWS}, required=False),
    *(HParam(f"v_{name}", None, check=f"0 < v_{name}") for name in ("stem", "wide_0", "wide_1", "wide_2", "wide_3")),
    HParam("v_heads_2", None, defaults=(Default(12, "timm's definition"),)),
    HParam("v_heads_3", None, defaults=(Default(16, "timm's definition"),)),
    *(HParam(f"v_{name}", None, check=f"0 < v_{name}") for name in ("head_2", "head_3")),
    HParam("v_n_hard", None),
)

_EMBEDDER = "model.embed_vision."
ROLES = roles(
    mobilenet.tower(),
    f"""
    mm.input_projection.weight plain : v_projection v_n_embd | hf {_EMBEDDER}embedding_projection.weight
    mm.soft_emb_norm.weight f32      : v_n_embd              | hf {_EMBEDDER}soft_embedding_norm.weight
    mm.embedding.weight f32          : v_n_hard v_n_embd     | hf {_EMBEDDER}embedding.weight
    mm.hard_emb_norm.weight f32      : v_n_embd              | hf {_EMBEDDER}hard_embedding_norm.weight
    """,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="gemma3nv",
    display_name="Gemma 3n, vision encoder",
    hf_classes=("Gemma3nForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={},
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("gemma3nv"),
            drops=(
                *clip.TEXT,
                Drop("model.audio_tower.*", _AUDIO),
                Drop("model.embed_audio.*", _AUDIO),
                Drop("model.embed_vision.embedding_post_projection_norm.weight", "a buffer of ones: this norm has no "
                     "weight (`with_scale=False`)"),
            ),
            renames=(("vision_tower.", "model.vision_tower."), ("embed_vision.", _EMBEDDER),
                     ("audio_tower.", "model.audio_tower."), ("embed_audio.", "model.embed_audio.")),
            nested=("vision_config",),
            ignored_keys=(
                *clip.IGNORED_KEYS,
                IgnoredKey("vision_config.do_pooling", "the class asks for states, whatever it says"),
                IgnoredKey("vision_config.vocab_size vision_config.vocab_offset vision_config.label_names "
                           "vision_config.num_classes vision_config.num_labels", "of no row of a picture"),
                IgnoredKey("preprocessor.feature_extractor.* preprocessor.feature_size preprocessor.sampling_rate "
                           "preprocessor.padding_value preprocessor.dither preprocessor.preemphasis* "
                           "preprocessor.frame_length* preprocessor.hop_length* preprocessor.min_frequency "
                           "preprocessor.max_frequency preprocessor.mel_floor preprocessor.fft_* "
                           "preprocessor.input_scale_factor preprocessor.per_bin_mean preprocessor.per_bin_stddev",
                           _AUDIO),
                IgnoredKey("vision_config.model_args", "none in what is published", (None,)),
                IgnoredKey("preprocessor.size preprocessor.size.* preprocessor.image_seq_length",
                           "the picture's size, which is read, and its rows, which are always 256"),
            ),
        ),
    ),
    caveats=(
        Caveat("v_projection != v_n_embd", "llama.cpp (b11549) takes a picture's rows for as wide as the encoder's "
               "states, {v_n_embd}, and they are {v_projection} wide", unsupported_by="llama.cpp"),
    ),
    recipe={"computation": "projector", "vision": "gemma3nv", "norm": "rms", "activation": "gelu_tanh"},
)
