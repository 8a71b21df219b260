"""Refact: LLaMA's block with one key and value for all heads, which measures distances (ALiBi).

Sources: llama.cpp `src/models/refact.cpp`, `conversion/refact.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import block, roles

ALIBI = HParam("max_alibi", None, gpt.F32, defaults=(Default(8.0, "the slopes of every Refact"),))
HPARAMS = (
    *(param for param in gpt.SIZES if param is not gpt.EPS),
    replace(common.N_HEAD_KV, fields={}, derive="1", check="n_head_kv == 1"),
    replace(common.RMS_EPS, fields={"hf": "layer_norm_epsilon"}), ALIBI, common.ALWAYS_TIED,
    HParam("multi_query", None, gpt.BOOL, {"hf": "multi_query"}, words={True: True}, required=False),
    HParam("scaled", None, gpt.BOOL, {"hf": "scale_attn_weights"}, words={True: True}, required=False),
)

KV, GATE_UP = "attn.kv", "mlp.gate_up_proj"
ROLES = roles(
    tensors.embedding("transformer.wte", "ln_f"),
    block(
        tensors.norm("attn_norm", "ln_1"),
        tensors.linear("attn_q", "n_head*head_dim n_embd", "attn.q"),
        tensors.linear("attn_k", "head_dim n_embd", KV, Split(0, "head_dim")),
        tensors.linear("attn_v", "head_dim n_embd", KV, Split("head_dim", "2*head_dim")),
        tensors.linear("attn_output", "n_embd n_head*head_dim", "attn.c_proj"),
        tensors.norm("ffn_norm", "ln_2"),
        tensors.linear("ffn_gate", "n_ff n_embd", GATE_UP, Split(0, "n_ff")),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.c_proj"),
        tensors.linear("ffn_up", "n_ff n_embd", GATE_UP, Split("n_ff", "2*n_ff")),
        layer=gpt.LAYER,
    ),
)

SPEC = Architecture(
    name="refact", runtimes=("llama.cpp",),
    display_name="Refact",
    hf_classes=("GPTRefactForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "joint_kv", "ffn": "fused"},
            drops=gpt.DROPS,
            ignored_keys=(
                gpt.UPCAST,
                IgnoredKey("do_sample attention_bias_in_fp32", "how it is computed, not what"),
                IgnoredKey("n_inner", "the tensors say it", (None,)),
            ),
        ),
    ),
    recipe={"rope": "none"},
)
