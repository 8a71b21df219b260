"""Grok 1 and 2 (xAI): norms before and behind both branches, capped scores, experts with GELU; in Grok 2 a dense
network beside them, and queries that grow with the logarithm of their position.

Sources: llama.cpp `src/models/grok.cpp`, `llama-graph.cpp` (the cap), `conversion/grok.py`; xAI's `model.py` of Grok 1
and SGLang's `grok.py`, in which both run as xAI means them: neither of the two makes the weights of the chosen experts
sum to one, and for Grok 2 the router's logits are capped. In Grok 1 that sum changes nothing: a norm follows.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _grok as grok
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import also, block, roles

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
_XAI = "xAI's own code"

HPARAMS = (
    *common.SIZES, replace(common.RMS_EPS, defaults=(Default(1e-5, _XAI, dialect="hf"),)), rope.BASE, rope.N_ROT,
    # 'original': the frequencies as they are (SGLang); no published model says another word.
    HParam("rope_kind", None, STRING, {"hf": "rope_type"}, words={"original": "default", "default": "default"},
           required=False),
    HParam("half_turned", None, BOOL, {"hf": "rope_rotate_half_dims"}, words={False: False}, required=False),
    HParam("embedding_scale", "embedding_scale", F32, {"hf": "embedding_multiplier_scale"}, unrepresentable=0.0,
           defaults=(Default(78.38367176906169, _XAI),)),
    HParam("attn_scale", "attention.output_scale", F32, {"hf": "attn_output_multiplier"}, derive=grok.score_scale,
           unrepresentable=0.0, defaults=(Default(0.08838834764831845, _XAI),)),
    HParam("attn_softcap", "attn_logit_softcapping", F32, {"hf": "attn_logit_softcapping|max_attn_value"}, null=0.0,
           unrepresentable=0.0, defaults=(Default(30.0, _XAI),)),
    HParam("cap_method", None, STRING, {"hf": "attn_logit_softcapping_method"}, words={"tanh": "tanh"}, required=False),
    HParam("router_softcap", "router_logit_softcapping", F32, {"hf": "router_logit_softcapping"}, null=0.0,
           defaults=(Default(0.0, "Grok 1 has none", dialect="hf"), Default(30.0, "what llama.cpp supposes"))),
    HParam("final_softcap", "final_logit_softcapping", F32, {"hf": "final_logit_softcapping"}, null=0.0, absent=0.0),
    HParam("logit_scale", "logit_scale", F32, {"hf": "output_multiplier_scale"}, unrepresentable=0.0,
           defaults=(Default(0.5773502691896257, _XAI),)),
    HParam("temperature_length", "attention.temperature_length", fields={"hf": "attn_temperature_len"}, null=0,
           absent=0),
    common.N_EXPERT, replace(common.N_EXPERT_USED, defaults=(Default(2, _XAI, dialect="hf"),)),
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_intermediate_size"}, derive="n_ff"),
    HParam("beside", None, BOOL, {"hf": "residual_moe"}, required=False,
           defaults=(Default(False, "Grok 1 has none", dialect="hf"),)),
    HParam("tied", None, BOOL, {"hf": "tie_word_embeddings"}, required=False),
    # The norm behind the network has another name in each of the two.
    HParam("grok1", None, BOOL, required=False),
)

OLD = """
token_embd.weight transformer.in_out_embed.weight
output_norm.weight transformer.rms_norm.weight
output.weight lm_head.weight
blk.{n}.attn_norm.weight transformer.decoder_layer.{n}.rms_norm.weight
blk.{n}.attn_q.weight transformer.decoder_layer.{n}.multi_head_attention.query.weight
blk.{n}.attn_k.weight transformer.decoder_layer.{n}.multi_head_attention.key.weight
blk.{n}.attn_v.weight transformer.decoder_layer.{n}.multi_head_attention.value.weight
blk.{n}.attn_output.weight transformer.decoder_layer.{n}.multi_head_attention.linear.weight
blk.{n}.attn_output_norm.weight transformer.decoder_layer.{n}.rms_norm_1.weight
blk.{n}.ffn_norm.weight transformer.decoder_layer.{n}.rms_norm_2.weight
blk.{n}.ffn_gate_inp.weight transformer.decoder_layer.{n}.router.weight
blk.{n}.ffn_gate_exps.weight transformer.decoder_layer.{n}.moe.{e}.linear.weight @experts
blk.{n}.ffn_down_exps.weight transformer.decoder_layer.{n}.moe.{e}.linear_1.weight @experts
blk.{n}.ffn_up_exps.weight transformer.decoder_layer.{n}.moe.{e}.linear_v.weight @experts
"""
ROLES = also(
    roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "pre_attn_norm"),
            tensors.attention(),
            tensors.norm("attn_output_norm", "post_attn_norm"),
            tensors.norm("ffn_norm", "pre_moe_norm"),
            tensors.gated(when="beside == 1"),
            tensors.experts(
                "block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3")
            ),
            """
            layer_output_norm.weight f32 when=grok1==1 : n_embd | old transformer.decoder_layer.{n}.rms_norm_3.weight
            post_ffw_norm.weight f32 when=grok1==0     : n_embd | hf post_moe_norm.weight
            """,
        ),
    ),
    "old", OLD, experts=Stack(),
)

CAVEATS = (
    Caveat(
        "beside == 1 or router_softcap > 0",
        "llama.cpp runs this differently: it makes the weights of the chosen experts sum to one and leaves the "
        "router's logits as they are; Grok 2 does neither",
        differs_in="llama.cpp",
    ),
    Caveat(
        "temperature_length > 0",
        "queries beyond token {temperature_length} grow with the logarithm of their position: written, but llama.cpp "
        "does not let them",
        differs_in="llama.cpp",
    ),
    common.heads_as_wide_as_the_model("grok"),
)
_HF = Dialect(
    "hf",
    fixed={"grok1": False},
    drops=common.DROPS,
    ignored_keys=(
        common.UNBIASED,
        IgnoredKey(
            "original_max_position_embeddings scaling_factor extrapolation_factor attn_factor beta_fast beta_slow",
            "of a stretched rotation: rope_type 'original' turns by the frequencies as they are",
        ),
        IgnoredKey("merge_gate_up load_presharded_* replicate_* context_len", "how it is loaded or computed, not what"),
    ),
)

SPEC = Architecture(
    name="grok", runtimes=("llama.cpp",),
    display_name="Grok",
    hf_classes=("Grok1ForCausalLM", "GrokForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        _HF,
        replace(_HF, name="old", fields="hf", fixed={"grok1": True}, required_tensors=("transformer.decoder_layer.*",)),
    ),
    recipe={"rope": "halves", "activation": "gelu_tanh", "temperature": "logarithm"},
    caveats=CAVEATS,
)
