"""Phi-1, 1.5 and 2: layer norms with biases, attention and feed-forward side by side, part of each head turned.

Source: llama.cpp `src/models/phi2.cpp`, transformers `modeling_phi.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, Remark
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.LAYER_EPS,
    rope.BASE,
    replace(rope.FRACTION, defaults=(Default(0.5, "transformers' default", dialect="hf"),)),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("qk_layernorm", None, ValueType.BOOL, {"hf": "qk_layernorm"}, words={False: False}, required=False),
    common.TIED, common.GELU_TANH,
)  # fmt: skip

ROLES = roles(
    """
    token_embd.weight            : n_vocab n_embd              | hf model.embed_tokens.weight
    output_norm.weight f32       : n_embd                      | hf model.final_layernorm.weight
    output_norm.bias             : n_embd                      | hf model.final_layernorm.bias
    output.weight when=tied==0   : n_vocab n_embd              | hf lm_head.weight
    output.bias                  : n_vocab                     | hf lm_head.bias
    blk.{n}.attn_norm.weight f32 : n_embd                      | hf model.layers.{n}.input_layernorm.weight
    blk.{n}.attn_norm.bias       : n_embd                      | hf model.layers.{n}.input_layernorm.bias
    blk.{n}.attn_q.weight        : n_head*head_dim n_embd      | hf model.layers.{n}.self_attn.q_proj.weight
    blk.{n}.attn_q.bias          : n_head*head_dim             | hf model.layers.{n}.self_attn.q_proj.bias
    blk.{n}.attn_k.weight        : n_head_kv*head_dim n_embd   | hf model.layers.{n}.self_attn.k_proj.weight
    blk.{n}.attn_k.bias          : n_head_kv*head_dim          | hf model.layers.{n}.self_attn.k_proj.bias
    blk.{n}.attn_v.weight        : n_head_kv*head_dim_v n_embd | hf model.layers.{n}.self_attn.v_proj.weight
    blk.{n}.attn_v.bias          : n_head_kv*head_dim_v        | hf model.layers.{n}.self_attn.v_proj.bias
    blk.{n}.attn_output.weight   : n_embd n_head*head_dim_v    | hf model.layers.{n}.self_attn.dense.weight
    blk.{n}.attn_output.bias     : n_embd                      | hf model.layers.{n}.self_attn.dense.bias
    blk.{n}.ffn_up.weight        : n_ff n_embd                 | hf model.layers.{n}.mlp.fc1.weight
    blk.{n}.ffn_up.bias          : n_ff                        | hf model.layers.{n}.mlp.fc1.bias
    blk.{n}.ffn_down.weight      : n_embd n_ff                 | hf model.layers.{n}.mlp.fc2.weight
    blk.{n}.ffn_down.bias        : n_embd                      | hf model.layers.{n}.mlp.fc2.bias
    """,
)  # fmt: skip

TIED = Remark(
    "tied == 1",
    "the output matrix is the token embedding, with a bias of its own: llama.cpp expects a matrix of its own in phi2",
    stops="llama.cpp",
)

SPEC = Architecture(
    name="phi2",
    display_name="Phi-2",
    hf_classes=("PhiForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={"hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, TIED)), "gguf": Dialect("gguf")},
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu_tanh", "residual": "parallel"},
)
