"""What the Gemma generations share: tied embeddings scaled by the root of the width, gelu gates, and norms whose
weights Hugging Face stores as the distance from one.

Source: llama.cpp `conversion/gemma.py`, transformers `modeling_gemma.py` (GemmaRMSNorm).
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.layouts import SAME, Pointwise
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
LAYOUTS = {"q": SAME, "k": SAME, "norm": Pointwise("add_one")}
RECIPE = {"rope": "halves", "activation": "gelu_tanh", "embedding_scale": "sqrt_width"}
CONVENTIONS = {"norm_offset": 1.0}

POST_NORMS = """
blk.{n}.post_attention_norm.weight f32 : n_embd | hf model.layers.{n}.post_attention_layernorm.weight @norm
blk.{n}.ffn_norm.weight f32            : n_embd | hf model.layers.{n}.pre_feedforward_layernorm.weight @norm
blk.{n}.post_ffw_norm.weight f32       : n_embd | hf model.layers.{n}.post_feedforward_layernorm.weight @norm
"""
QUERY_SCALAR = HParam(
    "query_scalar", None, F32, {"hf": "query_pre_attn_scalar"}, required=False,
    defaults=(Default(256, "transformers' default", dialect="hf"),),
)  # fmt: skip
WINDOW_PERIOD = HParam(
    "window_period", None, fields={"hf": "sliding_window_pattern|_sliding_window_pattern"}, required=False
)
# A model that sees what comes later: GGUF has a key for it that llama.cpp's Gemmas do not heed, and no word for windows
# that reach both ways (transformers halves them).
CAUSAL = HParam(
    "bidirectional", None, BOOL, {"hf": "use_bidirectional_attention"}, words={False: False}, required=False
)
SIZES = (*common.SIZES, common.RMS_EPS, common.ALWAYS_TIED, common.GEMMA_GELU, CAUSAL)
DROPS = common.DROPS
REMARKS = rope.REMARKS
