"""LLaMA that sees what follows, for embeddings (NVIDIA's llama-embed-nemotron).

Sources: llama.cpp `src/models/llama-embed.cpp`, `conversion/llama.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.WHOLE_ROPE_WITH_FACTORS, encoder.BOTH_SIDES, *embeddings.POOLING, common.SILU,
    common.ATTENTION_BIAS,
)

ROLES = roles(
    tensors.embedding(output=""),
    rope.FACTORS,
    block(
        tensors.pre_norm(
            tensors.paired_attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
            tensors.gated(),
        ),
    ),
)

SPEC = Architecture(
    name="llama-embed", runtimes=("llama.cpp",),
    display_name="LLaMA for embeddings",
    hf_classes=("LlamaBidirectionalModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=(common.DROP_BUFFERS,),
            fixed={"causal": False},
            renames=half.BARE,
            caveats=rope.CAVEATS,
            ignored_keys=(
                embeddings.IGNORED_KEYS,
                IgnoredKey("tie_word_embeddings", "there is no output"),
                IgnoredKey("mlp_bias", "there is none", (False,)),
            ),
        ),
    ),
    recipe={"rope": "pairs", "rows": "states"},
)
