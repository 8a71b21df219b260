"""gpt-oss: every other block has a window; a sink a head takes a share of attention; experts with biases, their gates
clamped.

Source: llama.cpp `src/models/openai-moe.cpp`, `conversion/gpt_oss.py`, transformers `modeling_gpt_oss.py`. Published
checkpoints hold the experts as MXFP4, a row an output; transformers saves a column an output. Gate and up alternate in
both. The norm before the feed-forward is called `post_attention_norm`.

Programs that quantize the experts first make a linear layer of each: llm-compressor with gate and up apart, AMD Quark
with both in one (vLLM a6b6cfaa `model_executor/models/gpt_oss.py`, `_load_weights_quark`), unsloth in two lists, with
or without a layer within the router (unsloth-zoo cc050d19 `temporary_patches/gpt_oss.py`, `GptOssExpertsBnb4bit`,
`GptOssTopKRouterBnb4bit`, which reads either).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt_oss as gpt_oss
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import window_layers
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.columns import EveryColumn
from ggferry.converters.schema.layouts.parts import Every, Stack, Transpose
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL

# GGUF has no key for a yarn range that is not rounded; this one says so to whom it may concern.
TRUNCATE = HParam(
    "rope_truncate", "rope.scaling.yarn_truncate", BOOL, {"hf": rope.scaling_place("truncate")}, absent=True
)
WINDOWS = (
    replace(common.N_SWA, absent=None), common.LAYER_WINDOWS,
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=window_layers, implied="each n % 2 == 0",
           length="n_layer"),
)
HPARAMS = (
    *common.SIZES, common.RMS_EPS, rope.BASE, rope.N_ROT, rope.KIND,
    *(TRUNCATE if param is rope.TRUNCATE else param for param in rope.SCALING), *WINDOWS, common.N_EXPERT,
    replace(common.N_EXPERT_USED, fields={"hf": "num_experts_per_tok|experts_per_token"}),
    replace(common.N_FF_EXP, fields={"hf": "intermediate_size"}),
    HParam("swiglu_limit", None, F32, {"hf": "swiglu_limit"}, words={7.0: 7.0}, required=False),
    HParam("swiglu_alpha", None, F32, {"hf": "swiglu_alpha"}, words={1.702: 1.702}, required=False),
    common.ATTENTION_BIAS, HParam("biases_fit", None, derive=gpt_oss.biased, required=False), common.TIED, common.SILU,
)

GATE, UP = Every(2, 0), Every(2, 1)
ROLES = varied(
    roles(
        tensors.embedding(),
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.attention(bias=True, output_bias=True),
            tensors.norm("post_attention_norm", "post_attention_layernorm"),
            """
            attn_sinks.weight f32   : n_head                   | hf self_attn.sinks
            ffn_gate_inp.weight f32 : n_expert n_embd          | hf mlp.router.weight
            ffn_gate_inp.bias f32   : n_expert                 | hf mlp.router.bias
            ffn_gate_exps.weight    : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @gate
            ffn_gate_exps.bias f32  : n_expert n_ff_exp        | hf mlp.experts.gate_up_proj_bias @gates
            ffn_down_exps.weight    : n_expert n_embd n_ff_exp | hf mlp.experts.down_proj @rotated
            ffn_down_exps.bias f32  : n_expert n_embd          | hf mlp.experts.down_proj_bias
            ffn_up_exps.weight      : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @up
            ffn_up_exps.bias f32    : n_expert n_ff_exp        | hf mlp.experts.gate_up_proj_bias @ups
            """,
            gate=Then(Transpose(), GATE), up=Then(Transpose(), UP), rotated=Transpose(), gates=EveryColumn(2, 0),
            ups=EveryColumn(2, 1),
        ),
    ),
    "mxfp4", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.gate_up_proj @gate
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_proj
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.gate_up_proj @up
    """,
    gate=GATE, up=UP,
)
ROLES = varied(
    ROLES, "apart", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.{e}.gate_proj.weight @stacked
    blk.{n}.ffn_gate_exps.bias   model.layers.{n}.mlp.experts.{e}.gate_proj.bias @stacked
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.{e}.down_proj.weight @stacked
    blk.{n}.ffn_down_exps.bias   model.layers.{n}.mlp.experts.{e}.down_proj.bias @stacked
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.{e}.up_proj.weight @stacked
    blk.{n}.ffn_up_exps.bias     model.layers.{n}.mlp.experts.{e}.up_proj.bias @stacked
    """,
    stacked=Stack(),
)
JOINED = {
    "stacked": Stack(), "gate": Then(Stack(), GATE), "up": Then(Stack(), UP),
    "gates": Then(Stack(), EveryColumn(2, 0)), "ups": Then(Stack(), EveryColumn(2, 1)),
}
ROLES = varied(
    ROLES, "joined", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.{e}.gate_up_proj.weight @gate
    blk.{n}.ffn_gate_exps.bias   model.layers.{n}.mlp.experts.{e}.gate_up_proj.bias @gates
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.{e}.down_proj.weight @stacked
    blk.{n}.ffn_down_exps.bias   model.layers.{n}.mlp.experts.{e}.down_proj.bias @stacked
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.{e}.gate_up_proj.weight @up
    blk.{n}.ffn_up_exps.bias     model.layers.{n}.mlp.experts.{e}.gate_up_proj.bias @ups
    """,
    **JOINED,
)
ROLES = varied(
    ROLES, "listed", "hf",
    """
    blk.{n}.ffn_gate_exps.weight model.layers.{n}.mlp.experts.gate_up_projs.{e}.weight @gate
    blk.{n}.ffn_gate_exps.bias   model.layers.{n}.mlp.experts.gate_up_projs.{e}.bias @gates
    blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_projs.{e}.weight @stacked
    blk.{n}.ffn_down_exps.bias   model.layers.{n}.mlp.experts.down_projs.{e}.bias @stacked
    blk.{n}.ffn_up_exps.weight   model.layers.{n}.mlp.experts.gate_up_projs.{e}.weight @up
    blk.{n}.ffn_up_exps.bias     model.layers.{n}.mlp.experts.gate_up_projs.{e}.bias @ups
    """,
    **JOINED,
)
ROLES = varied(
    ROLES, "linear-router", "listed",
    """
    blk.{n}.ffn_gate_inp.weight model.layers.{n}.mlp.router.linear.weight
    blk.{n}.ffn_gate_inp.bias   model.layers.{n}.mlp.router.linear.bias
    """,
)

