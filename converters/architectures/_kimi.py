"""Kimi Linear: three blocks of its delta attention, one of latent attention without positions.

Sources: llama.cpp `src/models/kimi-linear.cpp`, `conversion/kimi_linear.py`; transformers `modeling_kimi_linear.py`. A
block without heads of keys is one of delta attention. The configuration counts its blocks from 1.
"""

from ggferry.converters.architectures._tensors import linear, norm, tensor
from ggferry.converters.schema.architecture import HParam, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import Layout
from ggferry.converters.schema.layouts.parts import Unsqueeze
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.formats.gguf.values import ValueType

INT32 = ValueType.INT32


def listed(values: Values) -> int:
    """How many blocks are listed as attending to everything."""
    return len(values["full_blocks"])


def heads_kv(values: Values) -> tuple[int, ...]:
    """attention.head_count_kv: 1 where a block attends to everything (the latent vector is one head's key), else 0."""
    if "attends" in values:
        return tuple(map(int, values["attends"]))
    return tuple(int(n + 1 in values["full_blocks"]) for n in range(values["n_layer"]))


def expert_width(values: Values) -> int:
    """What goes into an expert: the model's width, or the narrower one of a latent space."""
    return int(values["n_latent"] or values["n_embd"])


def query_widths(values: Values) -> tuple[int, ...]:
    """Of a query of each block."""
    return tuple(values["head_dim_mla"] if count else values["kda_dim"] for count in values["n_head_kv"])


def value_widths(values: Values) -> tuple[int, ...]:
    """Of a value of each block."""
    return tuple(values["head_dim_v_mla"] if count else values["kda_dim"] for count in values["n_head_kv"])


_IN = "linear_attn_config."
DELTA = (
    HParam("n_full", None, derive=listed, required=False),
    HParam("full_blocks", None, fields={"hf": f"{_IN}full_attn_layers"}, length="n_full", required=False),
    HParam("attends", None, ValueType.BOOL, {"hf": "layer_types"}, length="n_layer", required=False,
           words={"full_attention": True, "linear_attention": False}),
    HParam("n_head_kv", "attention.head_count_kv", INT32, derive=heads_kv, length="n_layer"),
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": f"{_IN}short_conv_kernel_size|linear_conv_kernel_dim"}),
    HParam("kda_dim", "kda.head_dim", fields={"hf": f"{_IN}head_dim|linear_head_dim"}),
    HParam("kda_heads", None, fields={"hf": f"{_IN}num_heads|linear_num_heads"}, required=False,
           check="kda_heads == n_head"),
    HParam("q_width", None, derive=query_widths, length="n_layer"),
    HParam("v_width", None, derive=value_widths, length="n_layer"),
)

_LAYER = "model.layers.{n}."
RENAMES = tuple(
    (f"{_LAYER}block_sparse_moe.{name}.", f"{_LAYER}mlp.{name}.") for name in ("gate_proj", "up_proj", "down_proj")
)
"""transformers 5 saves a dense block as if it had experts."""
CHANNELS = "n_head*kda_dim"


def delta_attention(
    source: str = "self_attn.", *, rate: Layout = NEG_EXP, shape: str = "1 1 n_head 1", gates: str = "fg"
) -> tuple[Role, ...]:
    """Return what a block of delta attention has beside queries and an output. `rate`, `shape`: the layout and the
    shape of the rates at which states fade; `gates`: those of two factors."""
    when = "n_head_kv == 0"
    convolutions = [
        tensor(f"ssm_conv1d_{name}.weight", f"1 {CHANNELS} 1 n_conv", f"{source}{name}_conv1d.weight", Unsqueeze(0),
               f32=True, when=when)
        for name in "qkv"
    ]
    low = [role for name in gates for role in _low_rank(f"ssm_{name}", f"{source}{name}", when)]
    return (
        *linear("attn_k", f"{CHANNELS} n_embd", f"{source}k_proj", when=when),
        *linear("attn_v", f"{CHANNELS} n_embd", f"{source}v_proj", when=when),
        *convolutions,
        *low,
        *linear("ssm_beta", "n_head n_embd", f"{source}b_proj", when=when),
        tensor("ssm_a", shape, f"{source}A_log", rate, f32=True, when=when),
        tensor("ssm_dt.bias", CHANNELS, f"{source}dt_bias", f32=True, when=when),
        *norm("ssm_norm", f"{source}o_norm", width="kda_dim", when=when),
    )


def _low_rank(name: str, source: str, when: str) -> tuple[Role, ...]:
    """Return the two factors of a projection: of how far a state fades (f), of the output's gate (g)."""
    return (
        *linear(f"{name}_a", "kda_dim n_embd", f"{source}_a_proj", when=when),
        *linear(f"{name}_b", f"{CHANNELS} kda_dim", f"{source}_b_proj", when=when),
    )
