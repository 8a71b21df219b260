"""OLMo 2: norms behind attention and feed-forward instead of before them; queries and keys normed over all heads.

Source: llama.cpp `src/models/olmo2.cpp`, transformers `modeling_olmo2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.attention(),
        tensors.qk_norm(shapes=tensors.FULL_WIDTH),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        tensors.norm("post_ffw_norm", "post_feedforward_layernorm"),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="olmo2",
    display_name="OLMo 2",
    hf_classes=("Olmo2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.OWN_OUTPUT), harmless=(common.UNBIASED,)
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves", "pre_norm": False, "qk_norm": "full"},
)
