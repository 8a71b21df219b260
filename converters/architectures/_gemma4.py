"""What Gemma 4 and its assistant share: blocks with a window and blocks without have heads of two widths and bases of
their own."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma_layers as gemma
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
_HF = "transformers' default"

WINDOWS = (
    common.LAYER_WINDOWS,
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=gemma.windows, length="n_layer"),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"},
           defaults=(Default(512, _HF, dialect="hf"),), check="0 < n_swa"),
)
HEADS = (
    common.N_HEAD,
    HParam("n_head_kv_swa", None, fields={"hf": "num_key_value_heads"}, required=False),
    HParam("n_head_kv_global", None, fields={"hf": "num_global_key_value_heads"}, required=False),
    HParam("n_head_kv_listed", None, fields={"hf": "per_layer_config.*.num_key_value_heads"}, required=False),
    HParam("k_is_v", None, BOOL, {"hf": "attention_k_eq_v"}, required=False),
    HParam("n_head_kv", "attention.head_count_kv", derive=gemma.key_heads, length="n_layer", allow_scalar=True),
    HParam("head_dim_full", "attention.key_length", fields={"hf": "global_head_dim|per_layer_config.*.head_dim"},
           defaults=(Default(512, _HF, dialect="hf"),)),
    HParam("head_dim_swa", "attention.key_length_swa", fields={"hf": "head_dim"},
           defaults=(Default(256, _HF, dialect="hf"),)),
    HParam("head_dim", None, derive=gemma.head_widths, length="n_layer"),
    HParam("value_dim_full", "attention.value_length", derive="head_dim_full", check="value_dim_full == head_dim_full"),
    HParam("value_dim_swa", "attention.value_length_swa", derive="head_dim_swa", check="value_dim_swa == head_dim_swa"),
    HParam("attn_scale", None, F32),
)
ROPE = (
    # Gemma 3n's class knows the older name of the windows' base, this one does not.
    *(replace(param, fields={"hf": param.fields["hf"].removesuffix("|rope_local_base_freq")}) for param in gemma.BASES),
    HParam("rope_kind", None, STRING, {"hf": "rope_parameters.full_attention.rope_type"}, required=False,
           words={"proportional": "proportional"}),
    HParam("rope_stretch", None, F32, {"hf": "rope_parameters.full_attention.factor"}, required=False,
           check="rope_stretch > 0"),
    HParam("rope_fraction_full", None, F32, {"hf": "rope_parameters.full_attention.partial_rotary_factor"},
           required=False, check="0 <= rope_fraction_full and rope_fraction_full <= 1",
           defaults=(Default(1.0, "parameters without a part are of whole heads", when="rope_kind == 'proportional'"),
                     Default(0.25, _HF, dialect="hf"))),
    HParam("n_rot_full", "rope.dimension_count", derive="head_dim_full",
           check="n_rot_full % 2 == 0 and 0 < n_rot_full and n_rot_full == head_dim_full"),
    HParam("n_rot_swa", "rope.dimension_count_swa", derive="head_dim_swa",
           check="n_rot_swa % 2 == 0 and 0 < n_rot_swa and n_rot_swa <= head_dim_swa"),
    HParam("n_rot", None, derive=gemma.rotated_widths, length="n_layer"),
)
