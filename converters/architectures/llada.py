"""LLaDA: LLaMA that fills in masked tokens, under AI2's names. Sources: `_diffusion`."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _diffusion as diffusion
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._common import also_at
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    also_at(common.N_VOCAB, "embedding_size"), also_at(common.N_CTX, "max_sequence_length"),
    also_at(common.N_EMBD, "d_model"), also_at(common.N_LAYER, "n_layers"), also_at(common.N_FF, "mlp_hidden_size"),
    also_at(common.N_HEAD, "n_heads"), also_at(common.N_HEAD_KV, "n_kv_heads"), common.HEAD_DIM, common.HEAD_DIM_V,
    common.RMS_EPS, *rope.ROPE, diffusion.CAUSAL, diffusion.IN_PLACE, also_at(common.TIED, "weight_tying"),
    # What this graph does not do: AI2's code can.
    HParam("block", None, common.STRING, {"hf": "block_type"}, words={"llama": "llama"}, required=False),
    HParam("norm_kind", None, common.STRING, {"hf": "layer_norm_type"}, words={"rms": "rms"}, required=False),
    HParam("linear", None, common.STRING, {"hf": "activation_type"}, words={"silu": "silu"}, required=False),
    HParam("rotated", None, common.BOOL, {"hf": "rope"}, words={True: True}, required=False),
    HParam("alibi", None, common.BOOL, {"hf": "alibi"}, words={False: False}, required=False),
    HParam("biased", None, common.BOOL, {"hf": "include_bias"}, words={False: False}, required=False),
    HParam("qkv_biased", None, common.BOOL, {"hf": "include_qkv_bias"}, required=False),
    HParam("qk_normed", None, common.BOOL, {"hf": "attention_layer_norm"}, words={False: False}, required=False),
    HParam("scaled", None, common.BOOL, {"hf": "scale_logits"}, words={False: False}, required=False),
    HParam("scaled_input", None, common.BOOL, {"hf": "input_emb_norm"}, words={False: False}, required=False),
)

ROLES = roles(
    tensors.embedding("model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out"),
    block(
        tensors.norm("attn_norm", "attn_norm"),
        tensors.attention(
            "", ("q_proj", "k_proj", "v_proj", "attn_out"), q=heads_halves_to_pairs("n_head"),
            k=heads_halves_to_pairs("n_head_kv"), bias="qkv_biased == 1",
        ),
        tensors.norm("ffn_norm", "ff_norm"),
        tensors.gated("", ("ff_proj", "ff_out", "up_proj")),
        layer="model.transformer.blocks.{n}.",
    ),
)

SPEC = Architecture(
    name="llada", runtimes=("llama.cpp",),
    display_name="LLaDA",
    hf_classes=("LLaDAModelLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                diffusion.IGNORED_KEYS,
                IgnoredKey("vocab_size", "the tokens there are, and embedding_size the rows", follows="n_vocab"),
                IgnoredKey("mlp_ratio", "the tensors say it"),
                IgnoredKey("alibi_bias_max attention_layer_norm_with_affine bias_for_layer_norm layer_norm_with_affine",
                         "of what is not in use"),
                IgnoredKey("multi_query_attention", "the number of heads says it"),
                IgnoredKey("flash_attention rope_full_precision precision block_group_size embedding_dropout init_*",
                         "how it is trained or computed, not what"),
            ),
        ),
    ),
    recipe={"rope": "pairs"},
    caveats=(diffusion.MASKED,),
)
