"""How InternLM 2's joint matrix is taken apart. Sources: `internlm2`."""

from ggferry.converters.schema.layouts.base import Layout, Then
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs, heads_to_qkv
from ggferry.converters.schema.layouts.parts import Split

_Q, _K, _V = "n_head*head_dim", "(n_head+n_head_kv)*head_dim", "(n_head+2*n_head_kv)*head_dim"


def _part(start: str | int, stop: str, heads: str = "") -> Layout:
    """Return what takes rows out of the joint matrix, in the order of GGUF's llama where `heads` turn."""
    rows = Then(heads_to_qkv("n_head_kv"), Split(start, stop))
    return Then(rows, heads_halves_to_pairs(heads)) if heads else rows


QUERIES, KEYS, VALUES = _part(0, _Q, "n_head"), _part(_Q, _K, "n_head_kv"), _part(_K, _V)
