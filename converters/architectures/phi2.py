"""Phi-1, 1.5 and 2: layer norms with biases, attention and feed-forward side by side, part of each head turned.

Source: llama.cpp `src/models/phi2.cpp`, transformers `modeling_phi.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.LAYER_EPS,
    rope.BASE,
    replace(rope.FRACTION, defaults=(Default(0.5, "transformers' default", dialect="hf"),)),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("qk_layernorm", None, ValueType.BOOL, {"hf": "qk_layernorm"}, words={False: False}, required=False),
    common.TIED, gpt.GELU_TANH,
)

ROLES = roles(
    tensors.embedding(last_norm="model.final_layernorm", bias=True),
    "output.bias : n_vocab | hf lm_head.bias",
    block(
        tensors.norm("attn_norm", "input_layernorm", bias=True),
        tensors.linear("attn_q", "n_head*head_dim n_embd", "self_attn.q_proj", bias=True),
        tensors.linear("attn_k", "n_head_kv*head_dim n_embd", "self_attn.k_proj", bias=True),
        tensors.linear("attn_v", "n_head_kv*head_dim_v n_embd", "self_attn.v_proj", bias=True),
        tensors.linear("attn_output", "n_embd n_head*head_dim_v", "self_attn.dense", bias=True),
        tensors.plain(names=("fc1", "fc2"), bias=True),
    ),
)

TIED = Caveat(
    "tied == 1",
    "the output matrix is the token embedding, with a bias of its own: llama.cpp expects a matrix of its own in phi2",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="phi2", runtimes=("llama.cpp",),
    display_name="Phi-2",
    hf_classes=("PhiForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, gpt.ERF, TIED)),),
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu_tanh", "residual": "parallel"},
)
