"""LLaMA 4, the text half: blocks in chunks, and every fourth that sees all and turns nothing, where queries grow with
their position instead; one expert a token, whose input its weight multiplies, beside a shared one.

Source: llama.cpp `src/models/llama4.cpp`, `conversion/llama.py`, transformers `modeling_llama4.py`. Most of it is
constant in llama.cpp; where the model says otherwise, keys of GGUF say so that this graph does not read. Quantized
checkpoints keep the experts one by one, as transformers lays them out before (`SequentialLlama4TextExperts`).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _llama4 as llama4
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.block_patterns import rotated_unlike_every_fourth
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Pick, Stack, Transpose
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

BLOCKS = (
    HParam("rope_stated", None, BOOL, {"hf": "no_rope_layers"}, words={1: True, 0: False}, length="n_rope_stated",
           required=False),
    HParam("n_rope_stated", None, derive=llama4.listed_blocks, required=False),
    HParam("rope_period", None, fields={"hf": "no_rope_layer_interval"}, required=False, check="0 < rope_period"),
    HParam("rope_layers", "attention.rope_pattern", BOOL, derive=llama4.rotated, implied="each (n + 1) % 4 != 0",
           length="n_layer"),
    HParam("rope_odd", None, derive=rotated_unlike_every_fourth),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "attention_chunk_size"}, absent=8192, unrepresentable=0),
    HParam("layer_chunks", None, BOOL, {"hf": "layer_types"}, length="n_layer", required=False,
           words={"chunked_attention": True, "full_attention": False}),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=llama4.chunked,
           implied="each (n + 1) % 4 != 0", length="n_layer"),
)
ATTENTION = (
    # GGUF has no key for it: llama.cpp does so unless there are 128 experts.
    HParam("qk_norms", None, BOOL, {"hf": "use_qk_norm"}, derive=llama4.normed,
           check="qk_norms == 1 and n_expert != 128 or qk_norms == 0 and n_expert == 128"),
    HParam("tempered", None, BOOL, {"hf": "attn_temperature_tuning"}, words={True: True, False: False, 4: True},
           defaults=(Default(True, "transformers' default", dialect="hf"),), required=False),
    HParam("temperature_stated", None, F32, {"hf": "attn_scale"}, required=False,
           defaults=(Default(0.1, "transformers' default", dialect="hf"),)),
    HParam("temperature_scale", "attention.temperature_scale", F32, derive=llama4.temperature, absent=0.1),
    HParam("temperature_length", "attention.temperature_length", fields={"hf": "floor_scale"}, absent=8192,
           check="0 < temperature_length"),
)
EXPERTS = (
    common.N_EXPERT, common.N_EXPERT_USED, replace(common.N_FF_EXP, fields={"hf": "intermediate_size"}),
    HParam("step_stated", None, fields={"hf": "interleave_moe_layer_step"}, required=False),
    HParam("moe_step", "interleave_moe_layer_step", derive=llama4.expert_step),
    HParam("moe_layers", None, fields={"hf": "moe_layers"}, length="n_moe_layers", required=False),
    HParam("n_moe_layers", None, derive=llama4.listed_experts, required=False),
    HParam("moe_odd", None, derive=llama4.misplaced_experts, check="moe_odd == 0"),
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER,
    replace(common.N_FF, fields={"hf": "intermediate_size_mlp"}),
    common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, *rope.LLAMA3_ROPE, *BLOCKS,
    *EXPERTS, *ATTENTION, common.TIED, common.SILU,
)

_ROUTED, _DENSE = "moe_step > 0 and (n + 1) % moe_step == 0", "moe_step == 0 or (n + 1) % moe_step != 0"
ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated("feed_forward.", when=_DENSE),
        block(
            """
            ffn_gate_inp.weight f32 : n_expert n_embd          | hf router.weight
            ffn_gate_exps.weight    : n_expert n_ff_exp n_embd | hf experts.gate_up_proj @gate
            ffn_down_exps.weight    : n_expert n_embd n_ff_exp | hf experts.down_proj @rotated
            ffn_up_exps.weight      : n_expert n_ff_exp n_embd | hf experts.gate_up_proj @up
            """,
            tensors.shared_experts("shared_expert.", width="n_ff_exp"),
            layer="feed_forward.", name="", when=_ROUTED,
            gate=Then(Transpose(), Pick("n_expert", 0, "n_ff_exp", stacked=True)),
            up=Then(Transpose(), Pick("n_expert", "n_ff_exp", "2*n_ff_exp", stacked=True)),
            rotated=Transpose(),
        ),
    ),
)
ROLES = varied(
    ROLES, "apart", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.feed_forward.experts.{e}.gate_proj.weight @stacked
    blk.{n}.ffn_down_exps.weight model.layers.{n}.feed_forward.experts.{e}.down_proj.weight @stacked
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.feed_forward.experts.{e}.up_proj.weight @stacked
    """,
    stacked=Stack(),
)

CAVEATS = (
    Caveat("rope_odd > 0", "llama.cpp runs this differently: it turns queries and keys in all blocks but every fourth, "
           "which {rope_odd} blocks of this model contradict", unsupported_by="llama.cpp"),
    Caveat("n_swa != 8192 and n_swa < n_ctx", "llama.cpp runs this differently: it attends in chunks of 8192 tokens, "
           "and this model in chunks of {n_swa}", unsupported_by="llama.cpp"),
    Caveat("temperature_scale != 0.1 or temperature_length != 8192",
           "llama.cpp runs this differently: queries grow by 0.1 every 8192 tokens, and in this model by "
           "{temperature_scale} every {temperature_length}", differs_in="llama.cpp"),
)

_HF = Dialect(
    "hf",
    conventions={"expert_rows": False, "gate_up": "halves"},
    drops=(*common.DROPS, *half.drop_vision("*vision_model.*", "*multi_modal_projector.*")),
    caveats=rope.CAVEATS,
    config_section=half.WITHIN,
    renames=half.RENAMES,
    ignored_keys=(common.UNBIASED, half.VISION_KEYS),
)

SPEC = Architecture(
    name="llama4", runtimes=("llama.cpp",),
    display_name="LLaMA 4",
    hf_classes=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        _HF,
        replace(
            _HF, name="apart", fields="hf", conventions={},
            required_tensors=("*.feed_forward.experts.0.gate_proj.*", "*.feed_forward.router.weight"),
        ),
    ),
    recipe={
        "rope": "pairs", "qk_norm": "unweighted", "qk_norm_at": "after", "temperature": "unrotated",
        "window": "chunked", "routing": "sigmoid", "expert_weight": "input",
    },
    caveats=CAVEATS,
)
