"""Mellum 2 (JetBrains): queries and keys normed head by head; blocks with a window, which have a rotary base of their
own; experts in every block.

Source: llama.cpp `src/models/mellum.cpp`, transformers `modeling_mellum.py`.
"""


from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _laguna as laguna
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
HPARAMS = (
    *common.SIZES, common.RMS_EPS,
    *common.LISTED_WINDOWS,
    laguna.BASE, *rope.ROPE[1:], laguna.BASE_OF_WINDOWS, laguna.PLAIN_WINDOWS,
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("sparse_layers", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer", words={"sparse": True},
           required=False),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, absent=True,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    common.TIED, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(biased=True), tensors.experts())),
)

CAVEATS = (
    Caveat(
        "n_swa > 0 and (rope_base_swa != rope_base or rope_factor != 1)",
        "llama.cpp runs this differently: in mellum it turns all blocks by one base, {rope_base}, and stretches all; "
        "this model turns those with a window by {rope_base_swa}, as they are",
        unsupported_by="llama.cpp",
    ),
    Caveat("expert_norm == 0", "llama.cpp runs this differently: it makes the weights of the chosen experts sum to one "
           "in mellum", unsupported_by="llama.cpp"),
)

SPEC = Architecture(
    name="mellum", runtimes=("llama.cpp",),
    display_name="Mellum 2",
    hf_classes=("MellumForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(
                Drop("*mtp*", "predicts further tokens for speculative decoding: no part of the decoder"),
                *common.DROPS,
            ),
            caveats=(*rope.CAVEATS, common.own_output("mellum"), common.biased_output("mellum")),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("mtp_* num_mtp_layers num_nextn_predict_layers", "of what predicts further tokens"),
                IgnoredKey("use_sliding_window", "the list of blocks says it", (True,)),
                IgnoredKey("rope_parameters.*.partial_rotary_factor", "whole heads turn", (1, 1.0)),
            ),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=CAVEATS,
)
