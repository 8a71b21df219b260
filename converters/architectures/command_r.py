"""Command-R (Cohere): one layer norm without bias before both branches, tied embeddings, scaled logits.

Source: llama.cpp `src/models/command-r.cpp`, `conversion/command_r.py`, transformers `modeling_cohere.py`. Rotary pairs
lie side by side on both sides: nothing is permuted.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Harmless, HParam, Remark
from ggferry.converters.schema.layouts import SAME
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    common.N_VOCAB,
    # config.json of Command-R says 8192 in max_position_embeddings; it was trained on what model_max_length says.
    replace(common.N_CTX, fields={"hf": "model_max_length|max_position_embeddings"}),
    common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V,
    common.LAYER_EPS, *rope.ROPE,
    HParam("logit_scale", "logit_scale", ValueType.FLOAT32, {"hf": "logit_scale"}, absent=0.0, unsayable=0.0,
           defaults=(Default(0.0625, "transformers' default", dialect="hf"),)),
    HParam("qk_norms", None, ValueType.BOOL, {"hf": "use_qk_norm"}, required=False,
           defaults=(Default(False, "transformers' default", dialect="hf"),)),
    common.ALWAYS_TIED, common.ATTENTION_BIAS, common.SILU,
)  # fmt: skip

ROLES = roles(
    """
    token_embd.weight      : n_vocab n_embd | hf model.embed_tokens.weight
    output_norm.weight f32 : n_embd         | hf model.norm.weight
    """
    + common.ATTENTION_NORM
    + common.ATTENTION
    + common.QKV_BIAS.replace("FLAG", "when=attention_bias==1")
    + common.OUTPUT_BIAS.replace("FLAG", "when=attention_bias==1")
    + """
    blk.{n}.attn_q_norm.weight f32 when=qk_norms==1 : n_head head_dim    | hf model.layers.{n}.self_attn.q_norm.weight
    blk.{n}.attn_k_norm.weight f32 when=qk_norms==1 : n_head_kv head_dim | hf model.layers.{n}.self_attn.k_norm.weight
    """
    + common.GATED.replace("FLAG", ""),
    q=SAME, k=SAME, norm=SAME,
)  # fmt: skip

NORMS = Remark(
    "qk_norms == 1 and n_layer < 64",
    "queries and keys are normed: written, but llama.cpp expects that of command-r from 64 blocks on, not of {n_layer}",
    stops="llama.cpp",
)

CONTEXT = Harmless("max_position_embeddings", "model_max_length is what it was trained on")

SPEC = Architecture(
    name="command-r",
    display_name="Command R",
    hf_classes=("CohereForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, NORMS), harmless=(CONTEXT,)),
        "gguf": Dialect("gguf"),
    },
    recipe={"norm": "layer", "residual": "parallel"},
)
