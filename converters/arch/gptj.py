"""GPT-J: attention and feed-forward side by side behind one norm, the first dimensions of each head turned in pairs.

Source: gguf-spec.md "GPT-J" for the keys, gguf-py's table for the names, transformers `modeling_gptj.py` for the graph.
llama.cpp knows the name and has no graph.
"""

from ggferry.converters.arch import _common as common
from ggferry.converters.arch import _gpt as gpt
from ggferry.converters.arch import _rope as rope
from ggferry.converters.layout import SAME
from ggferry.converters.spec import Architecture, Dialect, HParam, roles

HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV,
    HParam("n_rot", "rope.dimension_count", fields={"hf": "rotary_dim", "ggml": "n_rot"},
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot <= head_dim"),
    rope.BASE, common.TIED, gpt.GELU_TANH,
)  # fmt: skip

ROLES = roles(
    gpt.EMBEDDING
    + """
    output.bias when=tied==0    : n_vocab                    | hf lm_head.bias
    """
    + gpt.ATTENTION_NORM
    + """
    blk.{n}.attn_q.weight       : n_head*head_dim n_embd     | hf transformer.h.{n}.attn.q_proj.weight
    blk.{n}.attn_k.weight       : n_head_kv*head_dim n_embd  | hf transformer.h.{n}.attn.k_proj.weight
    blk.{n}.attn_v.weight       : n_head_kv*head_dim n_embd  | hf transformer.h.{n}.attn.v_proj.weight
    blk.{n}.attn_output.weight  : n_embd n_head*head_dim     | hf transformer.h.{n}.attn.out_proj.weight
    blk.{n}.ffn_up.weight       : n_ff n_embd                | hf transformer.h.{n}.mlp.fc_in.weight
    blk.{n}.ffn_up.bias         : n_ff                       | hf transformer.h.{n}.mlp.fc_in.bias
    blk.{n}.ffn_down.weight     : n_embd n_ff                | hf transformer.h.{n}.mlp.fc_out.weight
    blk.{n}.ffn_down.bias       : n_embd                     | hf transformer.h.{n}.mlp.fc_out.bias
    """,
    linear=SAME,
)

SPEC = Architecture(
    name="gptj",
    display_name="GPT-J",
    hf_classes=("GPTJForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={"hf": Dialect("hf", drops=gpt.DROPS), "gguf": Dialect("gguf")},
    recipe={**gpt.RECIPE, "rope": "pairs", "qkv": "separate", "residual": "parallel"},
    runtimes=(),
)
