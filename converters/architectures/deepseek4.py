"""DeepSeek V4: several streams of states; one key for all heads, which is its value, too; beside the last tokens keys
that many tokens were compressed into, chosen by an indexer or all of them; experts chosen by the token in the first
blocks, else by scores √softplus with a bias.

Sources: transformers `modeling_deepseek_v4.py`; llama.cpp `src/models/deepseek4.cpp`, `conversion/deepseek.py`. What
transformers saves has DeepSeek's own names but for those of the whole model: both are read. A block that predicts
further tokens (`mtp.0.`) mixes its streams by tensors of its own, which have the names of the decoder's in GGUF: it is
a file of its own (`--mtp-only`), as in `conversion/deepseek.py`. Its definition: DeepSeek's `inference/model.py`,
`MTPBlock`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek4 as own
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _streams as streams
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.columns import SideBySide
from ggferry.converters.schema.layouts.values import Whole
from ggferry.converters.schema.roles import block, roles, varied

F32, BOOL = common.F32, common.BOOL
_HF = "transformers' default"

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, *nextn.counted((common.N_LAYER,)), common.N_HEAD,
    HParam("n_head_kv", "attention.head_count_kv", fields={"hf": "num_key_value_heads"}, check="n_head_kv == 1",
           defaults=(Default(1, _HF, dialect="hf"),)),
    HParam("head_dim", "attention.key_length", fields={"hf": "head_dim"}),
    HParam("head_dim_v", "attention.value_length", derive="head_dim", check="head_dim_v == head_dim"),
    HParam("q_rank", "attention.q_lora_rank", fields={"hf": "q_lora_rank"}, check="0 < q_rank"),
    replace(common.RMS_EPS, defaults=(Default(1e-6, _HF, dialect="hf"),)),
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa"),
    *own.RATIOS, *own.ROTARY,
    HParam("out_groups", "attention.output_group_count", fields={"hf": "o_groups"},
           check="0 < out_groups and n_head % out_groups == 0"),
    HParam("out_rank", "attention.output_lora_rank", fields={"hf": "o_lora_rank"}),
    *index.HPARAMS[1:],
    common.N_EXPERT, common.N_EXPERT_USED,
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_intermediate_size|intermediate_size"}),
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, check="n_shared == 1",
           defaults=(Default(1, _HF, dialect="hf"),)),
    replace(routed.SCALE, required=True, defaults=(Default(1.5, _HF, dialect="hf"),)),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, words={True: True},
           check="expert_norm == 1", defaults=(Default(True, _HF, dialect="hf"),)),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "scoring_func"}, words={"sqrtsoftplus": 4},
           check="expert_gating == 4", defaults=(Default(4, _HF, dialect="hf"),)),
    *own.HASHED,
    HParam("limit", None, F32, {"hf": "swiglu_limit"}, required=False, check="0 <= limit", unrepresentable=0.0,
           defaults=(Default(10.0, _HF, dialect="hf"),)),
    limits.of_experts(limits.everywhere("limit", "n_blocks"), required=True, blocks="n_blocks"),
    limits.of_shared(limits.everywhere("limit", "n_blocks"), blocks="n_blocks", implied=limits.of_the_others),
    streams.COUNT, streams.EPSILON, streams.ITERATIONS,
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)

COMPRESSOR = """
attn_compressor_kv.weight       : series*head_dim n_embd | hf attn.compressor.wkv.weight
attn_compressor_gate.weight     : series*head_dim n_embd | hf attn.compressor.wgate.weight
attn_compressor_ape.weight f32  : ratio series*head_dim  | hf attn.compressor.ape
attn_compressor_norm.weight f32 : head_dim               | hf attn.compressor.norm.weight
"""
INDEXER = """
indexer.proj.weight                : index_heads n_embd           | hf attn.indexer.weights_proj.weight
indexer.attn_q_b.weight            : index_heads*index_dim q_rank | hf attn.indexer.wq_b.weight
indexer_compressor_kv.weight       : series*index_dim n_embd      | hf attn.indexer.compressor.wkv.weight
indexer_compressor_gate.weight     : series*index_dim n_embd      | hf attn.indexer.compressor.wgate.weight
indexer_compressor_ape.weight f32  : ratio series*index_dim       | hf attn.indexer.compressor.ape
indexer_compressor_norm.weight f32 : index_dim                    | hf attn.indexer.compressor.norm.weight
"""
_DECODER = roles(
    tensors.embedding(output="head"),
    streams.head("model.hc_head.hc_"),
    block(
        tensors.norm("attn_norm", "attn_norm"),
        own.SINKS,
        own.ATTENTION,
        roles(COMPRESSOR, when="ratio > 0"),
        roles(INDEXER, when=f"ratio == {own.SPARSE}"),
        streams.connections("hc_attn_", "hc_ffn_", "(2+n_streams)*n_streams", 3),
        tensors.norm("ffn_norm", "ffn_norm"),
        tensors.experts("ffn.experts.{e}.", "ffn.gate", own.PARTS),
        roles("ffn_gate_tid2eid.weight : n_vocab n_expert_used | hf ffn.gate.tid2eid @ids", when="n < n_hash",
              ids=Whole(32)),
        tensors.selection_bias("ffn.gate.bias", when="n_hash <= n"),
        "exp_probs_b_vl.bias f32 optional : n_expert | hf ffn.gate.bias_vl",
        tensors.shared_experts("ffn.shared_experts.", own.PARTS, width="n_ff_exp"),
    ),
)
LAYER = "model.layers.{n}."
FURTHER = """
nextn.eh_proj.weight              : n_embd 2*n_embd | alone e_proj.weight h_proj.weight @beside
nextn.enorm.weight f32            : n_embd          | alone enorm.weight
nextn.hnorm.weight f32            : n_embd          | alone hnorm.weight
nextn.shared_head_norm.weight f32 : n_embd          | alone norm.weight
"""
MIXED = """
output_hc_fn.weight    mtp.hc_head_fn
output_hc_base.weight  mtp.hc_head_base
output_hc_scale.weight mtp.hc_head_scale
"""
ROLES = roles(
    varied(_DECODER, "alone", "hf", MIXED),
    block(FURTHER, layer={"alone": LAYER}, when="n >= n_layer", beside=SideBySide()),
)
CAVEATS = (
    rope.BETAS,
    Caveat("n_streams != 4", "llama.cpp stops: it computes with four streams, and here they are {n_streams}",
           unsupported_by="llama.cpp"),
    index.WIDTH,
)

HF = Dialect(
    "hf",
    drops=(
        Drop("model.mtp.*", "predicts further tokens for speculative decoding: no part of the decoder"),
        Drop(f"{LAYER}ffn.gate.bias", "experts are chosen by the token there", when="n < n_hash_stated"),
        *common.DROPS, *half.drop_vision("vision.*", "aligner.*", "image_*"),
    ),
    renames=(
        ("lm_head.", "head."),
        ("model.embed.", "model.embed_tokens."),
        ("model.hc_head_", "model.hc_head.hc_"),
        (f"{LAYER}attn.kv_norm.", f"{LAYER}attn.norm."),
    ),
    caveats=CAVEATS,
    ignored_keys=(
        common.UNBIASED,
        IgnoredKey("vision_*", "of the vision half, dropped"),
        nextn.IGNORED_KEYS,
        IgnoredKey("rope_parameters.*.partial_rotary_factor", "said beside them", follows="rope_fraction"),
    ),
)

SPEC = Architecture(
    name="deepseek4", runtimes=("llama.cpp",),
    display_name="DeepSeek V4",
    hf_classes=("DeepseekV4ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="alone", fields="hf",
            appended_blocks=(
                *((f"{at}mtp.{{n}}.", LAYER) for at in ("", "model.")),
                *((f"{at}mtp.0.hc_head_", "mtp.hc_head_") for at in ("", "model.")),
            ),
            drops=(Drop("model.hc_head.hc_*", "the decoder's: the block has some of its own"), *HF.drops[1:]),
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={"computation": "streams", "indexer_rope": "pairs", "indexer_turns": "last", "routing": "root_softplus"},
    caveats=(common.own_output("deepseek4"), nextn.ONE),
)
