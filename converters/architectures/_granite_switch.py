"""Granite Switch's adapters: two low matrices beside each of a block's, for every adapter."""

from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import BehindZeros
from ggferry.converters.schema.roles import roles

_QKV, _GATED = "self_attn.qkv_proj.lora_{}_slices", "shared_mlp.input_linear.lora_{}_slices"
_MATRICES: tuple[tuple[str, str, str, str, Layout], ...] = (
    ("attn_q", f"{_QKV}.0", "n_embd", "n_head*head_dim", heads_halves_to_pairs("n_head")),
    ("attn_k", f"{_QKV}.1", "n_embd", "n_head_kv*head_dim", heads_halves_to_pairs("n_head_kv")),
    ("attn_v", f"{_QKV}.2", "n_embd", "n_head_kv*head_dim", SAME),
    ("attn_output", "self_attn.o_proj.lora_{}", "n_head*head_dim", "n_embd", SAME),
    ("ffn_gate", f"{_GATED}.0", "n_embd", "n_ff", SAME),
    ("ffn_up", f"{_GATED}.1", "n_embd", "n_ff", SAME),
    ("ffn_down", "shared_mlp.output_linear.lora_{}", "n_ff", "n_embd", SAME),
)
"""GGUF's name; that of a checkpoint, whose first matrix is A and whose second is B; columns, rows, the order of B's
rows."""


def adapters() -> tuple[Role, ...]:
    """Return both matrices of every adapter, stacked. B is scaled already, and rows are those of the matrix."""
    lines: list[Role] = []
    for name, source, columns, rows, order in _MATRICES:
        lines += roles(
            f"""
            {name}.lora_a : n_adapters+1 rank {columns} | hf {source.format("A")} @first
            {name}.lora_b : n_adapters+1 {rows} rank    | hf {source.format("B")} @second
            """,
            first=BehindZeros(), second=BehindZeros(order),
        )
    return tuple(lines)


def tokens_are_known(values: Values) -> bool:
    """Return whether all tokens that switch, or stand in their place, are in the vocabulary, and each switches once."""
    switching, count = values["adapter_tokens"], values["n_vocab"]
    known = all(0 <= token < count for token in (*switching, *values["adapter_substitutes"]))
    return known and len(set(switching)) == len(switching)
