"""Talkie 1930: LLaMA with norms that have no weights, also of the embeddings, of which every block adds a share;
queries and keys normed after they are turned, and each branch, each head's queries and the logits times a number.

Sources: llama.cpp `src/models/talkie.cpp`, `conversion/talkie.py`. The publisher turns backwards; with the second half
of each head's queries and keys negated that is what GGUF has.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.values import NegatedHalves
from ggferry.converters.schema.roles import block, roles

F32 = common.F32
GAIN = "lm_head_gain.w_g"
_N_EMBD, _N_LAYER, _N_HEAD = (
    common.also_at(param, place)
    for param, place in ((common.N_EMBD, "n_embd"), (common.N_LAYER, "n_layer"), (common.N_HEAD, "n_head"))
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, _N_EMBD, _N_LAYER, common.N_FF, _N_HEAD,
    replace(common.N_HEAD_KV, fields={}, derive="n_head"), common.HEAD_DIM, common.HEAD_DIM_V,
    replace(common.RMS_EPS, fields={}, defaults=(Default(2**-23, "the least of float32, as torch takes it"),)),
    *rope.ROPE,
    HParam("logit_scale", "logit_scale", F32, tensors=GAIN), common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding("model.embed", "", ""),
    "output.weight : n_vocab n_embd | hf lm_head",
    block(
        tensors.attention(
            "attn.", ("attn_query", "attn_key", "attn_value", "attn_resid"),
            q=NegatedHalves(heads="n_head"), k=NegatedHalves(heads="n_head_kv"),
        ),
        """
        attn_q_norm.weight f32  : n_head 1 | hf attn.head_gain.head_g @column
        attn_output.scale f32 : 1 | hf attn_gain.a_g
        """,
        tensors.gated("mlp.", ("mlp_gate", "mlp_resid", "mlp_linear")),
        """
        ffn_down.scale f32 : 1 | hf mlp_gain.a_g
        layer_output_scale.weight f32 : 1 | hf embed_skip.a_g
        """,
        layer="model.blocks.{n}.",
        column=Reshape(("n_head", 1), of=("n_head",)),
    ),
)

SPEC = Architecture(
    name="talkie", runtimes=("llama.cpp",),
    display_name="Talkie",
    hf_classes=("TalkieForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope_direction": "backward"},
            drops=(*common.DROPS, Drop(GAIN, "a number, which becomes a key", follows=True)),
            caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED, IgnoredKey("num_key_value_heads", "as many as heads", follows="n_head")),
        ),
    ),
    recipe={"rope": "halves", "qk_norm": "gain", "qk_norm_at": "after", "norm_weights": False, "skip": "embedding"},
)
