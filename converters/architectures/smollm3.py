"""SmolLM3: LLaMA whose every fourth block turns neither queries nor keys.

Source: llama.cpp `src/models/smollm3.cpp`, transformers `modeling_smollm3.py`. Which blocks turn them is a constant of
llama.cpp; GGUF has a key for it, which this graph does not read.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._smollm3 import windows
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.block_patterns import rotated_as_listed, rotated_unlike_every_fourth
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ROTATED = (
    HParam("rope_stated", None, ValueType.BOOL, {"hf": "no_rope_layers"}, words={1: True, 0: False}, length="n_layer",
           required=False),
    HParam("rope_period", None, fields={"hf": "no_rope_layer_interval"}, required=False, check="0 < rope_period"),
    HParam("rope_layers", "attention.rope_pattern", ValueType.BOOL, derive=rotated_as_listed,
           implied="each (n + 1) % 4 != 0", length="n_layer"),
    HParam("rope_odd", None, derive=rotated_unlike_every_fourth),
)

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *ROTATED, *common.QWEN_WINDOWS[:-1],
    replace(common.QWEN_WINDOWS[-1], derive=windows), common.TIED,
    *common.BIASES, common.UNLOADED_MLP_BIAS, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.pre_norm(
            tensors.paired_attention(bias=tensors.BIASED, output_bias=tensors.BIASED_OUTPUT),
            tensors.gated(bias="mlp_bias == 1"),
        ),
    ),
)

ODD = Caveat(
    "rope_odd > 0",
    "llama.cpp runs this differently: it turns queries and keys in all blocks but every fourth, which {rope_odd} "
    "blocks of this model contradict",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="smollm3", runtimes=("llama.cpp",),
    display_name="SmolLM3",
    hf_classes=("SmolLM3ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", conventions={"rope": "halves"}, drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.WINDOW, common.few_biases("smollm3")),
        ),
    ),
    recipe={"rope": "pairs"},
    caveats=(ODD,),
)
SPEC = half.with_base(SPEC, "SmolLM3Model")
