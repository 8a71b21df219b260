"""How DeepSeek-V3's kin route: experts scored by sigmoid, chosen with a bias, in groups, weighed, beside shared ones;
the first blocks dense, further ones that only speculative decoding uses.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures._tensors import experts, gated, selection_bias, shared_experts
from ggferry.converters.schema.architecture import Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.block_patterns import leading_dense
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL


def dense(values: Values) -> int:
    """leading_dense_block_count: as listed, else as many as are said."""
    return leading_dense(values) if "sparse_layers" in values else int(values["n_dense_stated"])


N_DENSE = HParam("n_dense", "leading_dense_block_count", fields={"hf": "first_k_dense_replace"},
                 defaults=(Default(0, "no block is said to be dense"),))
# Where a list says which blocks are dense, transformers does not read the number beside it.
LISTED_DENSE = (
    HParam("n_dense_stated", None, fields=N_DENSE.fields, required=False), replace(N_DENSE, fields={}, derive=dense),
)
N_SHARED = HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts|num_shared_experts"}, null=0,
                  own_only=True, defaults=(Default(0, "none is shared"),))
GROUPS = (
    HParam("expert_groups_stated", None, fields={"hf": "n_group"}, required=False,
           defaults=(Default(1, "no groups", dialect="hf"),)),
    HParam("expert_groups_used_stated", None, fields={"hf": "topk_group"}, required=False,
           defaults=(Default(1, "no groups", dialect="hf"),)),
    HParam("expert_groups", "expert_group_count", derive="@chosen_groups", required=False,
           check="0 < expert_groups and n_expert % expert_groups == 0"),
    HParam("expert_groups_used", "expert_group_used_count", derive="@expert_groups_used", required=False,
           check="0 < expert_groups_used and expert_groups_used <= expert_groups"
           " and n_expert_used * expert_groups <= expert_groups_used * n_expert"),
)
NO_GROUPS = (
    HParam("expert_groups", None, fields={"hf": "n_group|num_expert_groups"}, words={1: 1}, required=False),
    HParam("expert_groups_used", None, fields={"hf": "topk_group|num_limited_groups"}, words={1: 1}, required=False),
)
SCALE = HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, unrepresentable=0.0,
               required=False, defaults=(Default(1.0, "transformers' default", dialect="hf"),))
NORM = HParam(
    "expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"},
    defaults=(Default(True, "transformers' default", dialect="hf"), Default(False, "what readers take")),
)
SIGMOID = HParam("expert_gating", "expert_gating_func", fields={"hf": "scoring_func"}, words={"sigmoid": 2},
                 defaults=(Default(2, "the family's", dialect="hf"),), own_only=True)
HPARAMS = (
    N_DENSE, common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP, N_SHARED, *GROUPS, SCALE, NORM, SIGMOID,
)

NEXT_TOKENS = Drop(
    "model.layers.{n}.*",
    "predicts further tokens for speculative decoding: no part of the decoder",
    when="n >= n_layer",
)
NEXT_COUNT = IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped")


def dense_or_routed(
    bias: str = "mlp.gate.e_score_correction_bias", shared: str = "n_shared*n_ff_exp"
) -> tuple[Role, ...]:
    """Return the feed-forward half: dense in the first `n_dense` blocks; then experts, chosen with the bias of that
    name, beside `shared` ones (their width) where there are some."""
    routed = "n_dense <= n"
    return (
        *gated(when="n < n_dense"),
        *experts(when=routed),
        *selection_bias(bias, when=routed),
        *shared_experts("mlp.shared_experts.", width=shared, when=f"{routed} and n_shared > 0"),
    )
