"""ERNIE 4.5, the mixtures: experts scored by softmax and chosen with a bias, beside shared ones; the first blocks, and
those between every so many, are dense.

Source: `_ernie`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _ernie as ernie
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

_HF = "transformers' default"
NONE_SO_LOW = 1e-12
"""moe_norm_min of transformers' class and of the published models."""
HPARAMS = (
    *ernie.HPARAMS,
    replace(common.N_EXPERT, fields={"hf": "moe_num_experts|num_experts"}),
    replace(common.N_EXPERT_USED, fields={"hf": "moe_k|num_experts_per_tok"}),
    replace(routed.N_DENSE, fields={"hf": "moe_layer_start_index"}),
    HParam("sparse_step", "interleave_moe_layer_step", fields={"hf": "moe_layer_interval"}, check="0 < sparse_step",
           defaults=(Default(1, _HF, dialect="hf"),)),
    # GGUF has no word for dense blocks behind the last mixture; -1 is the last block, and so is any number beyond.
    HParam("sparse_end", None, ValueType.FLOAT32, {"hf": "moe_layer_end_index"}, required=False,
           check="sparse_end + 1 == 0 or n_layer <= sparse_end + 1"),
    # GGUF has no key for the least sum of weights that they are divided by; this one says so to whom it may concern.
    HParam("expert_norm_min", "expert_weights_norm_min", ValueType.FLOAT32, {"hf": "moe_norm_min"}, absent=NONE_SO_LOW),
    HParam("bias_there", None, ValueType.BOOL, required=False),
    HParam("bias_stated", None, ValueType.BOOL, {"hf": "moe_use_aux_free"}, required=False),
    HParam("chosen_by_bias", None, ValueType.BOOL, derive=ernie.chosen_by_bias, required=False),
    common.N_FF_EXP, replace(routed.N_SHARED, fields={"hf": "moe_num_shared_experts"}),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive="n_shared * n_ff_exp", absent=0,
           check="n_ff_shexp == n_shared * n_ff_exp"),
)

CHOOSES = "mlp.moe_statics.e_score_correction_bias"
SPARSE = "n_dense <= n and (n + 1) % sparse_step == 0"
ROLES = roles(
    tensors.embedding(),
    "output.bias when=biased == 1 : n_vocab | hf lm_head.bias",
    block(
        ernie.attention(),
        ernie.gated(when="n < n_dense or (n + 1) % sparse_step != 0"),
        tensors.experts(when=SPARSE),
        f"exp_probs_b.bias f32 when={SPARSE} and chosen_by_bias == 1 : 1 n_expert | hf {CHOOSES}",
        tensors.shared_experts("mlp.shared_experts.", width="n_ff_shexp", bias="biased == 1",
                               when=f"{SPARSE} and n_shared > 0"),
    ),
)

BETWEEN = Caveat(
    "sparse_step != 1 and n_dense < n_layer and (n_dense + 1 < n_layer or n_layer % sparse_step != 0)",
    "llama.cpp does not load this model: from the first on, it wants experts in every block",
    unsupported_by="llama.cpp",
)

BOUND = Caveat(
    f"expert_norm_min > {NONE_SO_LOW}",
    "the weights of the chosen experts are divided by their sum or, where that is less, by {expert_norm_min}: written "
    "(expert_weights_norm_min), but llama.cpp does not read it",
    differs_in="llama.cpp",
)

CLASS = "Ernie4_5_MoeForCausalLM"
(HF,) = ernie.dialects(
    (*rope.CAVEATS, ernie.unloadable("ernie4_5-moe"), BETWEEN, BOUND),
    (
        IgnoredKey("moe_gate", "the best by score", ("topk",)),
        IgnoredKey("moe_capacity moe_aux_loss_lambda moe_*_loss_lambda", "used in training only"),
    ),
)

SPEC = Architecture(
    name="ernie4_5-moe", runtimes=("llama.cpp",),
    display_name="ERNIE 4.5 MoE",
    hf_classes=(CLASS,),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        replace(HF, fixed={"bias_there": True}),
        replace(
            HF, name="unbiased", names="hf", fields="hf", fixed={"bias_there": False}, classes=(CLASS,),
            forbidden_tensors=(f"*.{CHOOSES}",),
        ),
    ),
    recipe={"rope": "pairs", "expert_norm": True},
)
SPEC = half.with_base(SPEC, "Ernie4_5_MoeModel")
