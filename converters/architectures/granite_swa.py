"""Granite with windows in all blocks but every fourth, and a sink in every head; dense, or a mixture beside a network
that all tokens pass.

Sources: llama.cpp `src/models/granite-swa.cpp`, `conversion/granite.py`; transformers `modeling_granite{,moe}_swa.py`.
The tool does not read `layer_rope_theta`, by which transformers says which blocks turn nothing.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _granite as granite
from ggferry.converters.architectures import _granite_swa as swa
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *swa.ROTATED, rope.N_ROT, rope.LLAMA3_KIND, *rope.SCALING, rope.LOW, rope.HIGH,
    *swa.WINDOWS, common.N_WINDOWS, *granite.SCALES, common.N_EXPERT, common.N_EXPERT_USED,
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", fields={"hf": "shared_intermediate_size"}, absent=0),
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)

SHARED = "n_expert > 0 and n_ff_shexp > 0"
EXPERTS = """
ffn_gate_inp.weight f32 : n_expert n_embd        | hf block_sparse_moe.router.weight
ffn_gate_up_exps.weight : n_expert 2*n_ff n_embd | hf block_sparse_moe.experts.gate_up_proj
ffn_down_exps.weight    : n_expert n_embd n_ff   | hf block_sparse_moe.experts.down_proj
"""
ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.paired_attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
        "attn_sinks.weight f32 : n_head | hf self_attn.sinks",
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(bias="mlp_bias == 1", when="n_expert == 0"),
        roles(EXPERTS, when="n_expert > 0"),
        tensors.linear("ffn_up_shexp", "2*n_ff_shexp n_embd", "shared_mlp.input_linear", when=SHARED),
        tensors.linear("ffn_down_shexp", "n_embd n_ff_shexp", "shared_mlp.output_linear", when=SHARED),
    ),
)
LAYER = "model.layers.{n}.block_sparse_moe."

SPEC = Architecture(
    name="granite_swa", runtimes=("llama.cpp",),
    display_name="Granite with windows",
    hf_classes=("GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves"},
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.NO_WINDOW),
            renames=(
                (f"{LAYER}input_linear.weight", f"{LAYER}experts.gate_up_proj"),
                (f"{LAYER}output_linear.weight", f"{LAYER}experts.down_proj"),
                (f"{LAYER}router.layer.weight", f"{LAYER}router.weight"),
            ),
        ),
    ),
    recipe={"logit_scale": "divide", "routing": "chosen"},
)
