"""OLMo 2 and 3: norms behind attention and feed-forward instead of before them; queries and keys normed over all heads.
OLMo 3 has blocks with a window, which are not stretched.

Source: llama.cpp `src/models/olmo2.cpp`, transformers `modeling_olmo2.py` and `modeling_olmo3.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._olmo2 import base
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_HF = "transformers' default"
_SWA = "rope_parameters.sliding_attention"
WINDOWS = (
    *common.own_window("Olmo2ForCausalLM"), *common.WINDOW_LIST[:2],
    replace(common.WINDOW_LIST[2], defaults=(Default(4, _HF, when="hf_class == 'Olmo3ForCausalLM'", dialect="hf"),)),
    common.WINDOW_LIST[3],
    # Blocks with a window turn by the base alone, which is the other blocks' where the configuration has one set.
    HParam("rope_base_swa", "rope.freq_base_swa", ValueType.FLOAT32, {"hf": f"{_SWA}.rope_theta"},
           derive=base, required=False, check="rope_base_swa > 1"),
    HParam("rope_kind_swa", None, ValueType.STRING, {"hf": f"{_SWA}.rope_type"}, words={"default": "default"},
           required=False),
)
HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, *WINDOWS, common.TIED, *common.BIASES, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.biased_attention(),
        tensors.qk_norm(shapes=tensors.FULL_WIDTH),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        tensors.norm("post_ffw_norm", "post_feedforward_layernorm"),
        tensors.gated(),
    ),
)

# models/olmo2.cpp, `llama_model_olmo2::graph`: blocks with a window turn without scaling, by the base of all.
ONE_BASE = Caveat(
    "n_swa > 0 and rope_base_swa != rope_base",
    "llama.cpp runs this differently: in olmo2 it turns all blocks by one base, {rope_base}; this model turns those "
    "with a window by {rope_base_swa}",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="olmo2", runtimes=("llama.cpp",),
    display_name="OLMo 2",
    hf_classes=("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("olmo2"), common.biased_output("olmo2")),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves", "pre_norm": False, "qk_norm": "full"},
    caveats=(common.heads_as_wide_as_the_model("olmo2"), common.NO_WINDOW, ONE_BASE),
)
