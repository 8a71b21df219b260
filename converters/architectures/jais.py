"""Jais (1): GPT-2 that measures distances instead of positions (ALiBi), with a gated feed-forward network. The output
is a matrix of its own, for its scale is not the embedding's.

Sources: `_jais`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _jais as jais
from ggferry.converters.architectures._tensors import linear
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.converters.schema.roles import block, roles, varied

HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV, *jais.SCALES,
    HParam("max_alibi", "attention.max_alibi_bias", gpt.F32, required=False,
           defaults=(Default(8.0, "the publisher's slopes", dialect="hf"),)),
    HParam("activation", None, gpt.STRING, {"hf": "activation_function"}, words={"swiglu": "silu"}, required=False),
    HParam("places", None, gpt.STRING, {"hf": "position_embedding_type"}, words={"alibi": "alibi"}, required=False),
    HParam("stretched", None, gpt.STRING, {"hf": "alibi_scaling"}, words={None: None}, required=False),
    HParam("scaled", None, gpt.BOOL, {"hf": "scale_attn_weights"}, words={True: True}, required=False),
    HParam("by_layer", None, gpt.BOOL, {"hf": "scale_attn_by_inverse_layer_idx"}, words=gpt.FALSE, required=False),
    HParam("crossed", None, gpt.BOOL, {"hf": "add_cross_attention"}, words=gpt.FALSE, required=False),
    HParam("tied_stated", None, gpt.BOOL, {"hf": "tie_word_embeddings"}, required=False),
)

FRAME = """
token_embd.weight      : n_vocab n_embd | hf transformer.wte.weight @embedding
output_norm.weight f32 : n_embd         | hf transformer.ln_f.weight
output_norm.bias       : n_embd         | hf transformer.ln_f.bias
output.weight          : n_vocab n_embd | hf lm_head.weight @head
"""
ROLES = roles(
    roles(FRAME, embedding=jais.EMBEDDING, head=jais.HEAD),
    block(
        gpt.attention_norm(), gpt.attention(Transpose(), SAME, Transpose()),
        gpt.feed_forward(Transpose()),
        linear("ffn_gate", "n_ff n_embd", "mlp.c_fc2", Transpose(), bias=True, bias_layout=SAME),
        layer=gpt.LAYER,
    ),
)

BY_ROOT = Caveat(
    "by_width == 0",
    "llama.cpp runs this differently: it divides scores by the width of a head, and this model by its root",
    unsupported_by="llama.cpp",
)

HF = Dialect(
    "hf",
    conventions={"transposed": ("attn_qkv", "attn_output", "ffn_up", "ffn_gate", "ffn_down")},
    drops=(
        *gpt.DROP_MASKS,
        Drop("*relative_pe.slopes", "a buffer: slopes follow from the number of heads", follows=True),
    ),
    caveats=(BY_ROOT,),
    ignored_keys=(gpt.UPCAST,),
)

SPEC = Architecture(
    name="jais", runtimes=("llama.cpp",),
    display_name="Jais",
    hf_classes=("JAISLMHeadModel",),
    hparams=HPARAMS,
    roles=varied(ROLES, "tied", "hf", "output.weight transformer.wte.weight @head", head=jais.HEAD),
    dialects=(
        HF,
        replace(HF, name="tied", fields="hf", classes=("JAISLMHeadModel",), forbidden_tensors=("lm_head.weight",)),
    ),
    recipe={"norm": "layer", "rope": "none", "qkv": "fused", "ffn": "gated", "activation": "silu"},
)
