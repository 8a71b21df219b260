"""Command R7B, Command A, Aya Expanse's kin (Cohere 2): one layer norm without bias before both branches; blocks with a
window turn queries and keys, those without do not.

Source: llama.cpp `src/models/cohere2.cpp`, `conversion/command_r.py`, transformers `modeling_cohere2.py`. Rotary pairs
lie side by side on both sides: nothing is permuted.
"""

from dataclasses import replace

from ggferry.converters.architectures import _cohere2 as cohere
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.block_patterns import rotated_where_windowed, window_layers
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.LAYER_EPS, *rope.ROPE, cohere.WHOLE, cohere.LOGIT_SCALE,
    replace(common.N_SWA, absent=None), common.LAYER_WINDOWS, common.WINDOW_PERIOD,
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", common.BOOL, derive=window_layers,
           implied="each (n + 1) % 4 != 0", length="n_layer"),
    HParam("rope_layers", None, common.BOOL, derive=rotated_where_windowed, length="n_layer", required=False),
    common.ALWAYS_TIED, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.biased_attention(),
        tensors.gated(),
    ),
)

UNSCALED = Caveat(
    "logit_scale != 1",
    "transformers' class of the whole model leaves its logits as they are; this file states logit_scale={logit_scale}, "
    "as the configuration does, and runtimes multiply by it: which word is likelier than which stays",
    differs_in="transformers",
)
HF = Dialect(
    "hf",
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, common.biased_output("cohere2"), common.NO_WINDOW, common.UNTIED),
    ignored_keys=cohere.IGNORED_KEYS,
)

SPEC = Architecture(
    name="cohere2", runtimes=("llama.cpp",),
    display_name="Command R7B",
    hf_classes=("Cohere2ForCausalLM", "Cohere2VisionForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(replace(HF, caveats=(*HF.caveats, UNSCALED)), "cohere2"),
    ),
    recipe={"norm": "layer", "residual": "parallel"},
)
SPEC = half.with_base(SPEC, "Cohere2Model")
