"""Baichuan: LLaMA, whose queries, keys and values lie in one matrix. The 13B models turn nothing: they measure
distances instead (ALiBi).

Sources: llama.cpp `src/models/baichuan.cpp`; the publisher's `modeling_baichuan.py` of each size. Only the 7B models
state `max_position_embeddings`. Today's convert_hf_to_gguf ends in a recursion.
"""

from dataclasses import replace

from ggferry.converters.architectures import _baichuan as baichuan
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.layouts.values import UnitRows
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

N_CTX = replace(common.N_CTX, fields={"hf": "model_max_length|max_position_embeddings"})
HPARAMS = (
    common.N_VOCAB, N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD,
    replace(common.N_HEAD_KV, derive="n_head"), common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, *rope.ROPE,
    HParam("positions", None, fields={"hf": "max_position_embeddings"}, required=False, null=0,
           defaults=(Default(0, "not stated: the 13B, which has none", dialect="hf"),)),
    HParam("max_alibi", "attention.max_alibi_bias", ValueType.FLOAT32, derive=baichuan.alibi,
           implied=baichuan.alibi_of_forty),
    HParam("z_loss", None, ValueType.FLOAT32, {"hf": "z_loss_weight"}, required=False),
    HParam("unit_rows", None, ValueType.BOOL, derive=baichuan.unit_rows, required=False),
    common.TIED, common.SILU,
)

PACKED, _ROWS = "self_attn.W_pack", "n_head*head_dim"
ROLES = roles(
    tensors.embedding(output=""),
    roles("output.weight when=tied == 0 : n_vocab n_embd | hf lm_head.weight @unit", unit=UnitRows("unit_rows")),
    block(
        norm("attn_norm", "input_layernorm"),
        linear("attn_q", f"{_ROWS} n_embd", PACKED, Then(Split(0, _ROWS), heads_halves_to_pairs("n_head"))),
        linear("attn_k", f"{_ROWS} n_embd", PACKED, Then(Split(_ROWS, f"2*{_ROWS}"), heads_halves_to_pairs("n_head"))),
        linear("attn_v", f"{_ROWS} n_embd", PACKED, Split(f"2*{_ROWS}", f"3*{_ROWS}")),
        linear("attn_output", f"n_embd {_ROWS}", "self_attn.o_proj"),
        norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
    ),
)

SPEC = Architecture(
    name="baichuan", runtimes=("llama.cpp",),
    display_name="Baichuan",
    hf_classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves", "qkv": "fused"},
            drops=common.DROPS,
            caveats=(
                *rope.CAVEATS,
                baichuan.SECOND,
                common.own_output("baichuan"),
                common.heads_as_wide_as_the_model("baichuan"),
            ),
            ignored_keys=(common.UNBIASED, IgnoredKey("max_position_embeddings gradient_checkpointing", "of training")),
        ),
    ),
    recipe={"rope": "pairs"},
    caveats=(baichuan.BY_SIZE,),
)
