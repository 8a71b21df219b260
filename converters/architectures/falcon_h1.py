"""Falcon-H1: in every block attention and Mamba-2 side by side, then a feed-forward network.

Source: llama.cpp `src/models/falcon-h1.cpp`; `_falcon_h1` has the multipliers. The norm before the feed-forward is
called `ffn_norm`, without '.weight'. A tied output is written as a tensor of its own: its multiplier is another.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _falcon_h1 as falcon
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *hybrid.MAMBA2, *falcon.SCALES,
    HParam("ssm_normed", None, BOOL, {"hf": "mamba_rms_norm"}, required=False),
    HParam("norm_first", None, BOOL, {"hf": "mamba_norm_before_gate"}, required=False,
           check="ssm_normed == 0 or norm_first == 0"),
    HParam("output_bias", None, BOOL, {"hf": "projectors_bias"}, words={False: False}, required=False),
    HParam("tied_stated", None, BOOL, {"hf": "tie_word_embeddings"}, required=False),
    common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)

MATRICES = """
attn_q.weight      : n_head*head_dim n_embd      | hf self_attn.q_proj.weight @seen
attn_k.weight      : n_head_kv*head_dim n_embd   | hf self_attn.k_proj.weight @keys
attn_v.weight      : n_head_kv*head_dim_v n_embd | hf self_attn.v_proj.weight @seen
attn_output.weight : n_embd n_head*head_dim_v    | hf self_attn.o_proj.weight @output
ffn_norm f32       : n_embd                      | hf pre_ff_layernorm.weight
ffn_gate.weight    : n_ff n_embd                 | hf feed_forward.gate_proj.weight @gate
ffn_down.weight    : n_embd n_ff                 | hf feed_forward.down_proj.weight @down
ffn_up.weight      : n_ff n_embd                 | hf feed_forward.up_proj.weight
"""
BIASES = """
attn_q.bias      : n_head*head_dim      | hf self_attn.q_proj.bias
attn_k.bias      : n_head_kv*head_dim   | hf self_attn.k_proj.bias @keys
attn_v.bias      : n_head_kv*head_dim_v | hf self_attn.v_proj.bias
attn_output.bias : n_embd               | hf self_attn.o_proj.bias @output
"""
FEEDING_BIASES = """
ffn_gate.bias : n_ff   | hf feed_forward.gate_proj.bias @gate
ffn_down.bias : n_embd | hf feed_forward.down_proj.bias @down
ffn_up.bias   : n_ff   | hf feed_forward.up_proj.bias
"""
FRAME = """
token_embd.weight      : n_vocab n_embd | hf model.embed_tokens.weight @embedding
output_norm.weight f32 : n_embd         | hf model.final_layernorm.weight
output.weight          : n_vocab n_embd | hf lm_head.weight @head
"""
ROLES = roles(
    roles(FRAME, embedding=falcon.EMBEDDING, head=falcon.HEAD),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        hybrid.mamba2(enters=falcon.ENTERS, leaves=falcon.LEAVES, normed="ssm_normed == 1"),
        roles(MATRICES, seen=falcon.SEEN, keys=falcon.KEYS, output=falcon.OUTPUT, gate=falcon.GATE, down=falcon.DOWN),
        roles(BIASES, when="attention_bias == 1", keys=falcon.KEY_BIASES, output=falcon.OUTPUT),
        roles(FEEDING_BIASES, when="mlp_bias == 1", gate=falcon.GATE, down=falcon.DOWN),
    ),
)

UNADDED = Caveat(
    "attention_bias == 1",
    "llama.cpp runs this differently: it loads the biases of attention's outputs, and does not add them",
    unsupported_by="llama.cpp",
)

HF = Dialect(
    "hf", conventions={"decay": "log"}, drops=(common.DROP_BUFFERS,), caveats=rope.CAVEATS,
    ignored_keys=(common.UNBIASED, *hybrid.MAMBA_IGNORED_KEYS),
)

SPEC = Architecture(
    name="falcon-h1", runtimes=("llama.cpp",),
    display_name="Falcon-H1",
    hf_classes=("FalconH1ForCausalLM",),
    hparams=HPARAMS,
    roles=varied(ROLES, "tied", "hf", "output.weight model.embed_tokens.weight @head", head=falcon.HEAD),
    dialects=(
        HF,
        replace(HF, name="tied", fields="hf", classes=("FalconH1ForCausalLM",), forbidden_tensors=("lm_head.weight",)),
    ),
    recipe={"rope": "halves", "decay": "rate"},
    caveats=(UNADDED,),
)
