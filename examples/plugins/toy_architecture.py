"""An architecture of another distribution: Qwen2's graph under names of its own."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

SPEC = Architecture(
    name="toyllama",
    display_name="Toy",
    hf_classes=("ToyForCausalLM",),
    hparams=(*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU),
    roles=roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.attention(bias=True),
            tensors.norm("ffn_norm", "post_attention_layernorm"),
            tensors.gated(),
        ),
    ),
    dialects=(Dialect("hf", drops=common.DROPS),),
    recipe={"rope": "halves"},
    runtimes=(),
)
