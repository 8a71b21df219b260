"""StableLM 2 and 3B: LLaMA with layer norms and a partly turned head; the 12B norms queries and keys with weights of
each head's own and lets both branches read the same norm.

Source: llama.cpp `src/models/stablelm.cpp`, `conversion/stablelm.py`, transformers `modeling_stablelm.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.layouts import SAME, Stack
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL
_HF = "transformers' default"

HPARAMS = (
    *common.SIZES, common.LAYER_EPS,
    rope.BASE,
    replace(rope.FRACTION, defaults=(Default(0.25, _HF, dialect="hf"),)),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("parallel_residual", "use_parallel_residual", BOOL, {"hf": "use_parallel_residual"},
           defaults=(Default(False, _HF),)),
    HParam("qkv_bias", None, BOOL, {"hf": "use_qkv_bias"}, required=False,
           defaults=(Default(False, _HF, dialect="hf"),)),
    HParam("qk_norms", None, BOOL, {"hf": "qk_layernorm"}, required=False,
           defaults=(Default(False, _HF, dialect="hf"),)),
    common.TIED, common.SILU,
)  # fmt: skip

HEAD_NORMS = """
blk.{n}.attn_q_norm.weight f32 FLAG : n_head head_dim    | hf ATTNq_layernorm.norms.{e}.weight @stack
blk.{n}.attn_k_norm.weight f32 FLAG : n_head_kv head_dim | hf ATTNk_layernorm.norms.{e}.weight @stack
""".replace("ATTN", "model.layers.{n}.self_attn.")
BIASES = """
output_norm.bias            : n_embd | hf model.norm.bias
blk.{n}.attn_norm.bias      : n_embd | hf model.layers.{n}.input_layernorm.bias
blk.{n}.ffn_norm.bias FLAG  : n_embd | hf model.layers.{n}.post_attention_layernorm.bias
"""
_SEQUENTIAL = "when=parallel_residual==0"
ROLES = roles(
    common.EMBEDDING
    + BIASES.replace("FLAG", _SEQUENTIAL)
    + common.ATTENTION_NORM
    + common.ATTENTION
    + common.QKV_BIAS.replace("FLAG", "when=qkv_bias==1")
    + HEAD_NORMS.replace("FLAG", "when=qk_norms==1")
    + common.FFN_NORM.replace(" f32 ", f" f32 {_SEQUENTIAL} ")
    + common.GATED.replace("FLAG", ""),
    q=SAME, k=SAME, norm=SAME, stack=Stack(),
)  # fmt: skip

SPEC = Architecture(
    name="stablelm",
    display_name="StableLM",
    hf_classes=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={"hf": Dialect("hf", drops=common.DROPS, remarks=rope.REMARKS), "gguf": Dialect("gguf")},
    recipe={"norm": "layer", "rope": "halves"},
)
