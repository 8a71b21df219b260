"""Rotary position embedding in tables: base, turned dimensions, and its scaling for longer contexts.

Places of config.json: Gemma 3 keeps a set for its blocks without a window (`full_attention`); since transformers 5 all
is in `rope_parameters`, before that in `rope_scaling` with the base beside it. What each scaling type means, and how
GGUF says it: `converters.schema.derivations`.
"""

from collections.abc import Iterable
from dataclasses import replace

from ggferry.converters.schema.architecture import Caveat, Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType


def scaling_place(key: str) -> str:
    """Return where config.json keeps `key` of the scaling."""
    return f"rope_parameters.full_attention.{key}|rope_parameters.{key}|rope_scaling.{key}"


def _ramp(values: Values) -> None:
    """Raise what `yarn_ramp` raises."""
    if values.get("rope_kind") == "yarn":
        from ggferry.converters.schema.yarn import yarn_ramp  # few models have it

        widths = values["n_rot"] if isinstance(values["n_rot"], tuple) else (values["n_rot"],)
        for width in set(widths):
            yarn_ramp({**values, "n_rot": width})


def without_rope_scaling(params: Iterable[HParam]) -> tuple[HParam, ...]:
    """Return the hparams of a class that reads `rope_parameters` only, and nothing of the older `rope_scaling`."""
    return tuple(
        replace(param, fields={
            dialect: "|".join(place for place in places.split("|") if not place.startswith("rope_scaling."))
            for dialect, places in param.fields.items()
        })
        for param in params
    )


_F32, _STRING = ValueType.FLOAT32, ValueType.STRING
_META = "Meta's own code for LLaMA 3.1"
_LLAMA3 = "rope_kind == 'llama3'"

BASE = HParam(
    "rope_base", "rope.freq_base", _F32,
    {"hf": scaling_place("rope_theta") + "|rope_theta", "meta": "rope_theta"},
    defaults=(Default(10000.0, "the base of the first rotary models, where nothing states another"),),
    check="rope_base > 1",
)
N_ROT = HParam("n_rot", "rope.dimension_count", derive="@rope_dimensions", check="n_rot % 2 == 0 and 0 < n_rot")
FRACTION = HParam(
    "rope_fraction", None, _F32, required=False,
    fields={
        "hf": "rope_parameters.partial_rotary_factor|rope_scaling.partial_rotary_factor|partial_rotary_factor|rope_pct"
    },
)

_KINDS = {"default": "default", "linear": "linear", "dynamic": "dynamic", "yarn": "yarn"}
_FACTOR_KINDS = {"longrope": "longrope", "su": "longrope", "llama3": "llama3", True: "llama3", False: "default"}
_KIND_PLACES = {"hf": scaling_place("rope_type") + "|" + scaling_place("type"), "meta": "use_scaled_rope"}
KIND = HParam("rope_kind", None, _STRING, _KIND_PLACES, words=_KINDS, required=False)
LONGROPE_KIND = HParam(
    "rope_kind", None, _STRING, _KIND_PLACES, words=_KINDS | {"longrope": "longrope", "su": "longrope"}, required=False
)
UNSCALED_KIND = HParam(
    "rope_kind", None, _STRING, {"hf": _KIND_PLACES["hf"]}, words={"default": "default"}, required=False
)
KIND_OR_FACTORS = HParam("rope_kind", None, _STRING, _KIND_PLACES, words=_KINDS | _FACTOR_KINDS, required=False)

# Several axes of position (Qwen-VL): for text they are one number, so that the sections change nothing.
AXES_KIND = HParam("rope_kind", None, _STRING, _KIND_PLACES, words=_KINDS | {"mrope": "default"}, required=False)
SECTIONS_DECLARED = HParam(
    "rope_sections_stated", None, fields={"hf": scaling_place("mrope_section")}, required=False, length="3"
)
SECTIONS = HParam(
    "rope_sections", "rope.dimension_sections", ValueType.INT32, derive="@rope_sections", length="4",
)
SECTIONS_IF_DECLARED = (SECTIONS_DECLARED, replace(SECTIONS, required=False))

# What the configuration says, and what GGUF makes of it.
STRETCH = HParam(
    "rope_stretch", None, _F32, {"hf": scaling_place("factor")}, required=False,
    defaults=(Default(8.0, _META, when=_LLAMA3, dialect="meta"),),
)
ORIGINAL_DECLARED = HParam(
    "rope_original_stated", None, required=False,
    fields={"hf": "original_max_position_embeddings|" + scaling_place("original_max_position_embeddings")},
    defaults=(Default(8192, _META, when=_LLAMA3, dialect="meta"),),
)
MAGNITUDE = HParam("rope_magnitude", None, _F32, {"hf": scaling_place("attention_factor")}, required=False)
MSCALE = HParam("rope_mscale", None, _F32, {"hf": scaling_place("mscale")}, required=False)
MSCALE_ALL = HParam("rope_mscale_all", None, _F32, {"hf": scaling_place("mscale_all_dim")}, required=False)
TRUNCATE = HParam(
    "rope_truncate", None, ValueType.BOOL, {"hf": scaling_place("truncate")}, words={True: True}, required=False
)
TYPE = HParam("rope_scaling", "rope.scaling.type", _STRING, derive="@rope_scaling", absent="")
FACTOR = HParam(
    "rope_factor", "rope.scaling.factor", _F32, {"gguf": "rope.scaling.factor|rope.scale_linear"},
    derive="@rope_factor", absent=1.0, check="rope_factor > 0",
)
ORIGINAL = HParam(
    "rope_original", "rope.scaling.original_context_length", derive="@rope_original", required=False,
    check="rope_original > 0",
)
ATTN_FACTOR = HParam("rope_attn_factor", "rope.scaling.attn_factor", _F32, derive="@rope_attn_factor", absent=1.0)
BETA_FAST = HParam(
    "rope_beta_fast", "rope.scaling.yarn_beta_fast", _F32, {"hf": scaling_place("beta_fast")}, absent=32.0,
    check="rope_beta_fast > 0",
)
BETA_SLOW = HParam(
    "rope_beta_slow", "rope.scaling.yarn_beta_slow", _F32, {"hf": scaling_place("beta_slow")}, absent=1.0,
    check="rope_beta_slow > 0",
)

