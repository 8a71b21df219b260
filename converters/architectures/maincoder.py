"""Maincoder: LLaMA with queries and keys normed head by head after they are turned, in pairs.

Sources: llama.cpp `src/models/maincoder.cpp`; `conversion/maincoder.py`, which moves no row.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, common.ALWAYS_TIED, common.SILU,
    HParam("qk_normed", None, common.BOOL, {"hf": "use_qk_norm"}, words={True: True}, required=False),
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(), tensors.gated())),
)

SPEC = Architecture(
    name="maincoder", runtimes=("llama.cpp",),
    display_name="Maincoder",
    hf_classes=("MaincoderForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED,
                IgnoredKey("intermediate_size_mlp", "repeats intermediate_size", follows="n_ff")),
        ),
    ),
    recipe={"rope": "pairs", "qk_norm_at": "after"},
)
