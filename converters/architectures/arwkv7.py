"""ARWKV: Qwen 2 with RWKV-7's time mix in the place of attention, with or without its gate and the norm of its heads.

Sources: llama.cpp `src/models/{arwkv7,rwkv7-base}.cpp`, `conversion/rwkv.py`; the publisher's `modeling_rwkv_hybrid`.
Block 0 has no earlier values to take up; llama.cpp wants those matrices there, so that they are copies of its rate's.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _recurrent as recurrent
from ggferry.converters.architectures import _rwkv as rwkv
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape, Stack, Transpose
from ggferry.converters.schema.roles import block, roles, varied

BOOL = common.BOOL
HPARAMS = (
    rwkv.N_VOCAB, recurrent.NO_LIMIT, rwkv.N_EMBD, rwkv.N_LAYER, common.RMS_EPS,
    replace(rwkv.HEAD_SIZE, words={64: 64}),
    HParam("n_decay", "attention.decay_lora_rank"), HParam("n_rate", "attention.iclr_lora_rank"),
    HParam("n_value", "attention.value_residual_mix_lora_rank"),
    HParam("n_lerp", None, check="n_lerp == 5 or n_lerp == 6"),
    HParam("n_gate", "attention.gate_lora_rank", absent=0),
    rwkv.N_FF, recurrent.NO_HEADS, recurrent.ONE_SHIFT,
    HParam("version", None, fields={"hf": "wkv_version"}, words={7: 7}, required=False),
    HParam("divisor", None, fields={"hf": "head_size_divisor"}, words={8: 8}, required=False),
    HParam("gated", None, BOOL, {"hf": "wkv_has_gate"}, required=False,
           check="(gated == 1 and n_lerp == 6) or (gated == 0 and n_lerp == 5)"),
    HParam("normed", None, BOOL, {"hf": "wkv_has_group_norm"}, required=False),
    HParam("every_layer", None, fields={"hf": "wkv_layers"}, words={"full": 1}, required=False),
    common.TIED, common.SILU,
)

MIXED = "x_r x_w x_k x_v x_a"
TIME_MIX = f"""
time_mix_lerp_fused.weight f32 : n_lerp 1 1 n_embd | hf {MIXED} @stack
time_mix_w0.weight             : n_embd         | hf w0 @vector
time_mix_w1.weight f32         : n_decay n_embd | hf w1 @rotated
time_mix_w2.weight f32         : n_embd n_decay | hf w2 @rotated
time_mix_a0.weight             : n_embd         | hf a0 @vector
time_mix_a1.weight             : n_rate n_embd  | hf a1 @rotated
time_mix_a2.weight             : n_embd n_rate  | hf a2 @rotated
time_mix_v0.weight when=n > 0  : n_embd         | hf v0 @vector
time_mix_v1.weight when=n > 0  : n_value n_embd | hf v1 @rotated
time_mix_v2.weight when=n > 0  : n_embd n_value | hf v2 @rotated
time_mix_g1.weight when=n_lerp == 6 : n_gate n_embd | hf g1 @rotated
time_mix_g2.weight when=n_lerp == 6 : n_embd n_gate | hf g2 @rotated
time_mix_k_k.weight            : n_embd         | hf k_k @vector
time_mix_k_a.weight            : n_embd         | hf k_a @vector
time_mix_r_k.weight            : n_embd         | hf r_k @heads
time_mix_key.weight            : n_embd n_embd  | hf key.weight
time_mix_value.weight          : n_embd n_embd  | hf value.weight
time_mix_receptance.weight     : n_embd n_embd  | hf receptance.weight
time_mix_output.weight         : n_embd n_embd  | hf output.weight
time_mix_ln.weight f32 when=normed == 1 : n_embd | hf ln_x.weight
time_mix_ln.bias when=normed == 1       : n_embd | hf ln_x.bias
"""
FIRST = """
time_mix_v0.weight : n_embd        | hf a0 @vector
time_mix_v1.weight : n_rate n_embd | hf a1 @rotated
time_mix_v2.weight : n_embd n_rate | hf a2 @rotated
"""
LAYER = "model.layers.{n}.self_attn.time_mixer."
ROLES = varied(
    roles(
        tensors.embedding(),
        roles(
            FIRST, under={"gguf": "blk.0.", "hf": LAYER.format(n=0)}, vector=rwkv.VECTOR, rotated=Transpose()
        ),
        block(tensors.norm("attn_norm", "input_layernorm")),
        block(
            TIME_MIX, layer=LAYER, vector=rwkv.VECTOR, stack=Stack(), rotated=Transpose(),
            heads=Reshape(("n_embd",), of=("n_embd / head_size", "head_size")),
        ),
        block(tensors.norm("ffn_norm", "post_attention_layernorm"), tensors.gated()),
    ),
    "hf-gated",
    "hf",
    "blk.{n}.time_mix_lerp_fused.weight " + " ".join(LAYER + name for name in (*MIXED.split(), "x_g")) + " @stack",
    stack=Stack(),
)

_UNUSED = "block 0 has no earlier values to take up: never used"
HF = Dialect(
    "hf",
    conventions={"transposed": rwkv.LOW_RANKS_7},
    drops=(
        *common.DROPS,
        Drop("model.layers.0.self_attn.time_mixer.v[012]", _UNUSED),
        Drop("model.layers.*.self_attn.time_mixer.x_g", "there is no gate: never used"),
    ),
    ignored_keys=(
        common.UNBIASED,
        IgnoredKey("num_wkv_heads", "the width of a head says it", follows="n_embd / head_size"),
        IgnoredKey("num_attention_heads num_key_value_heads head_dim", "of the attention that is not there"),
        IgnoredKey("max_position_embeddings rope_theta rope_scaling rope_parameters rope_parameters.*",
                 "a recurrent model has no limit and rotates nothing"),
        IgnoredKey("use_sliding_window", "there is no window", (False,)),
        IgnoredKey("sliding_window max_window_layers", "there is no window"),
    ),
)

SPEC = Architecture(
    name="arwkv7", runtimes=("llama.cpp",),
    display_name="ARWKV",
    hf_classes=("RwkvHybridForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(HF, name="hf-gated", fields="hf", required_tensors=("model.layers.0.self_attn.time_mixer.g1",)),
    ),
    recipe={"rope": "none", "wkv": "rwkv7"},
    caveats=(common.own_output("arwkv7"),),
)
