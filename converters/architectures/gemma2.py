"""Gemma 2: norms after both branches, capped scores and logits, a sliding window in every other block.

Source: llama.cpp `src/models/gemma2.cpp` (whose defaults are what an absent key means), transformers
`modeling_gemma2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *gemma.SIZES, common.GEMMA_ERF, *rope.ROPE, *common.BIASES, *embeddings.DECODER_POOLING,
    HParam("attn_softcap", "attn_logit_softcapping", gemma.F32, {"hf": "attn_logit_softcapping"}, null=0.0,
           unrepresentable=0.0, defaults=(Default(50.0, "transformers' and llama.cpp's default"),)),
    HParam("final_softcap", "final_logit_softcapping", gemma.F32, {"hf": "final_logit_softcapping"}, null=0.0,
           unrepresentable=0.0, defaults=(Default(30.0, "transformers' and llama.cpp's default"),)),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, null=0, unrepresentable=0,
           defaults=(Default(4096, "transformers' and llama.cpp's default"),)),
    common.LAYER_WINDOWS,
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", gemma.BOOL, derive="@window_layers",
           implied="each n % 2 == 0", length="n_layer", required=False),
    gemma.QUERY_SCALAR,
    HParam("attn_scale", "attention.scale", gemma.F32, derive=gemma.query_scale, implied=gemma.gemma2_scale),
)

ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        tensors.biased_attention(),
        gemma.post_norms(),
        tensors.gated(),
    ),
)

CAVEATS = (
    common.NO_WINDOW,
    Caveat(
        "attn_softcap == 0 or final_softcap == 0",
        "a cap on scores or logits is switched off: written as 0, which llama.cpp does not take for 'none' in gemma2",
        differs_in="llama.cpp",
    ),
    common.UNTIED,
    common.biased_output("gemma2"),
    gemma.scaled_differently(46),
    Caveat(
        "n_swa == 0",
        "the sliding window is switched off: written as 0; llama.cpp expects a window in gemma2",
        differs_in="llama.cpp",
    ),
)

_HF = Dialect(
    "hf",
    conventions=gemma.CONVENTIONS,
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, *CAVEATS, common.ERF),
    ignored_keys=(common.UNBIASED,),
)

SPEC = Architecture(
    name="gemma2", runtimes=("llama.cpp",),
    display_name="Gemma 2",
    hf_classes=("Gemma2ForCausalLM", "Gemma2Model", "MERaLiON2ForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        _HF,
        *half.of(_HF, "gemma2"),
        *half.headless(_HF, "Gemma2Model"),
    ),
    recipe=gemma.RECIPE,
)
