"""Multi-head latent attention (DeepSeek-V2 and what came of it): keys and values expanded from one low rank.

GGUF splits the expansion into a transposed matrix a head for keys and one for values, so that a runtime can absorb the
former (llama.cpp `conversion/deepseek.py`).
"""

from ggferry.converters.architectures._tensors import linear, norm, tensor
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.base import SAME, Layout, Then
from ggferry.converters.schema.layouts.order import TailPairs
from ggferry.converters.schema.layouts.parts import Pick, Transpose
from ggferry.converters.schema.roles import both

_PLAIN = "head_dim_mla - n_rot"
KEYS = Then(Pick("n_head", 0, _PLAIN), Transpose())
VALUES = Pick("n_head", _PLAIN, f"{_PLAIN} + head_dim_v_mla")


def latent_attention(
    source: str = "self_attn.", when: str = "", joint: bool = False, *, q_norm: Layout = SAME, kv_norm: Layout = SAME,
    halves: str = "",
) -> tuple[Role, ...]:
    """Return the matrices of latent attention; queries come through a low rank of their own where `q_rank` is not 0.

    `q_norm`, `kv_norm`: layouts of the low ranks' norms. `halves` names the hparam that is 1 where a checkpoint has the
    rotated rows in halves; GGUF has pairs. Sizes it reads: n_head, head_dim_mla (of queries and keys),
    head_dim_v_mla, n_rot, kv_rank, q_rank.
    """
    whole, low = both("q_rank == 0", when), both("q_rank > 0", when)
    queries = TailPairs("n_head", _PLAIN, halves) if halves else SAME
    key = TailPairs(1, "kv_rank", halves) if halves else SAME
    return (
        *linear("attn_q", "n_head*head_dim_mla n_embd", f"{source}q_proj", queries, when=whole),
        *linear("attn_q_a", "q_rank n_embd", f"{source}q_a_proj", when=low),
        *norm("attn_q_a_norm", f"{source}q_a_layernorm", width="q_rank", layout=q_norm, when=low),
        *linear("attn_q_b", "n_head*head_dim_mla q_rank", f"{source}q_b_proj", queries, when=low),
        *low_rank(source, when, joint, kv_norm, key),
        *linear("attn_output", "n_embd n_head*head_dim_v_mla", f"{source}o_proj", when=when),
    )


def low_rank(
    source: str = "self_attn.", when: str = "", joint: bool = False, layout: Layout = SAME, key: Layout = SAME
) -> tuple[Role, ...]:
    """Return the low rank of keys and values, its norm and its expansion. `joint`: GGUF keeps the expansion whole;
    `layout`: of the norm; `key`: of the matrix that makes the low rank and the rotated key."""
    kv_b = f"{source}kv_b_proj.weight"
    whole = tensor("attn_kv_b.weight", "n_head*(head_dim_mla-n_rot+head_dim_v_mla) kv_rank", kv_b, when=when)
    return (
        *linear("attn_kv_a_mqa", "kv_rank+n_rot n_embd", f"{source}kv_a_proj_with_mqa", key, when=when),
        *norm("attn_kv_a_norm", f"{source}kv_a_layernorm", width="kv_rank", layout=layout, when=when),
        *((whole,) if joint else split_expansion(kv_b, when)),
    )


def split_expansion(source: str, when: str = "") -> tuple[Role, ...]:
    """Return the two halves of the expansion of that name."""
    return (
        tensor("attn_k_b.weight", "n_head kv_rank head_dim_mla-n_rot", source, KEYS, when=when),
        tensor("attn_v_b.weight", "n_head head_dim_v_mla kv_rank", source, VALUES, when=when),
    )
