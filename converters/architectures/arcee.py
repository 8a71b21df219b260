"""AFM-4.5B (Arcee): LLaMA whose feed-forward has no gate, down(relu(up)²).

Source: llama.cpp `src/models/arcee.cpp`, transformers `modeling_arcee.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.LLAMA3_ROPE, common.TIED, *common.BIASES, common.UNLOADED_MLP_BIAS,
    common.RELU_SQUARED,
)

ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.pre_norm(
            tensors.paired_attention(bias=tensors.BIASED, output_bias=tensors.BIASED_OUTPUT),
            tensors.plain(bias="mlp_bias == 1"),
        ),
    ),
)

SPEC = Architecture(
    name="arcee", runtimes=("llama.cpp",),
    display_name="Arcee",
    hf_classes=("ArceeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", conventions={"rope": "halves"}, drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.few_biases("arcee")),
        ),
    ),
    recipe={"rope": "pairs", "ffn": "plain", "activation": "relu_squared"},
)
SPEC = half.with_base(SPEC, "ArceeModel")
