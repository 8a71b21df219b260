"""Dots 3 Note: latent attention in two kinds of blocks, with a window and a low rank and heads of their own, or
to what an indexer chooses; gated head by head; the rotary key normed; experts scored by sigmoid and chosen with a bias.

Sources: llama.cpp `src/models/dots3note.cpp`, `conversion/dots3.py`; transformers `modeling_dots3_note.py`. The factors
of the low ranks go into the weights of their norms. llama.cpp turns the indexer's heads by halves: its rows, which turn
in pairs, are put in that order, which the tool does not do. Of a multimodal model the text half is taken.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _dots3 as dots
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import rotary_pairs_to_halves
from ggferry.converters.schema.layouts.values import Scaled
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
_HF = "transformers' default"
_KIND = {"default": "default"}

HPARAMS = (
    *common.SIZES[:5],
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window_size|sliding_window"}, check="0 < n_swa"),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, {"hf": "layer_types"}, length="n_layer",
           words={"sliding_attention": True, "indexed_attention": False, "full_attention": False},
           derive="each n >= 2 and n % 4 != 1"),  # as transformers' class has them where nothing lists them
    common.N_WINDOWS,
    HParam("n_head_full", None, fields={"hf": "num_attention_heads"}, required=False),
    replace(dots.windowed("n_head", None, "num_attention_heads"), required=False),
    HParam("n_head", "attention.head_count", ValueType.INT32, derive=dots.by_window("n_head"), length="n_layer",
           allow_scalar=True, undo=dots.declared),
    HParam("n_head_kv", "attention.head_count_kv", check="n_head_kv == 1"),
    deepseek.QUERIES,
    replace(dots.windowed("q_rank", None, "q_lora_rank", check="q_rank_swa == q_rank"), derive="q_rank",
            required=False),
    HParam("kv_rank_full", "attention.kv_lora_rank", fields={"hf": "kv_lora_rank"}),
    dots.windowed("kv_rank", "attention.kv_lora_rank_swa", "kv_lora_rank"), dots.per_block("kv_rank"),
    HParam("n_rot", "rope.dimension_count", fields={"hf": "qk_rope_head_dim"}, check="n_rot % 2 == 0 and 0 < n_rot"),
    HParam("n_rot_swa", None, fields={"hf": "swa_qk_rope_head_dim|per_layer_config.*.qk_rope_head_dim"},
           required=False, check="n_rot_swa == n_rot"),
    HParam("plain_full", None, fields={"hf": "qk_nope_head_dim"}, required=False),
    replace(dots.windowed("plain", None, "qk_nope_head_dim"), required=False),
    HParam("head_dim_mla_full", "attention.key_length_mla", derive="plain_full + n_rot",
           check="n_rot < head_dim_mla_full"),
    HParam("head_dim_mla_swa", "attention.key_length_mla_swa", derive="plain_swa + n_rot",
           check="n_rot < head_dim_mla_swa"),
    dots.per_block("head_dim_mla"),
    HParam("head_dim_v_mla_full", "attention.value_length_mla", fields={"hf": "v_head_dim"}),
    dots.windowed("head_dim_v_mla", "attention.value_length_mla_swa", "v_head_dim"), dots.per_block("head_dim_v_mla"),
    HParam("head_dim", "attention.key_length", derive="kv_rank_full + n_rot", check="head_dim == kv_rank_full + n_rot"),
    HParam("head_dim_v", "attention.value_length", derive="kv_rank_full", check="head_dim_v == kv_rank_full"),
    HParam("head_dim_swa", "attention.key_length_swa", derive="kv_rank_swa + n_rot",
           check="head_dim_swa == kv_rank_swa + n_rot"),
    HParam("head_dim_v_swa", "attention.value_length_swa", derive="kv_rank_swa",
           check="head_dim_v_swa == kv_rank_swa"),
    replace(common.RMS_EPS, defaults=(Default(1e-5, _HF, dialect="hf"),)),
    replace(common.also_at(rope.BASE, "rope_parameters.indexed_attention.rope_theta"),
            defaults=(Default(80000000.0, _HF, dialect="hf"),)),
    HParam("rope_kind", None, STRING, words=_KIND, required=False,
           fields={"hf": "rope_parameters.indexed_attention.rope_type|rope_parameters.rope_type"
                   "|rope_scaling.rope_type|rope_scaling.type"}),
    HParam("rope_base_swa", "rope.freq_base_swa", F32, check="rope_base_swa > 1",
           fields={"hf": "rope_parameters.sliding_attention.rope_theta|swa_rope_theta"},
           defaults=(Default(50000.0, _HF, dialect="hf"),)),
    HParam("rope_kind_swa", None, STRING, {"hf": "rope_parameters.sliding_attention.rope_type"}, words=_KIND,
           required=False),
    HParam("rescaled_ranks", None, BOOL, {"hf": "apply_mla_qkv_lora_rescale"}, required=False,
           defaults=(Default(True, "as transformers always does", dialect="hf"),)),
    HParam("low_q_factor", None, F32, derive=dots.query_factor, required=False),
    HParam("low_kv_factor", None, F32, derive=dots.key_factors, length="n_layer", required=False),
    *index.HPARAMS[1:],
    HParam("index_full", "attention.indexer.types", BOOL, derive="each swa_layers == 0", length="n_layer",
           check="index_full != swa_layers"),
    HParam("indexed", None, BOOL, {"hf": "use_dsa"}, words={True: True}, required=False),
    *deepseek.DENSE[:2], replace(deepseek.DENSE[2], defaults=(Default(1, _HF, dialect="hf"),)),
    common.N_EXPERT, common.N_EXPERT_USED, common.N_FF_EXP,
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, check="0 < n_shared"),
    HParam("shared_width", None, required=False, check="shared_width == n_ff_exp",
           fields={"hf": "moe_shared_expert_intermediate_size|shared_experts_intermediate_size"}),
    *routed.NO_GROUPS, routed.SCALE, routed.NORM, replace(routed.SIGMOID, required=True),
    HParam("gate", None, STRING, {"hf": "attention_gate_type"}, words={"headwise": "headwise"}, required=False),
    HParam("gate_swa", None, STRING, {"hf": "swa_attention_gate_type"}, words={"headwise": "headwise"}, required=False),
    HParam("norm_kind", None, STRING, {"hf": "normalization"}, words={"RMSNorm": "rms"}, required=False),
    HParam("last_norm_kind", None, STRING, {"hf": "final_norm"}, words={"RMSNorm": "rms"}, required=False),
    HParam("key_normed", None, BOOL, {"hf": "k_rope_only_layernorm"}, words={True: True}, required=False),
    HParam("scaled_by_token", None, BOOL, {"hf": "use_dynamic_rsf"}, words={False: False}, required=False),
    common.ALL_SPARSE[0], common.TIED, common.ATTENTION_BIAS, common.SILU,
)

PAIRS = rotary_pairs_to_halves
INDEXER = """
indexer.k_norm.weight f32 : index_dim                   | hf self_attn.indexer.k_norm.weight @key
indexer.k_norm.bias       : index_dim                   | hf self_attn.indexer.k_norm.bias @key
indexer.proj.weight       : index_heads n_embd          | hf self_attn.indexer.weights_proj.weight
indexer.attn_k.weight     : index_dim n_embd            | hf self_attn.indexer.wk.weight @key
indexer.attn_q_b.weight   : index_heads*index_dim q_rank | hf self_attn.indexer.wq_b.weight @queries
"""
ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        latent_attention(
            q_norm=Scaled((("low_q_factor",),)), kv_norm=Scaled((("low_kv_factor",),)),
        ),
        tensors.norm("attn_k_norm", "self_attn.k_rope_only_layernorm", width="n_rot"),
        tensors.linear("attn_gate", "n_head n_embd", "self_attn.g_proj"),
        roles(INDEXER, when="swa_layers == 0", key=PAIRS("1"), queries=PAIRS("index_heads")),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        routed.dense_or_routed(),
    ),
)

SPEC = Architecture(
    name="dots3note", runtimes=("llama.cpp",),
    display_name="Dots 3 Note",
    hf_classes=("Dots3NoteForCausalLM", "Dots3NoteTextForCausalLM", "Dots3NoteForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "indexer_rope": "pairs"},
            drops=(
                Drop("model.mtp.*", "predicts further tokens for speculative decoding: no part of the decoder"),
                *deepseek.DROPS,
                *half.drop_vision("vision_encoder.*", "model.vision_*"),
                *half.drop_audio("audio_encoder.*", "model.audio_*"),
            ),
            fixed={"n_head_kv": 1},
            config_section=half.WITHIN,
            renames=half.RENAMES,
            caveats=(index.WIDTH, common.NO_WINDOW, deepseek.LOW_RANK),
            ignored_keys=(
                common.UNBIASED, half.VISION_KEYS, half.AUDIO_KEYS,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one",
                         follows="n_head_full"),
                IgnoredKey("swa_num_key_value_heads", "every head has keys of its own", follows="n_head_swa"),
                IgnoredKey("head_dim", "the sum of its two parts, or that of blocks with a window"),
                IgnoredKey("swa_head_dim", "the sum of its two parts", follows="head_dim_mla_swa"),
                IgnoredKey("per_layer_config per_layer_config.*",
                    "read where blocks with a window have their own sizes"),
                IgnoredKey("rope_parameters.*.partial_rotary_factor partial_rotary_factor",
                         "the widths of heads say what turns"),
                IgnoredKey("use_sliding_window", "the list of blocks says it", (True,)),
                IgnoredKey("topk_method", "chosen with a bias", ("noaux_tc",)),
                IgnoredKey("moe_gating_fp32", "how it is computed", (False,)),
            ),
        ),
    ),
    recipe={"attention": "latent", "indexer_rope": "halves", "routing": "sigmoid"},
)
