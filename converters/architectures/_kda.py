"""Kimi delta attention with a bounded gate, as Ling 3 has it: how far a state fades comes of one matrix, not of two.

llama.cpp keeps the rate of a head as a positive number, exp(A_log), where Kimi Linear's is negative.
"""

from ggferry.converters.architectures._tensors import linear, norm, tensor
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape, Unsqueeze
from ggferry.converters.schema.layouts.values import EXP

CHANNELS = "n_head*kda_dim"


def attending(values: Values) -> tuple[int, ...]:
    """Return attention.head_count_kv: 1 in the blocks that attend to everything, 0 in the others.

    They are listed, or else the last of each group and those behind the last whole group.
    """
    count = values["n_layer"]
    if "attends" in values:
        return tuple(map(int, values["attends"]))
    group = values["group"]
    if not 0 < group <= count:
        raise ValueError(f"groups of {group} blocks")
    return tuple(int((n + 1) % group == 0 or n >= count // group * group) for n in range(count))


def query_widths(values: Values) -> tuple[int, ...]:
    """Return the width of a query of each block."""
    return tuple(values["head_dim_mla"] if count else values["kda_dim"] for count in values["n_head_kv"])


def value_widths(values: Values) -> tuple[int, ...]:
    """Return the width of a value of each block."""
    return tuple(values["head_dim_v_mla"] if count else values["kda_dim"] for count in values["n_head_kv"])


def delta_attention(source: str) -> tuple[Role, ...]:
    """Return what a block of delta attention has beside queries and an output."""
    when = "n_head_kv == 0"
    convolutions = [
        tensor(f"ssm_conv1d_{name}.weight", f"1 {CHANNELS} 1 n_conv", f"{source}{name}_conv1d.weight", Unsqueeze(0),
               f32=True, when=when)
        for name in "qkv"
    ]
    rate = Then(Reshape(("n_head", 1), back=("n_head",)), EXP)
    return (
        *linear("attn_k", f"{CHANNELS} n_embd", f"{source}k_proj", when=when),
        *linear("attn_v", f"{CHANNELS} n_embd", f"{source}v_proj", when=when),
        *convolutions,
        *linear("ssm_f_a", f"{CHANNELS} n_embd", f"{source}f_proj", when=when),
        *linear("ssm_beta", "n_head n_embd", f"{source}b_proj", when=when),
        tensor("ssm_a", "n_head 1", f"{source}A_log", rate, f32=True, when=when),
        tensor("ssm_dt.bias", CHANNELS, f"{source}dt_bias", f32=True, when=when),
        *linear("ssm_g_a", f"{CHANNELS} n_embd", f"{source}g_proj", when=when),
        *norm("ssm_norm", f"{source}o_norm", width="kda_dim", when=when),
    )
