"""InternLM 2: LLaMA, whose queries, keys and values lie in one matrix, group by group.

Sources: llama.cpp `src/models/internlm2.cpp`, `conversion/internlm.py`; the publisher's `modeling_internlm2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless
from ggferry.converters.schema.layouts import Layout, Split, Then, heads_halves_to_pairs, heads_to_qkv
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU)

_QUERIES, _KEYS, _VALUES = "n_head*head_dim", "(n_head+n_head_kv)*head_dim", "(n_head+2*n_head_kv)*head_dim"


def part(start: str | int, stop: str, heads: str = "") -> Layout:
    """Return what takes rows out of the joint matrix, in the order of GGUF's llama where `heads` turn."""
    rows = Then(heads_to_qkv("n_head_kv"), Split(start, stop))
    return Then(rows, heads_halves_to_pairs(heads)) if heads else rows


ROLES = roles(
    tensors.embedding("model.tok_embeddings", output="output"),
    block(
        norm("attn_norm", "attention_norm"),
        linear("attn_q", "n_head*head_dim n_embd", "attention.wqkv", part(0, _QUERIES, "n_head")),
        linear("attn_k", "n_head_kv*head_dim n_embd", "attention.wqkv", part(_QUERIES, _KEYS, "n_head_kv")),
        linear("attn_v", "n_head_kv*head_dim n_embd", "attention.wqkv", part(_KEYS, _VALUES)),
        linear("attn_output", "n_embd n_head*head_dim", "attention.wo"),
        norm("ffn_norm", "ffn_norm"),
        tensors.gated("feed_forward.", ("w1", "w2", "w3")),
    ),
)

SPEC = Architecture(
    name="internlm2",
    display_name="InternLM 2",
    hf_classes=("InternLM2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf",
            conventions={"rope": "halves", "qkv": "grouped"},
            drops=common.DROPS,
            remarks=(*rope.REMARKS, common.own_output("internlm2"), common.square("internlm2")),
            harmless=(common.UNBIASED, Harmless("bias", "there is none", (False,))),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "pairs"},
)
