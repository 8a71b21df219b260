"""RWKV-7 (Goose): the state is also corrected towards what it should have held, by the delta rule; decay, rate of
correction, values and gate depend on the input by way of low-rank matrices.

Sources: BlinkDL's `RWKV-v7/rwkv_v7_demo.py` (x070), flash-linear-attention's `rwkv7` (the Hugging Face form), llama.cpp
`src/models/rwkv7{,-base}.cpp` and `conversion/rwkv.py`. Block 0 adds nothing to its values, but llama.cpp does not load
a model without those matrices there: they are copies of block 0's rate (`a`), as convert_hf_to_gguf writes them.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _recurrent as recurrent
from ggferry.converters.architectures import _rwkv as rwkv
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape, Stack, Transpose
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import also, block, roles, varied
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    rwkv.N_VOCAB, recurrent.NO_LIMIT, rwkv.N_EMBD, rwkv.N_LAYER, rwkv.EPS,
    # flash-linear-attention norms the heads with head_dim · norm_eps, everybody else with 64e-5.
    replace(rwkv.HEAD_SIZE, fields={"hf": "head_dim|head_size"}, words={64: 64}),
    HParam("n_decay", "attention.decay_lora_rank", fields={"hf": "decay_low_rank_dim"}),
    HParam("n_rate", "attention.iclr_lora_rank", fields={"hf": "a_low_rank_dim"}),
    HParam("n_value", "attention.value_residual_mix_lora_rank", fields={"hf": "v_low_rank_dim"}),
    HParam("n_gate", "attention.gate_lora_rank", fields={"hf": "gate_low_rank_dim"}),
    rwkv.N_FF, recurrent.NO_HEADS, common.TIED,
    HParam("activation", None, ValueType.STRING, {"hf": "hidden_act"}, words={"sqrelu": "relu"}, required=False),
)

_HEADS = Reshape(("n_embd",), of=("n_embd / head_size", "head_size"))
ROLES = roles(
    also(
        rwkv.FRAME, "hf",
        """
        token_embd.weight          model.embeddings.weight
        token_embd_norm.weight     model.layers.0.pre_norm.weight
        token_embd_norm.bias       model.layers.0.pre_norm.bias
        output_norm.weight         model.norm.weight
        output_norm.bias           model.norm.bias
        output.weight              lm_head.weight
        blk.{n}.attn_norm.weight   model.layers.{n}.attn_norm.weight
        blk.{n}.attn_norm.bias     model.layers.{n}.attn_norm.bias
        blk.{n}.attn_norm_2.weight model.layers.{n}.ffn_norm.weight
        blk.{n}.attn_norm_2.bias   model.layers.{n}.ffn_norm.bias
        """,
    ),
    roles(
        """
        time_mix_v0.weight : n_embd        | hf a_lora.lora.2.bias | blinkdl a0 @vector
        time_mix_v1.weight : n_rate n_embd | hf a_lora.lora.0.weight | blinkdl a1 @rotated
        time_mix_v2.weight : n_embd n_rate | hf a_lora.lora.2.weight | blinkdl a2 @rotated
        """,
        under={"gguf": "blk.0.", "hf": "model.layers.0.attn.", "blinkdl": "blocks.0.att."},
        vector=rwkv.VECTOR, rotated=Transpose(),
    ),
    block(
        """
        time_mix_lerp_fused.weight f32 : 6 1 1 n_embd   | hf,blinkdl x_r x_w x_k x_v x_a x_g @stack
        time_mix_w0.weight             : n_embd         | hf w_lora.lora.2.bias | blinkdl w0 @vector
        time_mix_w1.weight f32         : n_decay n_embd | hf w_lora.lora.0.weight | blinkdl w1 @rotated
        time_mix_w2.weight f32         : n_embd n_decay | hf w_lora.lora.2.weight | blinkdl w2 @rotated
        time_mix_a0.weight             : n_embd         | hf a_lora.lora.2.bias | blinkdl a0 @vector
        time_mix_a1.weight             : n_rate n_embd  | hf a_lora.lora.0.weight | blinkdl a1 @rotated
        time_mix_a2.weight             : n_embd n_rate  | hf a_lora.lora.2.weight | blinkdl a2 @rotated
        time_mix_v0.weight when=n > 0  : n_embd         | hf v_lora.lora.2.bias | blinkdl v0 @vector
        time_mix_v1.weight when=n > 0  : n_value n_embd | hf v_lora.lora.0.weight | blinkdl v1 @rotated
        time_mix_v2.weight when=n > 0  : n_embd n_value | hf v_lora.lora.2.weight | blinkdl v2 @rotated
        time_mix_g1.weight             : n_gate n_embd  | hf g_lora.lora.0.weight | blinkdl g1 @rotated
        time_mix_g2.weight             : n_embd n_gate  | hf g_lora.lora.2.weight | blinkdl g2 @rotated
        time_mix_k_k.weight            : n_embd         | hf,blinkdl k_k @vector
        time_mix_k_a.weight            : n_embd         | hf,blinkdl k_a @vector
        time_mix_r_k.weight            : n_embd         | hf,blinkdl r_k @heads
        time_mix_key.weight            : n_embd n_embd  | hf k_proj.weight | blinkdl key.weight
        time_mix_value.weight          : n_embd n_embd  | hf v_proj.weight | blinkdl value.weight
        time_mix_receptance.weight     : n_embd n_embd  | hf r_proj.weight | blinkdl receptance.weight
        time_mix_output.weight         : n_embd n_embd  | hf o_proj.weight | blinkdl output.weight
        time_mix_ln.weight f32         : n_embd         | hf g_norm.weight | blinkdl ln_x.weight
        time_mix_ln.bias               : n_embd         | hf g_norm.bias | blinkdl ln_x.bias
        """,
        layer={"hf": "model.layers.{n}.attn.", "blinkdl": "blocks.{n}.att."},
        vector=rwkv.VECTOR, heads=_HEADS, stack=Stack(), rotated=Transpose(),
    ),
    block(
        """
        channel_mix_lerp_k.weight : n_embd      | hf,blinkdl x_k @vector
        channel_mix_key.weight    : n_ff n_embd | hf,blinkdl key.weight
        channel_mix_value.weight  : n_embd n_ff | hf,blinkdl value.weight
        """,
        layer={"hf": "model.layers.{n}.ffn.", "blinkdl": "blocks.{n}.ffn."}, vector=rwkv.VECTOR,
    ),
)
# Its first checkpoints keep the shares of all six in one tensor.
JOINED = "blk.{n}.time_mix_lerp_fused.weight model.layers.{n}.attn.x_x @joined"
ROLES = varied(ROLES, "hf-joined", "hf", JOINED, joined=Reshape((6, 1, 1, "n_embd")))

_UNUSED = "block 0 has no earlier values to take up: never used"
ROTATED: Conventions = {"transposed": rwkv.LOW_RANKS_7}
IGNORED_KEYS = (
    IgnoredKey("attn_mode fuse_* use_l2warp", "how it is computed, not what"),
    IgnoredKey("hidden_ratio num_heads value_dim", "the tensors say it"),
    IgnoredKey("max_position_embeddings", "a recurrent model has no limit"),
    IgnoredKey("norm_first norm_bias", "the first block has a norm before it, and norms have biases", (True,)),
)
HF = Dialect(
    "hf", drops=(common.DROP_TIED, Drop("model.layers.0.attn.v_lora.*", _UNUSED)), caveats=(common.OWN_OUTPUT,),
    ignored_keys=IGNORED_KEYS,
)

SPEC = Architecture(
    name="rwkv7", runtimes=("llama.cpp",),
    display_name="RWKV-7",
    hf_classes=("RWKV7ForCausalLM", "Rwkv7ForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(HF, name="hf-joined", fields="hf", required_tensors=("model.layers.0.attn.x_x",)),
        replace(
            rwkv.BLINKDL,
            fixed={"tied": False, "head_size": 64},
            conventions=ROTATED,
            drops=(Drop("blocks.0.att.v[012]", _UNUSED),),
            required_tensors=("emb.weight", "blocks.0.att.x_r", "blocks.0.att.r_k", "blocks.0.att.k_a"),
        ),
    ),
    recipe={"computation": "rwkv", "norm": "layer", "wkv": "rwkv7"},
)
