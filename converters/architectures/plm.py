"""PLM: latent attention whose expansion stays whole, turned in pairs, and one plain network with a squared relu.

Sources: llama.cpp `src/models/plm.cpp`, `conversion/plm.py`; `_latent`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import low_rank
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, common.N_HEAD_KV,
    HParam("kv_rank", "attention.kv_lora_rank", fields={"hf": "kv_lora_rank"}),
    HParam("n_rot", "rope.dimension_count", fields={"hf": "qk_rope_head_dim"}, check="n_rot % 2 == 0 and 0 < n_rot"),
    HParam("plain_dim", None, fields={"hf": "qk_nope_head_dim"}, required=False),
    HParam("head_dim_mla", "attention.key_length", derive="plain_dim + n_rot", check="n_rot < head_dim_mla"),
    HParam("head_dim_v_mla", "attention.value_length", fields={"hf": "v_head_dim"}, implied="n_embd / n_head"),
    *deepseek.EPS, rope.BASE, rope.KIND, *rope.SCALING, common.ALWAYS_TIED, common.RELU_SQUARED,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.linear("attn_q", "n_head*head_dim_mla n_embd", "self_attn.q_proj"),
        low_rank(joint=True),
        tensors.linear("attn_output", "n_embd n_head*head_dim_v_mla", "self_attn.o_proj"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.plain(),
    ),
)

SPEC = Architecture(
    name="plm", runtimes=("llama.cpp",),
    display_name="PLM",
    hf_classes=("PLMForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, deepseek.EPSILON, common.UNTIED),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("q_lora_rank", "queries come straight from the input", (None,)),
                IgnoredKey("head_dim", "repeats qk_rope_head_dim", follows="n_rot"),
                IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
                IgnoredKey("use_sliding_window", "never", (False,)),
                IgnoredKey("sliding_window max_window_layers", "no block has a window"),
            ),
        ),
    ),
    recipe={"attention": "latent", "latent_kv": "joint", "rope": "pairs", "ffn": "plain", "activation": "relu_squared"},
)
