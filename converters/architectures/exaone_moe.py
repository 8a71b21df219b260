"""K-EXAONE: EXAONE 4's attention with norms before both branches; experts scored by sigmoid and chosen with a bias.

Source: llama.cpp `src/models/exaone-moe.cpp`, transformers `modeling_exaone_moe.py`. What predicts further tokens is
dropped.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _exaone as exaone
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.LLAMA3_ROPE, replace(common.N_SWA, absent=None),
    *exaone.WINDOWS,
    HParam("sparse_layers", None, ValueType.BOOL, {"hf": "mlp_layer_types|is_moe_layer"}, length="n_layer",
           words={"dense": False, "sparse": True, False: False, True: True}, required=False),
    *routed.LISTED_DENSE, *routed.HPARAMS[1:],
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive="n_shared * n_ff_exp", required=False,
           check="n_ff_shexp == n_shared * n_ff_exp"),
    common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        tensors.qk_norm(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        routed.dense_or_routed("mlp.e_score_correction_bias", "n_ff_shexp"),
    ),
)

SPEC = Architecture(
    name="exaone-moe", runtimes=("llama.cpp",),
    display_name="K-EXAONE",
    hf_classes=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(routed.NEXT_TOKENS, Drop("mtp.*", routed.NEXT_TOKENS.reason), *common.DROPS),
            caveats=(*rope.CAVEATS, common.own_output("exaone-moe"), common.NO_WINDOW),
            ignored_keys=(common.UNBIASED, routed.NEXT_COUNT, IgnoredKey("mtp_*", "of what predicts further tokens")),
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid"},
)
