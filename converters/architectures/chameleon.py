"""Chameleon: LLaMA with queries and keys normed head by head, by layer norms with weights of each head's own; in the
larger one, norms stand behind the branches.

Sources: llama.cpp `src/models/chameleon.cpp`, `conversion/chameleon.py` (which gives all heads the norm of the first);
transformers `modeling_chameleon.py`. What makes pictures of tokens (`vqmodel`) is dropped.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.roles import block, roles

PICTURES = 8196
"""llama.cpp gives the logits of tokens 4 to 8195, Chameleon's pictures, the least value there is."""

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.BIASES, common.UNLOADED_MLP_BIAS,
    HParam("norms_behind", "swin_norm", common.BOOL, {"hf": "swin_norm"}, null=False,
           defaults=(Default(False, "transformers' default"),)),
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.paired_attention(bias=tensors.BIASED, output_bias=tensors.BIASED_OUTPUT),
        """
        attn_q_norm.weight f32 : n_head head_dim    | hf self_attn.q_norm.weight @pairs
        attn_k_norm.weight f32 : n_head_kv head_dim | hf self_attn.k_norm.weight @pairs
        attn_q_norm.bias f32   : n_head head_dim    | hf self_attn.q_norm.bias @pairs
        attn_k_norm.bias f32   : n_head_kv head_dim | hf self_attn.k_norm.bias @pairs
        """,
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(bias="mlp_bias == 1"),
        pairs=Columns(Rearrange("(two d) -> (d two)", (("two", 2),))),
    ),
)

CAVEATS = (
    Caveat(
        f"n_vocab < {PICTURES}",
        f"llama.cpp does not run this model: it takes tokens 4 to {PICTURES - 1} for pictures in chameleon, and there "
        "are {n_vocab}",
        unsupported_by="llama.cpp",
    ),
    Caveat(
        f"n_vocab >= {PICTURES}",
        f"tokens 4 to {PICTURES - 1} are pictures, which llama.cpp never continues with; the file says nothing of it",
        differs_in="llama.cpp",
    ),
    common.few_biases("chameleon"),
    common.heads_as_wide_as_the_model("chameleon"),
)

SPEC = Architecture(
    name="chameleon", runtimes=("llama.cpp",),
    display_name="Chameleon",
    hf_classes=("ChameleonForConditionalGeneration", "ChameleonForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=(*common.DROPS, *half.drop_vision("model.vqmodel.*")),
            caveats=rope.CAVEATS,
            ignored_keys=(
                IgnoredKey("vq_config vq_config.* vocabulary_map vocabulary_map.*", "of the vision half, dropped"),
                IgnoredKey("model_parallel_size", "how it was trained: the norms of all heads are there"),
            ),
        ),
    ),
    recipe={"rope": "pairs", "qk_norm": "layer"},
    caveats=CAVEATS,
)
