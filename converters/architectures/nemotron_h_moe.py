"""Nemotron 3: Nemotron-H whose feed-forward blocks are experts, scored by sigmoid and chosen with a bias, beside a
shared network; in Super they work in a narrower space, and in Puzzle every block says how wide its experts are and how
many of them a token passes. A block that predicts further tokens is attention and experts; Puzzle's are of another
width, and dropped. Sources: `_nemotron_h`; NVIDIA TensorRT-LLM `modeling_nemotron_h.py`, vLLM `nemotron_h_mtp.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nemotron_h as nemotron
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

HPARAMS = (
    *nemotron.of_mixture(nemotron.HPARAMS),
    # llama.cpp's loader takes every block that feeds forward for one with experts.
    HParam("n_dense_branches", None, derive=nemotron.dense_branches, required=False, check="n_dense_branches == 0"),
    common.N_EXPERT,
    replace(common.N_EXPERT_USED, fields={"hf": "block_configs.num_experts_per_tok|num_experts_per_tok"}, null=0,
            length="n_layer", allow_scalar=True, check="n_expert_used <= n_expert"),
    replace(common.N_FF_EXP, fields={"hf": "block_configs.moe_intermediate_size|moe_intermediate_size"}, null=0,
            length="n_layer", allow_scalar=True),
    *nemotron.of_mixture((nemotron.N_FF,)),
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, absent=0),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "moe_shared_expert_intermediate_size"}),
    HParam("n_latent", "moe_latent_size", fields={"hf": "moe_latent_size"}, null=0, absent=0),
    HParam("expert_width", None, derive=nemotron.expert_width),
    HParam("expert_groups", "expert_group_count", fields={"hf": "n_group"}, defaults=(Default(1, "no groups"),),
           check="expert_groups == 1"),
    HParam("expert_groups_used", "expert_group_used_count", fields={"hf": "topk_group"},
           defaults=(Default(1, "no groups"),), check="expert_groups_used == 1"),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, absent=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, unrepresentable=0.0,
           defaults=(Default(1.0, "transformers' default", dialect="hf"), Default(1.0, "what readers take"))),
)

EXPERTS = """
ffn_gate_inp.weight f32 : n_expert n_embd                | hf mixer.gate.weight
exp_probs_b.bias        : n_expert                       | hf mixer.gate.e_score_correction_bias
ffn_latent_down.weight when=n_latent > 0 : n_latent n_embd | hf mixer.fc1_latent_proj.weight
ffn_latent_up.weight when=n_latent > 0   : n_embd n_latent | hf mixer.fc2_latent_proj.weight
ffn_down_exps.weight    : n_expert expert_width n_ff_exp | hf mixer.experts.{e}.down_proj.weight @stack
ffn_up_exps.weight      : n_expert n_ff_exp expert_width | hf mixer.experts.{e}.up_proj.weight @stack
ffn_down_shexp.weight   : n_embd n_ff_shexp              | hf mixer.shared_experts.down_proj.weight
ffn_up_shexp.weight     : n_ff_shexp n_embd              | hf mixer.shared_experts.up_proj.weight
"""

HF = Dialect(
    "hf",
    conventions=nemotron.CONVENTIONS,
    drops=(replace(nextn.DROP, pattern=f"{nemotron.LAYER}*"), *nemotron.DROPS),
    caveats=(nemotron.SHORTEST,),
    classes=("NemotronHForCausalLM",),
    appended_blocks=nemotron.APPENDED,
    export_renames=nemotron.EXPORTED,
    renames=nemotron.RENAMES,
    ignored_keys=nemotron.IGNORED_KEYS,
)

SPEC = Architecture(
    name="nemotron_h_moe", runtimes=("llama.cpp",),
    display_name="Nemotron 3",
    hparams=HPARAMS,
    roles=roles(
        nemotron.frame(),
        block(
            nemotron.mixers(),
            roles(tensors.norm("post_attention_norm", "post_attention_layernorm"), when="n >= n_layer"),
            roles(EXPERTS, when="n_ff > 0", stack=Stack()),
            nextn.wiring(),
            roles(tensors.norm("nextn.shared_head_norm", "shared_head.norm"), when="n >= n_layer"),
            layer=nemotron.LAYER,
        ),
    ),
    dialects=(
        HF,
        replace(
            HF, name="puzzle", names="hf", fields="hf", classes=("NemotronHPuzzleForCausalLM",), appended_blocks=(),
            export_renames=(), drops=nemotron.DROPS,
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={**nemotron.RECIPE, "routing": "sigmoid", "ffn_norm": "post_attention_norm"},
    caveats=(nextn.ONE, nemotron.CENTERED),
)
