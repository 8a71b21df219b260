"""AFM-4.5B (Arcee): LLaMA whose feed-forward has no gate, down(relu(up)²).

Source: llama.cpp `src/models/arcee.cpp`, transformers `modeling_arcee.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.LLAMA3_ROPE, common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS,
    common.RELU_SQUARED,
)

ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.pre_norm(
            tensors.paired_attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
            tensors.plain(bias="mlp_bias == 1"),
        ),
    ),
)

BIASED = Caveat(
    "attention_bias == 1 or mlp_bias == 1", "llama.cpp does not load this model: it has no biases in arcee",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="arcee", runtimes=("llama.cpp",),
    display_name="Arcee",
    hf_classes=("ArceeForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", conventions={"rope": "halves"}, drops=common.DROPS, caveats=(*rope.CAVEATS, BIASED)),
    ),
    recipe={"rope": "pairs", "ffn": "plain", "activation": "relu_squared"},
)
