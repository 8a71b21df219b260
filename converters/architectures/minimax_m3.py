"""MiniMax M3, the text half: MiniMax-M2's attention, which in blocks of experts looks at chosen blocks of tokens; dense
blocks first, then experts scored by sigmoid and chosen with a bias, beside a shared one.

Sources: llama.cpp `src/models/minimax-m3.cpp`, `conversion/minimax.py`, transformers `modeling_minimax_m3_vl.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _minimax as minimax
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.block_patterns import leading_dense
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles

BOOL, F32 = common.BOOL, common.F32
_SPARSE = "sparse_attention_config.sparse_"

HPARAMS = (
    *common.SIZES[:4], replace(common.N_FF, fields={"hf": "dense_intermediate_size"}), *common.SIZES[5:],
    common.RMS_EPS, rope.BASE, rope.FRACTION, rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("sparse_layers", None, BOOL, {"hf": "mlp_layer_types|moe_layer_freq"}, length="n_layer", required=False,
           words={"dense": False, "sparse": True, 0: False, 1: True}),
    replace(routed.N_DENSE, fields={}, derive=leading_dense),
    HParam("choosing_layers", None, BOOL, {"hf": f"layer_types|{_SPARSE}attention_freq"}, length="n_layer",
           words={"full_attention": False, "minimax_m3_sparse": True, 0: False, 1: True}, required=False),
    HParam("choosing_fits", None, derive=minimax.chooses_where_sparse, required=False),
    common.N_EXPERT, common.N_EXPERT_USED,
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "intermediate_size"}),
    HParam("n_ff_shexp", None, fields={"hf": "shared_intermediate_size"}, required=False),
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, derive="n_ff_shexp / n_ff_exp"),
    replace(routed.NORM, fields={}), routed.SCALE, routed.SIGMOID,
    HParam("index_heads", "attention.indexer.head_count", fields={"hf": f"index_n_heads|{_SPARSE}num_index_heads"},
           check="index_heads == n_head_kv"),
    HParam("index_width", "attention.indexer.key_length", fields={"hf": f"index_head_dim|{_SPARSE}index_dim"},
           check="n_rot <= index_width"),
    HParam("top_blocks", "attention.indexer.top_k", fields={"hf": f"index_topk_blocks|{_SPARSE}topk_blocks"},
           check="0 < top_blocks"),
    HParam("block_size", "attention.indexer.block_size", fields={"hf": f"index_block_size|{_SPARSE}block_size"},
           check="0 < block_size"),
    HParam("local_blocks", "attention.indexer.local_blocks", fields={"hf": f"index_local_blocks|{_SPARSE}local_block"}),
    HParam("reach", None, derive="top_blocks * block_size"),
    HParam("slope", None, F32, {"hf": "swiglu_alpha"}, words={1.702: 1.702}, required=False),
    HParam("bound", None, F32, {"hf": "swiglu_limit"}, words={7: 7.0}, required=False),
    HParam("activation", None, common.STRING, {"hf": "hidden_act"}, words={"silu": "silu", "swigluoai": "silu"},
           required=False),
    common.TIED,
)

SPARSE, MOE = "n_dense <= n", "block_sparse_moe."
ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE),
        tensors.attention(),
        tensors.qk_norm(layout=ADD_ONE),
        tensors.norm("ffn_norm", "post_attention_layernorm", layout=ADD_ONE),
        tensors.gated(when="n < n_dense"),
        tensors.experts(f"{MOE}experts.{{e}}.", f"{MOE}gate", ("w1", "w2", "w3"), when=SPARSE),
        tensors.selection_bias(f"{MOE}e_score_correction_bias", when=SPARSE),
        tensors.shared_experts(f"{MOE}shared_experts.", width="n_shared*n_ff_exp", when=SPARSE),
        tensors.linear("indexer.q_proj", "index_heads*index_width n_embd", "self_attn.index_q_proj", when=SPARSE),
        tensors.linear("indexer.k_proj", "index_width n_embd", "self_attn.index_k_proj", when=SPARSE),
        tensors.norm("indexer.q_norm", "self_attn.index_q_norm", width="index_width", layout=ADD_ONE, when=SPARSE),
        tensors.norm("indexer.k_norm", "self_attn.index_k_norm", width="index_width", layout=ADD_ONE, when=SPARSE),
    ),
)

HF = Dialect(
    "hf",
    conventions={"norm_offset": 1.0},
    drops=(
        routed.NEXT_TOKENS, Drop("model.mtp*", routed.NEXT_TOKENS.reason), *common.DROPS,
        *half.drop_vision("vision_tower.*", "multi_modal_projector.*", "patch_merge_mlp.*", "model.vision_tower.*",
                     "model.multi_modal_projector.*"),
    ),
    renames=half.RENAMES,
    caveats=rope.CAVEATS,
    ignored_keys=(
        common.UNBIASED,
        half.VISION_KEYS,
        IgnoredKey("use_qk_norm use_routing_bias use_gemma_norm", "always here", (True,)),
        IgnoredKey("qk_norm_type", "head by head", ("per_head",)),
        IgnoredKey("sparse_attention_config.*", "the tensors say the rest"),
        IgnoredKey("use_mtp num_mtp_modules mtp_transformer_layers num_nextn_predict_layers", "counts what is dropped"),
        IgnoredKey("rotary_dim", "the fraction of a head says it: transformers reads no other", follows="n_rot"),
        IgnoredKey("sliding_window", "there is none", (None,)),
        IgnoredKey("projector_hidden_size merged_hidden_size image_token_index video_token_index "
                 "img_token_compression_config img_token_compression_config.*", "of the vision half, dropped"),
        IgnoredKey("tie_word_embeddings", "what the whole model says wins", (False, True)),
    ),
)

DENSE = Caveat(
    "reach > 0",
    "beyond {reach} tokens llama.cpp looks at chosen blocks only with flash attention; without, at all of them",
    differs_in="llama.cpp",
)

SPEC = Architecture(
    name="minimax-m3", runtimes=("llama.cpp",),
    display_name="MiniMax M3",
    hf_classes=("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="half", names="hf", fields="hf", classes=("MiniMaxM3SparseForConditionalGeneration",),
            config_section=half.WITHIN,
        ),
    ),
    recipe={"rope": "halves", "routing": "sigmoid", "expert_norm": True, "glu": "clamped"},
    caveats=(DENSE, common.own_output("minimax-m3")),
)
