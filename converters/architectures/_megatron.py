"""Roles of the families that took their names from Megatron: GPT-NeoX, BLOOM, Falcon."""

from ggferry.converters.architectures._tensors import Condition, fused_attention, norm, plain
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.order import heads_to_qkv


def first_norm() -> tuple[Role, ...]:
    """Return the norm before attention."""
    return norm("attn_norm", "input_layernorm", bias=True)


def second_norm(when: str = "") -> tuple[Role, ...]:
    """Return the norm before the feed-forward half."""
    return norm("ffn_norm", "post_attention_layernorm", bias=True, when=when)


def attention(source: str, bias: Condition = True) -> tuple[Role, ...]:
    """Return attention whose fused rows lie group by group; `source`: 'self_attention.'."""
    return fused_attention(f"{source}query_key_value", f"{source}dense", layout=heads_to_qkv("n_head_kv"), bias=bias)


def feed_forward(bias: Condition = True) -> tuple[Role, ...]:
    """Return a plain feed-forward network."""
    return plain(names=("dense_h_to_4h", "dense_4h_to_h"), bias=bias)