CAVEATS = (
    common.NO_WINDOW,
    Caveat("rope_scaling == 'yarn' and rope_truncate == 0",
           "llama.cpp runs this differently: it rounds the range over which yarn passes from one scale to the other, "
           "and this model does not (rope.scaling.yarn_truncate, which it does not read)",
           differs_in="llama.cpp"),
    common.own_output("gpt-oss"),
)

_HF = Dialect(
    "hf",
    conventions={"expert_rows": False, "gate_up": "alternating"},
    drops=common.DROPS,
    caveats=rope.CAVEATS,
    ignored_keys=(
        IgnoredKey("initial_context_length", "repeats the context before yarn stretched it", follows="rope_original"),
    ),
)

SPEC = Architecture(
    name="gpt-oss", runtimes=("llama.cpp",),
    display_name="gpt-oss",
    hf_classes=("GptOssForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        _HF,
        replace(
            _HF,
            name="mxfp4",
            fields="hf",
            conventions={"gate_up": "alternating"},
            required_tensors=("*.mlp.experts.gate_up_proj_blocks",),
        ),
        *(
            replace(
                _HF, name=name, fields="hf", conventions=conventions,
                required_tensors=("*.self_attn.sinks", f"*.mlp.{tensor}.*"),
            )
            for name, conventions, tensor in (
                ("apart", Conventions(), "experts.0.gate_proj"),
                ("joined", Conventions(gate_up="alternating"), "experts.0.gate_up_proj"),
                ("linear-router", Conventions(gate_up="alternating"), "router.linear"),
                ("listed", Conventions(gate_up="alternating"), "experts.gate_up_projs.0"),
            )
        ),
    ),
    recipe={"rope": "halves", "routing": "chosen", "glu": "clamped", "ffn_norm": "post_attention_norm"},
    caveats=CAVEATS,
)
