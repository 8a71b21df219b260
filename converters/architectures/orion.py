"""Orion: LLaMA with layer norms and biases of theirs; rows stay in Hugging Face's order.

Sources: llama.cpp `src/models/orion.cpp`, `conversion/orion.py`; the publisher's `modeling_orion.py`, whose layer norms
take the epsilon that the configuration calls that of a root mean square.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

N_CTX = replace(common.N_CTX, fields={"hf": "max_sequence_length|max_position_embeddings|model_max_length"})
HPARAMS = (
    *(N_CTX if size is common.N_CTX else size for size in common.SIZES),
    replace(common.LAYER_EPS, fields={"hf": "rms_norm_eps"}), *rope.ROPE, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(bias=True),
    block(tensors.pre_norm(tensors.attention(), tensors.gated(), bias=True)),
)

SPEC = Architecture(
    name="orion", runtimes=("llama.cpp",),
    display_name="Orion",
    hf_classes=("OrionForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.own_output("orion"), common.heads_as_wide_as_the_model("orion")),
            ignored_keys=(
                common.UNBIASED, IgnoredKey("max_position_embeddings", "max_sequence_length is it"),
            ),
        ),
    ),
    recipe={"norm": "layer", "rope": "halves"},
)
