"""GLM-5.3 Flash: several streams of states; blocks of delta attention with a bounded gate, and some of latent attention
without positions, to pools of tokens that an indexer chooses; experts scored by sigmoid and chosen with a bias; all
gates and ups bounded.

Sources: llama.cpp `src/models/glm5-next.cpp`, `conversion/glm.py`; transformers `modeling_glm5_next.py`. Of the whole
model the text half is taken. A block that predicts further tokens attends by an indexer of its own, and has one state
in place of several streams (`glm5-next.cpp`, `graph_mtp`).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _kimi as kimi
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _streams as streams
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import low_rank
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles

F32, BOOL = common.F32, common.BOOL
_HF = "transformers' default"
_IN = "linear_attn_config."

HPARAMS = (
    *nextn.counted(common.SIZES[:6]),
    HParam("attends", None, BOOL, {"hf": "layer_types"}, length="n_layer", required=False,
           words={"linear_attention": False, "indexed_attention": True, "full_attention": True}),
    HParam("n_head_kv", "attention.head_count_kv", kimi.INT32, derive=nextn.extended(kimi.heads_kv, 1),
           length="n_blocks"),
    deepseek.QUERIES, deepseek.WIDTHS[0],
    HParam("n_rot", "rope.dimension_count", fields={"hf": "qk_rope_head_dim"}, check="n_rot == 0",
           defaults=(Default(0, _HF, dialect="hf"),)),
    deepseek.WIDTHS[2], replace(deepseek.WIDTHS[3], check="0 < head_dim_mla"), *deepseek.WIDTHS[4:],
    replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)),
    HParam("index_eps", "attention.layer_norm_epsilon", F32, defaults=(Default(1e-6, "a constant of the model"),)),
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": f"{_IN}short_conv_kernel_size|linear_conv_kernel_dim"}),
    HParam("kda_dim", "kda.head_dim", fields={"hf": f"{_IN}head_dim|linear_head_dim"}),
    HParam("kda_heads", None, fields={"hf": f"{_IN}num_heads|linear_num_heads"}, required=False,
           check="kda_heads == n_head"),
    HParam("kda_safe", None, BOOL, {"hf": f"{_IN}safe_gate"}, words={True: True}, required=False),
    HParam("kda_lower", "kda.gate_lower_bound", F32, {"hf": f"{_IN}gate_lower_bound|linear_lower_bound"}, null=0.0,
           absent=0.0, unrepresentable=0.0, check="kda_lower <= 0", defaults=(Default(-5.0, _HF, dialect="hf"),)),
    HParam("q_width", None, derive=kimi.query_widths, length="n_blocks"),
    HParam("v_width", None, derive=kimi.value_widths, length="n_blocks"),
    HParam("unturned", None, BOOL, {"hf": "mla_use_nope"}, words={True: True}, required=False),
    *deepseek.DENSE[:2], replace(deepseek.DENSE[2], defaults=()), common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP, HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, check="0 < n_shared"),
    *routed.NO_GROUPS, replace(routed.SCALE, defaults=(Default(2.5, _HF, dialect="hf"),)), routed.NORM,
    replace(routed.SIGMOID, required=True),
    HParam("limit", None, F32, {"hf": "swiglu_limit"}, required=False, check="0 <= limit", unrepresentable=0.0,
           defaults=(Default(10.0, _HF, dialect="hf"),)),
    limits.of_experts(limits.everywhere("limit", "n_blocks"), blocks="n_blocks"),
    limits.of_shared(limits.everywhere("limit", "n_blocks"), blocks="n_blocks", implied=limits.of_the_others),
    replace(streams.COUNT, check="n_streams == 4"), streams.EPSILON, streams.ITERATIONS,
    # Normed keys of one number are all alike: which of them is chosen would be chance.
    *index.HPARAMS[1:2], replace(index.HPARAMS[2], check="1 < index_dim"), index.HPARAMS[3],
    HParam("index_pool", "attention.indexer.kpool", fields={"hf": "index_kpool"},
           check="1 < index_pool and index_top_k % index_pool == 0"),
    HParam("index_tail", "attention.indexer.kpool_select_tail", BOOL, {"hf": "index_kpool_always_select_tail"},
           words={True: True}, check="index_tail == 1", defaults=(Default(True, _HF),)),
    *index.SHARED,
    HParam("connected", None, BOOL, {"hf": "mhc"}, words={True: True}, required=False),
    common.ALL_SPARSE[0], common.TIED, common.ATTENTION_BIAS, common.SILU,
)

FULL = "n_head_kv > 0"
CHOOSES = f"(index_full == 1 or n >= n_layer) and {FULL}"
MIXERS = f"""
attn_q.weight when=n_head_kv==0      : n_head*q_width n_embd      | hf self_attn.q_proj.weight
attn_q_a.weight when={FULL}          : q_rank n_embd              | hf self_attn.q_a_proj.weight
attn_q_a_norm.weight f32 when={FULL} : q_rank                     | hf self_attn.q_a_layernorm.weight
attn_q_b.weight when={FULL}          : n_head*head_dim_mla q_rank | hf self_attn.q_b_proj.weight
attn_output.weight                   : n_embd n_head*v_width      | hf self_attn.o_proj.weight
"""
POOLS = """
indexer_compressor_gate.weight f32 : index_dim n_embd     | hf self_attn.indexer.index_kpool_compress_gate
indexer_compressor_ape.weight f32  : index_pool index_dim | hf self_attn.indexer.index_kpool_compress_ape
"""
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        MIXERS,
        low_rank(when=FULL),
        kimi.delta_attention(rate=Then(Reshape(("n_head",), back=("n_head",)), NEG_EXP), shape="n_head"),
        index.indexer(when=CHOOSES),
        roles(POOLS, when=CHOOSES),
        roles(streams.connections("hc_attn_", "hc_ffn_", "(2+n_streams)*n_streams", 3), when="n < n_layer"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        routed.dense_or_routed(),
        nextn.tensors(),
    ),
)

SPEC = Architecture(
    name="glm5-next", runtimes=("llama.cpp",),
    display_name="GLM-5.3 Flash",
    hf_classes=("Glm5NextForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "decay": "log"},
            drops=(*nextn.dropped(deepseek.DROPS), *half.drop_vision("*visual.*")),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            caveats=(replace(index.WIDTH, when="index_dim % 64 != 0"), deepseek.LOW_RANK),
            ignored_keys=(
                common.UNBIASED, half.VISION_KEYS,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one",
                    follows="n_head"),
                IgnoredKey("qk_head_dim", "as wide as what does not turn", follows="head_dim_mla"),
                IgnoredKey("head_dim", "nothing turns, or that of delta attention"),
                IgnoredKey("linear_attn_config.*", "the list of blocks says it"),
                nextn.IGNORED_KEYS,
                IgnoredKey("rope_parameters rope_parameters.* rope_theta rope_scaling", "nothing turns"),
                IgnoredKey("topk_method", "chosen with a bias", ("noaux_tc",)),
            ),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={
        "computation": "streams", "attention": "latent", "rope": "none", "indexer_rope": "none", "routing": "sigmoid",
        "decay": "rate",
    },
    caveats=(common.own_output("glm5-next"), nextn.ONE),
)
