"""What Qwen3-Next, Qwen3.5 and their mixtures share: blocks of linear attention, and every few of them one of gated
attention.

Sources: llama.cpp `src/models/{qwen3next,qwen35,qwen35moe}.cpp`, `conversion/qwen.py`; transformers
`modeling_{qwen3_next,qwen3_5,qwen3_5_moe}.py`. A gated delta net counts, in GGUF's words for state spaces,
`group_count` heads of keys and `time_step_rank` heads of values, `state_size` wide. Norms are stored as their distance
from one, but for the one behind the delta net.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import linear, norm, tensor
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import SAME, Layout, Then
from ggferry.converters.schema.layouts.parts import Squeeze
from ggferry.converters.schema.layouts.values import ADD_ONE, NEG_EXP
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL


def recurrent_layers(values: Values) -> tuple[bool, ...]:
    """attention.recurrent_layers: as listed, else all but one a period; blocks that predict further tokens attend."""
    every, listed = values.get("interval_stated", 4), values.get("recurrent_listed")
    if not every > 0:
        raise ValueError(f"one block of attention every {every}")
    of_decoder = listed or tuple((n + 1) % every != 0 for n in range(values["n_layer"]))
    return (*of_decoder, *[False] * int(values["n_nextn"] or 0))


def interval(values: Values) -> int | None:
    """full_attention_interval: every how many blocks one attends to everything, where that is so."""
    recurrent = values["recurrent"][: values["n_layer"]]
    every = recurrent.index(False) + 1 if False in recurrent else 0
    regular = (
        all(is_recurrent == ((n + 1) % every != 0) for n, is_recurrent in enumerate(recurrent)) if every else False
    )
    return every if regular else None


PREDICTING = HParam(
    "nextn_stated", None, fields={"hf": "mtp_num_hidden_layers", "gguf": nextn.COUNT}, required=False,
    check="nextn_stated <= 1",
    defaults=(Default(1, "published models have one", when="mtp == 1", dialect="hf"), Default(0, "none", dialect="hf")),
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, *nextn.counted((common.N_LAYER,), PREDICTING),
    common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM,
    common.HEAD_DIM_V, common.RMS_EPS,
    rope.BASE, replace(rope.FRACTION, defaults=(Default(0.25, "transformers' default", dialect="hf"),)), rope.N_ROT,
    rope.KIND, *rope.SCALING,
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "linear_conv_kernel_dim"}),
    HParam("n_state", "ssm.state_size", fields={"hf": "linear_key_head_dim"}),
    HParam("n_group", "ssm.group_count", fields={"hf": "linear_num_key_heads"}),
    HParam("n_heads", "ssm.time_step_rank", fields={"hf": "linear_num_value_heads"},
           check="0 < n_group and n_heads % n_group == 0"),
    HParam("value_width", None, fields={"hf": "linear_value_head_dim"}, required=False),
    HParam("n_inner", "ssm.inner_size", derive="n_heads * value_width"),
    HParam("interval_stated", None, fields={"hf": "full_attention_interval"}, required=False),
    HParam("recurrent_listed", None, BOOL, {"hf": "layer_types"}, length="n_layer", required=False,
           words={"linear_attention": True, "full_attention": False}),
    HParam("recurrent", "attention.recurrent_layers", BOOL, length="n_blocks", derive=recurrent_layers),
    HParam("interval", "full_attention_interval", derive=interval, required=False),
    common.TIED, common.SILU,
)
EXPERTS = (
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_expert_intermediate_size"}),
)

CHANNELS = "2*n_group*n_state+n_inner"


def attention() -> tuple[Role, ...]:
    """Return the roles of a block that attends: each head of the query projection holds a gate behind the query."""
    rows = {"q": "2*n_head*head_dim", "k": "n_head_kv*head_dim", "v": "n_head_kv*head_dim_v"}
    when = "recurrent == 0"
    projections = [linear(f"attn_{name}", f"{rows[name]} n_embd", f"self_attn.{name}_proj", when=when) for name in rows]
    return (
        *(role for roles in projections for role in roles),
        *linear("attn_output", "n_embd n_head*head_dim_v", "self_attn.o_proj", when=when),
        *tensors.qk_norm(layout=ADD_ONE, when=when),
    )


def delta_net(*, heads: Layout = SAME, conv: Layout = SAME) -> tuple[Role, ...]:
    """Return what all gated delta nets have. `heads`: the order of the heads of values, in a vector of one each;
    `conv`: of the channels of the convolution."""
    when = "recurrent == 1"
    at = "linear_attn."
    squeezed = Squeeze(1) if conv == SAME else Then(Squeeze(1), conv)
    rate = NEG_EXP if heads == SAME else Then(heads, NEG_EXP)
    return (
        tensor("ssm_conv1d.weight", f"{CHANNELS} n_conv", f"{at}conv1d.weight", squeezed, f32=True, when=when),
        tensor("ssm_dt.bias", "n_heads", f"{at}dt_bias", heads, f32=True, when=when),
        tensor("ssm_a", "n_heads", f"{at}A_log", rate, f32=True, when=when),
        *norm("ssm_norm", f"{at}norm", width="n_inner/n_heads", when=when),
    )


def norms() -> tuple[Role, ...]:
    """Return the norms of a block; the second is the one before the feed-forward, whatever its name says."""
    return (
        *norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        *norm("post_attention_norm", "post_attention_layernorm", layout=ADD_ONE),
    )


def shared_expert() -> tuple[Role, ...]:
    """Return the expert that every token passes, and the one row that weighs it."""
    at = "mlp.shared_expert"
    weighed = tensor("ffn_gate_inp_shexp.weight", "1 n_embd", f"{at}_gate.weight", f32=True)
    return (weighed, *tensors.shared_experts(f"{at}.", width="n_ff_shexp"))


RECIPE: Conventions = {
    "rope": "halves", "attn_gate": "query", "ffn_norm": "post_attention_norm", "decay": "rate",
    "expert_norm": True,
}
CONVENTIONS: Conventions = {"norm_offset": 1.0, "decay": "log"}

_REASON = "predicts further tokens for speculative decoding: no part of the decoder"
DROPS = (nextn.DROP, Drop("*mtp.*", _REASON, when="mtp == 0"))
_OF_ONE = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
_BLOCKS = "model.layers.{n}."
APPENDED = tuple(
    one
    for at in ("mtp.", "model.mtp.")
    for one in (
        (f"{at}layers.{{n}}.", _BLOCKS),
        *((f"{at}{theirs}.", _BLOCKS, f"{ours}.") for theirs, ours in _OF_ONE.items()),
    )
)
"""Names of what predicts further tokens: a block beside those of the decoder (llama.cpp `conversion/qwen.py`)."""
EXPORTED = (
    *((f"{_BLOCKS}{ours}.", f"mtp.{theirs}.", "n >= n_layer") for theirs, ours in _OF_ONE.items()),
    (_BLOCKS, "mtp.layers.0.", "n >= n_layer"),
)
WIDTHS = Caveat(
    "n_inner != n_heads * n_state",
    "keys of the delta net are {n_state} wide and values are not; llama.cpp takes both to be alike",
    unsupported_by="llama.cpp",
)
EPSILON = Caveat(
    "eps < 0.0000009 or eps > 0.0000011",
    "queries and keys of the delta net are normed with epsilon 0.000001; llama.cpp takes that of other norms ({eps})",
    differs_in="llama.cpp",
)
CAVEATS = (*rope.CAVEATS, WIDTHS, EPSILON)
IGNORED_KEYS = (
    common.UNBIASED,
    IgnoredKey("mtp_* num_nextn_predict_layers", "of what predicts further tokens"),
    IgnoredKey("mamba_ssm_dtype", "how it is computed, not what"),
    IgnoredKey("attn_output_gate", "attention has a gate", (True,)),
)
