"""Granite Switch: Granite 4 of attention alone, with adapters that tokens of the text switch on.

Sources: granite-switch (generative-computing/granite-switch at b0df50b1, `config.py`, `hf/modeling_granite_switch.py`,
`hf/core/lora.py`); llama.cpp `src/models/granite-switch.cpp`, `conversion/granite.py`. The configuration counts the
switch, which has no weights, as a block. Each matrix has a stack of adapters, in GGUF behind one of zeros.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _granite as granite
from ggferry.converters.architectures import _granite_switch as switch
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import Heads, heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import block, roles

F32, BOOL = common.F32, common.BOOL
_OWN = Default(True, "GraniteSwitchConfig's default", dialect="hf")

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD,
    HParam("stated_layers", None, fields={"hf": "num_hidden_layers"}, required=False),
    replace(common.N_LAYER, fields={}, derive="stated_layers - 1", check="0 < n_layer and n_layer < 512"),
    HParam("n_ff", "feed_forward_length", fields={"hf": "shared_intermediate_size"}),
    common.N_HEAD, common.N_HEAD_KV,
    replace(common.HEAD_DIM, fields={"hf": "projection_head_dim|head_dim"}),
    replace(common.HEAD_DIM_V, fields={"hf": "projection_head_dim|head_dim"}, check="head_dim_v == head_dim"),
    common.RMS_EPS, rope.BASE, replace(rope.FRACTION, words={1: 1.0}), *rope.ROPE[1:],
    replace(granite.ROTATES, defaults=(_OWN,)), *granite.SCALES,
    replace(granite.ATTENDS, length="stated_layers"),
    HParam("n_adapters", "adapters.count", fields={"hf": "num_adapters"},
           check="0 < n_adapters and n_adapters <= 4096"),
    HParam("rank", "adapters.lora_rank", fields={"hf": "max_lora_rank"}, check="0 < rank and rank <= 4096"),
    HParam("adapter_tokens", "adapters.token_ids_activate", fields={"hf": "adapter_token_ids"}, length="n_adapters"),
    HParam("adapter_substitutes", "adapters.token_ids_substitute", fields={"hf": "adapter_substitute_token_ids"},
           length="n_adapters"),
    HParam("adapter_tokens_known", None, BOOL, derive=switch.tokens_are_known, check="adapter_tokens_known == 1"),
    HParam("router_gain", "adapters.router_gain", F32, {"hf": "control_token_gain"}, absent=15.0,
           check="0 < router_gain"),
    HParam("control_dims", None, fields={"hf": "control_dims"}, words={0: 0}, required=False),
    HParam("head_norms", None, BOOL, {"hf": "qk_norm"}, words={False: False}, required=False),
    HParam("n_expert", None, fields={"hf": "num_local_experts"}, words={0: 0}, required=False),
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.fused_attention(
            "self_attn.qkv_proj.base_layer", "self_attn.o_proj.base_layer",
            layout=Heads(1, "(n_head+n_head_kv)*head_dim", heads_halves_to_pairs("n_head+n_head_kv")),
        ),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.linear("ffn_gate", "n_ff n_embd", "shared_mlp.input_linear.base_layer", Split("0", "n_ff")),
        tensors.linear("ffn_up", "n_ff n_embd", "shared_mlp.input_linear.base_layer", Split("n_ff", "2*n_ff")),
        tensors.linear("ffn_down", "n_embd n_ff", "shared_mlp.output_linear.base_layer"),
        switch.adapters(),
    ),
)

SPEC = Architecture(
    name="graniteswitch", runtimes=("llama.cpp",),
    display_name="Granite Switch",
    hf_classes=("GraniteSwitchForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves", "ffn": "fused"},
            drops=(
                *common.DROPS,
                Drop("model.adapter_token_ids", "repeats the configuration"),
                Drop("model.switch.*", "repeats the configuration"),
            ),
            caveats=rope.CAVEATS,
            ignored_keys=(
                granite.NOT_MAMBA,
                IgnoredKey("intermediate_size", "of experts, of which it has none"),
                IgnoredKey("adapter_names adapter_third_party hiding_groups hiding_policy", "names of the adapters"),
                IgnoredKey("adapter_ranks", "lower ranks are filled with zeros"),
                IgnoredKey("switch_head_dim fused_add_norm", "how it is computed"),
                IgnoredKey("lora_target_modules", "the tensors say it"),
                IgnoredKey("num_experts_per_tok router_aux_loss_coef output_router_logits", "of experts"),
            ),
        ),
    ),
    recipe={"logit_scale": "divide"},
)
