"""Dream: Qwen2 that fills in masked tokens. Sources: `_diffusion`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _diffusion as diffusion
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, diffusion.CAUSAL, common.TIED, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.attention(bias=True), tensors.gated())),
)

SPEC = Architecture(
    name="dream", runtimes=("llama.cpp",),
    display_name="Dream",
    hf_classes=("DreamModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                IgnoredKey("use_mrope", "positions are one number each", (False,)),
                diffusion.IGNORED_KEYS,
                *diffusion.NO_WINDOWS,
            ),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(diffusion.MASKED,),
)
