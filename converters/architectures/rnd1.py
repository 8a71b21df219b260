"""RND1: Qwen3-MoE that fills in masked tokens. Sources: `_diffusion`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _diffusion as diffusion
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    *common.ALL_SPARSE, diffusion.CAUSAL, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(), tensors.experts())),
)

SPEC = Architecture(
    name="rnd1", runtimes=("llama.cpp",),
    display_name="RND1",
    hf_classes=("RND1",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                common.UNBIASED,
                # The only one that llama.cpp's graph does.
                IgnoredKey("norm_topk_prob", "the weights of the chosen experts sum to one", (True,)),
                diffusion.IGNORED_KEYS,
                *diffusion.NO_WINDOWS,
            ),
        ),
    ),
    recipe={"rope": "halves", "expert_norm": True},
    caveats=(diffusion.MASKED,),
)
