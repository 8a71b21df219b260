"""XVERSE: LLaMA.

Sources: llama.cpp `src/models/xverse.cpp`, `conversion/xverse.py`, which turns the rows of keys as if there were
n_head / n_head_kv heads of them; the publisher's `modeling_xverse.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

# The first models say of no heads of keys that they are fewer.
N_HEAD_KV = replace(common.N_HEAD_KV, derive="n_head")
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, N_HEAD_KV, common.HEAD_DIM,
    common.HEAD_DIM_V, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.paired_attention(), tensors.gated())),
)

SPEC = Architecture(
    name="xverse", runtimes=("llama.cpp",),
    display_name="XVERSE",
    hf_classes=("XverseForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("xverse"), common.heads_as_wide_as_the_model("xverse")),
            ignored_keys=(common.UNBIASED,
                IgnoredKey("max_tokenizer_truncation", "how long a text it is given at most")),
        ),
    ),
    recipe={"rope": "pairs"},
)
