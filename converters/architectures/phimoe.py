"""Phi-3.5-MoE: layer norms and biases throughout; the two experts of SparseMixer in every block.

Sources: llama.cpp `src/models/{phimoe,phi3}.cpp`, `conversion/phi.py`; transformers `modeling_phimoe.py`. llama.cpp
loads such a file and computes something else: root mean squares for layer norms, softmax for SparseMixer.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
_HF = "transformers' default"
# What cosines and sines are multiplied by: within the original context, and beyond it. GGUF has one number for both.
MAGNITUDE = (
    replace(rope.MAGNITUDE, fields={"hf": rope.scaling_place("short_mscale")}),
    HParam("rope_magnitude_beyond", None, F32, {"hf": rope.scaling_place("long_mscale")}, required=False,
           check="rope_magnitude_beyond == rope_magnitude"),
)
ROPE = (
    rope.BASE, rope.N_ROT, rope.LONGROPE_KIND, *(param for param in rope.SCALING if param is not rope.MAGNITUDE),
    *MAGNITUDE, rope.LONG, rope.SHORT,
)
HPARAMS = (
    *common.SIZES, replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)), *ROPE, common.N_SWA,
    replace(common.N_EXPERT, defaults=(Default(16, _HF, dialect="hf"),)),
    replace(common.N_EXPERT_USED, defaults=(Default(2, _HF, dialect="hf"),), check="n_expert_used == 2"),
    HParam("router_jitter", "router_jitter_noise", F32, {"hf": "router_jitter_noise"}, absent=0.01),
    common.TIED, common.ATTENTION_BIAS, HParam("output_bias", None, BOOL, {"hf": "lm_head_bias"}, required=False),
    common.SILU,
)

ROLES = roles(
    tensors.embedding(bias=True, output=""),
    tensors.linear("output", "n_vocab n_embd", "lm_head", when="tied == 0"),
    "output.bias when=output_bias == 1 : n_vocab | hf lm_head.bias",
    rope.LONGROPE_FACTORS,
    block(
        tensors.norm("attn_norm", "input_layernorm", bias=True),
        tensors.attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
        tensors.norm("ffn_norm", "post_attention_layernorm", bias=True),
        tensors.experts(
            "block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3"), width="n_ff"
        ),
    ),
)

WRONG = Caveat(
    "n_layer > 0",
    "llama.cpp runs this differently: in phimoe it computes root mean squares where the model has layer norms, and "
    "weighs experts by softmax instead of SparseMixer",
    unsupported_by="llama.cpp",
)

SHORT_ONLY = Caveat(
    "rope_kind == 'longrope'",
    "beyond {rope_original_stated} tokens positions turn by the long factors, as in the publisher's code and in "
    "llama.cpp; transformers 5 takes the short ones at any length",
    differs_in="transformers",
)

SPEC = Architecture(
    name="phimoe", runtimes=("llama.cpp",),
    display_name="Phi-3.5 MoE",
    hf_classes=("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.WINDOW, SHORT_ONLY),
            ignored_keys=(IgnoredKey("input_jitter_noise", "used in training only"),),
        ),
    ),
    recipe={"norm": "layer", "rope": "halves", "routing": "sparsemixer"},
    caveats=(WRONG,),
)