# Of no key: what no file can say is refused.
RAMP = HParam("rope_ramp", None, _F32, derive=_ramp, required=False)
SCALING = (
    STRETCH, ORIGINAL_DECLARED, MAGNITUDE, MSCALE, MSCALE_ALL, TRUNCATE, TYPE, FACTOR, ORIGINAL, ATTN_FACTOR, BETA_FAST,
    BETA_SLOW, RAMP,
)

LOW = HParam(
    "rope_low", None, _F32, {"hf": scaling_place("low_freq_factor")}, required=False,
    defaults=(Default(1.0, _META, when=_LLAMA3, dialect="meta"),),
)
HIGH = HParam(
    "rope_high", None, _F32, {"hf": scaling_place("high_freq_factor")}, required=False,
    defaults=(Default(4.0, _META, when=_LLAMA3, dialect="meta"),),
)
LONG = HParam("rope_long", None, _F32, {"hf": scaling_place("long_factor")}, required=False, length="n_rot/2")
SHORT = HParam("rope_short", None, _F32, {"hf": scaling_place("short_factor")}, required=False, length="n_rot/2")

ROPE = (BASE, N_ROT, KIND, *SCALING)
ROPE_OF_AXES = (BASE, N_ROT, AXES_KIND, *SCALING, SECTIONS_DECLARED, SECTIONS)
# Qwen3-VL's, whatever the width of its heads (`Qwen3VLTextRotaryEmbedding`).
_QWEN3_AXES = (Default((24, 20, 20), "transformers' default", dialect="hf"),)
ROPE_OF_QWEN3_AXES = (*ROPE_OF_AXES[:-2], replace(SECTIONS_DECLARED, defaults=_QWEN3_AXES), SECTIONS)
PARTIAL_ROPE = (BASE, FRACTION, N_ROT, KIND, *SCALING)
LLAMA3_KIND = replace(KIND, words=_KINDS | {"llama3": "llama3"})
LLAMA3_ROPE = (BASE, N_ROT, LLAMA3_KIND, *SCALING, LOW, HIGH)
HALF = replace(FRACTION, defaults=(Default(0.5, "half of each head, transformers' default", dialect="hf"),))
HALF_ROPE = (BASE, HALF, N_ROT, KIND, *SCALING)
ROPE_WITH_FACTORS = (BASE, FRACTION, N_ROT, KIND_OR_FACTORS, *SCALING, LOW, HIGH, LONG, SHORT)


DECLARED_FRACTION = replace(FRACTION, name="fraction_stated")
FRACTION_UNREAD = Caveat(
    "fraction_stated != 1",
    "config.json says partial_rotary_factor={fraction_stated}, which transformers' class does not read: whole heads "
    "are rotated",
)
# Where GGUF has rows in pairs and Hugging Face in halves, a head turns whole: of no published model does a part.
WHOLE_ROPE_WITH_FACTORS = (
    *(DECLARED_FRACTION if param is FRACTION else param for param in ROPE_WITH_FACTORS),
    HParam("fraction_unread", None, _F32, derive="@unread_fraction", required=False),
)

LLAMA3_FREQUENCIES = roles("rope_freqs.weight f32 optional : n_rot/2 | hf =llama3_factors")
LONGROPE_FACTORS = roles("""
rope_factors_long.weight f32 optional  : n_rot/2 | hf =long_factors
rope_factors_short.weight f32 optional : n_rot/2 | hf =short_factors
""")
FACTORS = roles(LLAMA3_FREQUENCIES, LONGROPE_FACTORS)

DYNAMIC = Caveat(
    "rope_kind == 'dynamic'",
    "the configuration stretches rotary positions dynamically beyond {n_ctx} tokens, which GGUF cannot say: up to "
    "there nothing differs, beyond it a runtime does not stretch",
)
BETAS = Caveat(
    "rope_kind == 'yarn' and (rope_beta_fast != 32 or rope_beta_slow != 1)",
    "yarn with beta_fast={rope_beta_fast}, beta_slow={rope_beta_slow}: written, but llama.cpp computes with 32 and 1",
    differs_in="llama.cpp",
)
# llama-model.cpp, `llama_model::get_rope_factors`; transformers' `longrope_frequency_update`.
BY_CONTEXT = Caveat(
    "rope_kind == 'longrope'",
    "llama.cpp chooses rotary factors by the size of its context: in one of more than {rope_original} tokens (option "
    "-c; {n_ctx} where it is not given) it takes the long factors from the first token on; this model takes the short "
    "ones for texts of up to {rope_original} tokens",
)
CAVEATS = (DYNAMIC, BETAS, BY_CONTEXT)
UNFACTORED = Caveat(
    "rope_kind == 'llama3'",
    "rotary frequencies of Llama 3: llama.cpp has no tensor for them in this architecture",
    unsupported_by="llama.cpp",
)
