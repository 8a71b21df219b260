"""Hparams and roles of Gemma 3, which EmbeddingGemma shares. Sources: `gemma3`."""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

_HF = "transformers' default, which published configurations leave out"

HPARAMS = (
    common.N_VOCAB,
    replace(common.N_CTX, defaults=(Default(131072, _HF, dialect="hf"),)),
    common.N_EMBD, common.N_LAYER, common.N_FF,
    replace(common.N_HEAD, defaults=(Default(8, _HF, dialect="hf"),)),
    replace(common.N_HEAD_KV, defaults=(Default(4, _HF, dialect="hf"),)),
    common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, common.ALWAYS_TIED, common.GEMMA_GELU,
    common.GEMMA_ERF, *common.BIASES,
    gemma.CAUSAL,
    replace(rope.BASE, defaults=(Default(1e6, _HF, dialect="hf"), *rope.BASE.defaults)),
    HParam(
        "rope_base_swa", "rope.freq_base_swa", gemma.F32,
        {"hf": "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq"},
        defaults=(Default(10000.0, "transformers' and llama.cpp's default"),), check="rope_base_swa > 1",
    ),
    # Blocks with a window are never stretched: GGUF has no key for it.
    HParam("rope_kind_swa", None, common.STRING, {"hf": "rope_parameters.sliding_attention.rope_type"},
           words={"default": "default"}, required=False),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, absent=0, null=0, unrepresentable=0,
           defaults=(Default(4096, _HF, dialect="hf"),)),
    gemma.WINDOW_PERIOD, common.LAYER_WINDOWS, common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", gemma.BOOL, derive="@window_layers",
           implied="each (n + 1) % 6 != 0", length="n_layer", required=False),
    HParam("final_softcap", "final_logit_softcapping", gemma.F32, {"hf": "final_logit_softcapping"}, absent=0.0,
           unrepresentable=0.0),
    HParam("attn_softcap", None, gemma.F32, {"hf": "attn_logit_softcapping"}, absent=0.0, check="attn_softcap == 0",
           unrepresentable=0.0),
    gemma.QUERY_SCALAR,
    HParam("attn_scale", "attention.scale", gemma.F32, derive=gemma.query_scale, implied=gemma.gemma3_scale),
)

ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        tensors.biased_attention(),
        tensors.qk_norm(layout=ADD_ONE),
        gemma.post_norms(),
        tensors.gated(),
    ),
)
