"""MiniCPM 1, 2 and 4: LLaMA with scales on embeddings, residuals and logits.

Sources: `_minicpm3`; llama.cpp `src/models/minicpm.cpp`, `conversion/minicpm.py`; the publisher's
`modeling_minicpm.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _minicpm3 as minicpm3
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

# llama.cpp takes other constants for some of what is not said: all is.
SCALES = tuple(replace(scale, implied="") for scale in minicpm3.SCALES)
HPARAMS = (
    *common.SIZES, common.RMS_EPS, rope.BASE, rope.N_ROT, rope.LONGROPE_KIND, *rope.SCALING, rope.LONG, rope.SHORT,
    *SCALES, common.ALWAYS_TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.LONGROPE_FACTORS,
    block(tensors.pre_norm(tensors.paired_attention(), tensors.gated())),
)

SPEC = Architecture(
    name="minicpm", runtimes=("llama.cpp",),
    display_name="MiniCPM",
    hf_classes=("MiniCPMForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED, IgnoredKey("num_experts", "there are none", (0,))),
        ),
    ),
    recipe={"rope": "pairs", "logit_scale": "divide"},
)
