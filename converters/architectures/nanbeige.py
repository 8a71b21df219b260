"""Nanbeige 4.2: LLaMA whose blocks are run through several times, with the last norm between two runs.

Sources: llama.cpp `src/models/nanbeige.cpp`, `conversion/nanbeige.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.LLAMA3_ROPE,
    HParam("n_loops", "num_loops", fields={"hf": "num_loops"}, null=1,
           check="0 < n_loops and n_loops * n_layer <= 1024",
           defaults=(Default(1, "the blocks are run through once"),)),
    HParam("plain_loops", "skip_loop_final_norm", common.BOOL, {"hf": "skip_loop_final_norm"},
           defaults=(Default(False, "the publisher's default"),)),
    common.TIED, common.SILU,
)

SPEC = Architecture(
    name="nanbeige", runtimes=("llama.cpp",),
    display_name="Nanbeige",
    hf_classes=("NanbeigeForCausalLM",),
    hparams=HPARAMS,
    roles=roles(
        tensors.embedding(),
        rope.LLAMA3_FREQUENCIES,
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.paired_attention(),
            tensors.norm("ffn_norm", "post_attention_layernorm"),
            tensors.gated(),
        ),
    ),
    dialects=(
        Dialect(
            "hf", conventions={"rope": "halves"}, drops=common.DROPS, caveats=rope.CAVEATS,
            ignored_keys=(common.UNBIASED,)
        ),
    ),
    recipe={"rope": "pairs"},
)
