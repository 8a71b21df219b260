"""Hunyuan 3: queries and keys normed head by head; experts scored by sigmoid and chosen with a bias, beside shared.

Source: llama.cpp `src/models/hy-v3.cpp`, transformers `modeling_hy_v3.py`. GGUF says by the tensors which blocks are
dense.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
_HF = "transformers' default"
HPARAMS = (
    *nextn.counted(common.SIZES), replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)),
    replace(rope.BASE, defaults=(Default(11158840.0, _HF, dialect="hf"), *rope.BASE.defaults)), *rope.ROPE[1:],
    HParam("sparse", None, BOOL, {"hf": "mlp_layer_types"}, length="n_layer", words={"dense": False, "sparse": True},
           required=False),
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_shared", None, fields={"hf": "num_shared_experts"}, required=False,
           defaults=(Default(1, _HF, dialect="hf"),)),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive="n_shared * n_ff_exp",
           check="n_ff_shexp == n_shared * n_ff_exp"),
    *routed.NO_GROUPS,
    replace(routed.SCALE, fields={"hf": "router_scaling_factor"}, defaults=(Default(2.826, _HF, dialect="hf"),)),
    replace(routed.NORM, fields={"hf": "route_norm"}, words={True: True}),
    replace(routed.SIGMOID, fields={}), common.TIED, *common.BIASES, common.SILU,
)

SPARSE = "sparse == 1"
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.biased_attention(),
        tensors.qk_norm(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="sparse == 0"),
        tensors.experts(router="mlp.router.gate", when=SPARSE),
        f"exp_probs_b when={SPARSE} : n_expert | hf mlp.expert_bias",
        tensors.shared_experts("mlp.shared_mlp.", width="n_ff_shexp", when=SPARSE),
        nextn.tensors(),
    ),
)

SPEC = Architecture(
    name="hy_v3", runtimes=("llama.cpp",),
    display_name="Hunyuan 3",
    hf_classes=("HYV3ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(nextn.DROP, *common.DROPS),
            caveats=(*rope.CAVEATS, common.biased_output("hy_v3")),
            renames=(("model.layers.{n}.final_layernorm.", "model.layers.{n}.shared_head.norm."),),
            ignored_keys=(
                common.UNBIASED,
                routed.NEXT_COUNT,
                IgnoredKey("enable_moe_fp32_combine enable_*_fp32", "how it is computed, not what"),
                IgnoredKey("first_k_dense_replace", "the tensors say it"),
                IgnoredKey("first_k_dense_replace", "the blocks before the first with experts",
                    follows="@first_sparse"),
                IgnoredKey("moe_router_use_sigmoid moe_router_enable_expert_bias qk_norm", "always", (True,)),
            ),
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid"},
    blocks=nextn.BLOCKS,
)
