"""QRWKV-6: Qwen 2 with RWKV-6's time mix in the place of attention, whose keys and values heads share, without a bonus
and without a norm of its heads.

Sources: llama.cpp `src/models/rwkv6{qwen2,-base}.cpp`, `conversion/rwkv.py`: the low-rank mixing has another order than
RWKV-6's. Variants that rotate, norm heads or have a gate of low rank are refused: llama.cpp computes none of it.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _recurrent as recurrent
from ggferry.converters.architectures import _rwkv as rwkv
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import Reordered
from ggferry.converters.schema.layouts.parts import Stack, Transpose
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
HPARAMS = (
    rwkv.N_VOCAB, recurrent.NO_LIMIT, rwkv.N_EMBD, rwkv.N_LAYER, common.RMS_EPS,
    HParam("n_mixers", None, fields={"hf": "num_attention_heads"}, required=False, check="0 < n_mixers"),
    HParam("head_size", "wkv.head_size", derive="n_embd / n_mixers", check="0 < head_size and n_embd % head_size == 0"),
    HParam("n_head_kv", "attention.head_count_kv", fields={"hf": "num_key_value_heads"},
           check="0 < n_head_kv and n_embd % (head_size * n_head_kv) == 0"),
    HParam("n_mix", "time_mix_extra_dim", fields={"hf": "lora_rank_tokenshift"}),
    HParam("n_decay", "time_decay_extra_dim", fields={"hf": "lora_rank_decay"}),
    rwkv.N_FF, recurrent.NO_HEADS, recurrent.ONE_SHIFT,
    HParam("rotated", None, BOOL, {"hf": "use_rope"}, words={False: False}, required=False),
    HParam("balanced", None, BOOL, {"hf": "balance_state"}, words={True: True}, required=False),
    HParam("heads_normed", None, BOOL, {"hf": "groupnorm_att"}, words={False: False}, required=False),
    HParam("shifted", None, BOOL, {"hf": "use_tokenshift"}, words={True: True}, required=False),
    HParam("gate_kind", None, fields={"hf": "gate_rank_type"}, words={1: 1}, required=False),
    common.TIED, common.SILU,
)

_MAA = "time_maa_w time_maa_k time_maa_v time_maa_r time_maa_g"
TIME_MIX = f"""
time_mix_lerp_x.weight         : n_embd | hf time_maa_x @vector
time_mix_lerp_fused.weight f32 : 5 1 1 n_embd | hf {_MAA} @stack
time_mix_w1.weight f32         : 5*n_mix n_embd | hf time_maa_w1 @rotated
time_mix_w2.weight f32         : 5 n_embd n_mix | hf time_maa_w2 @rotated
time_mix_decay.weight          : n_embd | hf time_decay @vector
time_mix_decay_w1.weight f32   : n_decay n_embd | hf time_decay_w1 @plain
time_mix_decay_w2.weight f32   : n_embd n_decay | hf time_decay_w2 @plain
time_mix_key.weight            : n_head_kv*head_size n_embd | hf k_proj.weight
time_mix_value.weight          : n_head_kv*head_size n_embd | hf v_proj.weight
time_mix_receptance.weight     : n_embd n_embd | hf q_proj.weight
time_mix_key.bias optional        : n_head_kv*head_size | hf k_proj.bias
time_mix_value.bias optional      : n_head_kv*head_size | hf v_proj.bias
time_mix_receptance.bias optional : n_embd | hf q_proj.bias
time_mix_gate.weight           : n_embd n_embd | hf gate.weight
time_mix_output.weight         : n_embd n_embd | hf o_proj.weight
"""
ROLES = roles(
    tensors.embedding(),
    block(tensors.norm("attn_norm", "input_layernorm")),
    block(
        TIME_MIX, layer="model.layers.{n}.self_attn.", vector=rwkv.VECTOR, stack=Stack(), plain=Transpose(),
        rotated=Then(Transpose(), Reordered((3, 1, 2, 0, 4))),
    ),
    block(tensors.norm("ffn_norm", "post_attention_layernorm"), tensors.gated()),
)

SPEC = Architecture(
    name="rwkv6qwen2", runtimes=("llama.cpp",),
    display_name="QRWKV-6",
    hf_classes=("RWKV6Qwen2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"mix_order": "rkvwg", "transposed": rwkv.LOW_RANKS_6},
            drops=common.DROPS,
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("attention_bias", "tensors are there or not", (True,)),
                IgnoredKey("max_position_embeddings rope_theta rope_scaling rope_parameters rope_parameters.*",
                         "a recurrent model has no limit and rotates nothing"),
                IgnoredKey("use_sliding_window", "there is no window", (False,)),
                IgnoredKey("sliding_window max_window_layers", "there is no window"),
                IgnoredKey("head_dim", "repeats the width of a head", follows="head_size"),
            ),
        ),
    ),
    recipe={"rope": "none", "wkv": "rwkv6"},
    caveats=(common.own_output("rwkv6qwen2"),),
)
