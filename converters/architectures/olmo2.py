"""OLMo 2: norms behind attention and feed-forward instead of before them; queries and keys normed over all heads.

Source: llama.cpp `src/models/olmo2.cpp`, transformers `modeling_olmo2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Dialect, Remark
from ggferry.converters.schema.layouts import SAME
from ggferry.converters.schema.roles import roles

HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.TIED, common.SILU)

NORMS = """
blk.{n}.attn_q_norm.weight f32         : n_head*head_dim    | hf model.layers.{n}.self_attn.q_norm.weight
blk.{n}.attn_k_norm.weight f32         : n_head_kv*head_dim | hf model.layers.{n}.self_attn.k_norm.weight
blk.{n}.post_attention_norm.weight f32 : n_embd             | hf model.layers.{n}.post_attention_layernorm.weight
blk.{n}.post_ffw_norm.weight f32       : n_embd             | hf model.layers.{n}.post_feedforward_layernorm.weight
"""
ROLES = roles(common.EMBEDDING + common.ATTENTION + NORMS + common.GATED.replace("FLAG", ""), q=SAME, k=SAME, norm=SAME)

TIED = Remark(
    "tied == 1",
    "the output matrix is the token embedding: llama.cpp expects one of its own in olmo2",
    stops="llama.cpp",
)

SPEC = Architecture(
    name="olmo2",
    display_name="OLMo 2",
    hf_classes=("Olmo2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, TIED), harmless=(common.UNBIASED,)),
        "gguf": Dialect("gguf"),
    },
    recipe={"rope": "halves", "pre_norm": False, "qk_norm": "full"},
)
