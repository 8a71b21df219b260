"""RWKV-6 (Finch): a state a head, and both the mixing of tokens and the decay depend on the input by way of low-rank
matrices.

Sources: BlinkDL's `RWKV-v5/src/model.py` (x060), the Hugging Face form `modeling_rwkv6.py`, llama.cpp
`src/models/rwkv6{,-base}.cpp` and `conversion/rwkv.py`. Where `rescale_every_n_layers` is set, GGUF's weights are
already divided by two for every so many blocks before them, and the runtime halves the stream.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _recurrent as recurrent
from ggferry.converters.architectures import _rwkv as rwkv
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Stack, Transpose
from ggferry.converters.schema.layouts.values import Halved
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    rwkv.N_VOCAB, recurrent.NO_LIMIT, rwkv.N_EMBD, rwkv.N_LAYER, rwkv.EPS,
    HParam("rescale_every", "rescale_every_n_layers", fields={"hf": "rescale_every"}, absent=0,
           defaults=(Default(6, "transformers' default", dialect="hf"),)),
    HParam("rescale_period", None, derive=rwkv.rescale_period),
    rwkv.HEAD_SIZE,
    HParam("n_mix", "time_mix_extra_dim"),
    HParam("n_decay", "time_decay_extra_dim"),
    rwkv.N_FF, recurrent.NO_HEADS, common.TIED,
    # The norm of the heads' output divides by it squared: 64e-5 in llama.cpp and in BlinkDL's code.
    HParam("norm_divisor", None, fields={"hf": "head_size_divisor"}, words={8: 8}, required=False),
)

_TIME_MIX = """
time_mix_lerp_x.weight         : n_embd         | hf,blinkdl time_maa_x @vector
time_mix_lerp_fused.weight f32 : 5 1 1 n_embd | hf,blinkdl time_maa_w time_maa_k time_maa_v time_maa_r time_maa_g @stack
time_mix_w1.weight f32         : 5*n_mix n_embd | hf,blinkdl time_maa_w1 @rotated
time_mix_w2.weight f32         : 5 n_embd n_mix | hf,blinkdl time_maa_w2 @rotated
time_mix_first.weight f32      : n_embd/head_size head_size | hf,blinkdl time_faaaa
time_mix_decay.weight          : n_embd         | hf,blinkdl time_decay @vector
time_mix_decay_w1.weight f32   : n_decay n_embd | hf,blinkdl time_decay_w1 @rotated
time_mix_decay_w2.weight f32   : n_embd n_decay | hf,blinkdl time_decay_w2 @rotated
time_mix_key.weight            : n_embd n_embd  | hf,blinkdl key.weight
time_mix_value.weight          : n_embd n_embd  | hf,blinkdl value.weight
time_mix_receptance.weight     : n_embd n_embd  | hf,blinkdl receptance.weight
time_mix_gate.weight           : n_embd n_embd  | hf,blinkdl gate.weight
time_mix_output.weight         : n_embd n_embd  | hf output.weight @output | blinkdl output.weight
time_mix_ln.weight f32         : n_embd         | hf,blinkdl ln_x.weight
time_mix_ln.bias               : n_embd         | hf,blinkdl ln_x.bias
"""
_OUTPUT = Halved("n // rescale_period")
_MAA = ("time_maa_k", "time_maa_r")
ROLES = roles(
    rwkv.FRAME,
    block(
        _TIME_MIX,
        layer=rwkv.TIME_MIX, vector=rwkv.VECTOR, stack=Stack(), rotated=Transpose(), output=_OUTPUT,
    ),
    rwkv.channel_mix(hf=_MAA, blinkdl=_MAA, value=_OUTPUT),
)

ROTATED: Conventions = {
    "transposed": rwkv.LOW_RANKS_6,
    "rescaled": False,
}

IGNORED_KEYS = (
    IgnoredKey("attention_hidden_size", "as wide as the model", follows="n_embd"),
    IgnoredKey("num_attention_heads", "head_size says it; in published configurations it is head_size"),
)

SPEC = Architecture(
    name="rwkv6", runtimes=("llama.cpp",),
    display_name="RWKV-6",
    hf_classes=("Rwkv6ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", conventions=ROTATED, drops=(common.DROP_TIED,), caveats=(common.OWN_OUTPUT,),
            ignored_keys=IGNORED_KEYS
        ),
        replace(
            rwkv.BLINKDL,
            conventions=ROTATED,
            required_tensors=("emb.weight", "blocks.0.att.time_maa_w1", "blocks.0.att.time_faaaa"),
        ),
    ),
    recipe={"computation": "rwkv", "norm": "layer", "wkv": "rwkv6", "rescaled": True},
)
