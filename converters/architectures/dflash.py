"""DFlash, DFlash 2 and DSpark: drafts that guess a block of tokens at once, over states of several of the target's
blocks. DSpark has a head for what a token makes of the next one, and may have one for how sure a row is; DFlash 2 mixes
neighboring tokens and scores pairs.

Checkpoints count the target's blocks whose outputs are read, GGUF those whose inputs are. Ling's rows of queries and
keys turn in pairs, GGUF's in halves. Gemma 4's has norms behind its branches, and keys that are the values, too.
DeepSeek V4's has its target's blocks (`_dflash_deepseek4.py`).
Source: llama.cpp `src/models/dflash.cpp`, `conversion/qwen.py`, `gemma.py`, `muse_glimmer.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _dflash as dflash
from ggferry.converters.architectures import _dflash_deepseek4 as deepseek4
from ggferry.converters.architectures import _drafts as drafts
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _streams as streams
from ggferry.converters.schema.architecture import TARGET, Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.roles import also, block, roles, varied
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
_GEMMA = "Gemma 4's default in transformers"


TARGETS = (
    HParam("target_outputs", None, required=False, length="n_targets",
           fields=dflash.inner("target_layer_ids", "target_layer_ids", "dspark_target_layer_ids")),
    HParam("target_inputs", None, fields={"hf": "aux_hidden_state_layer_ids"}, required=False, length="n_targets"),
    HParam("target_layers", "target_layers", ValueType.INT32, derive=dflash.layers, length="n_targets"),
    HParam("n_targets", None),
)
DRAFTING = (
    HParam("block_size", "block_size", fields=dflash.inner("block_size", "block_size", "dspark_block_size"),
           check="0 < block_size", defaults=(Default(16, "convert_hf_to_gguf's default", dialect="hf"),)),
    HParam("mask_token", "tokenizer.ggml.mask_token_id", global_key=True, check="mask_token < n_vocab",
           fields=dflash.inner("mask_token_id", "mask_token_id", "dspark_noise_token_id")),
    HParam("causal", "attention.causal", BOOL, {"hf": "is_causal|dflash_config.causal"}, required=False),
    HParam("markov_rank", None, required=False),
    HParam("n_confidences", None, required=False),
    HParam("has_confidence_head", "has_confidence_head", BOOL, derive=dflash.has_confidences, absent=True),
    HParam("anchor_stated", None, BOOL, {"hf": "sample_from_anchor"}, required=False),
    HParam("sample_from_anchor", "sample_from_anchor", BOOL, derive=dflash.from_anchor, absent=True),
    HParam("markov_kind", None, STRING, dflash.inner("markov_head_type", "markov_head_type"),
           words={"vanilla": "vanilla"}, required=False),
)
SECOND = (
    HParam("conv_kernel_size", "conv_kernel_size", fields=dflash.inner("conv_kernel_size"), absent=0),
    HParam("conv_group_size", "conv_group_size", fields=dflash.inner("conv_group_size"), absent=0,
           check="conv_kernel_size == 0 or 0 < conv_group_size and n_embd % conv_group_size == 0"),
    HParam("selector_rank", "selector_rank", fields=dflash.inner("selector_rank"), absent=0),
    HParam("selector_top_k", "selector_top_k", fields=dflash.inner("selector_top_k"), absent=0,
           check="selector_top_k * (selector_top_k + 1) <= n_embd"),
    HParam("logit_scale", "logit_scale", F32, dflash.inner("output_multiplier", "output_multiplier"), absent=0.0),
    HParam("final_softcap", "final_logit_softcapping", F32,
           dflash.inner("final_logit_softcapping", "final_logit_softcapping"), absent=0.0),
)
SCALES = (
    HParam("target_gemma", None, BOOL, {"hf": f"{TARGET}.gemma"}, required=False),
    HParam("scale_stated", None, F32, dflash.inner("input_embedding_scale", "input_embedding_scale"), required=False),
    HParam("embedding_scale", "embedding_scale", F32, derive=dflash.embedding_scale, absent=0.0),
    HParam("attn_scale", "attention.scale", F32, derive=dflash.attention_scale, absent=0.0),
    HParam("value_scale", "attention.value_scale", F32, dflash.inner("attention_value_scale"), absent=0.0),
)
WINDOWS = (
    HParam("window_stated", None, fields=dflash.inner("swa_window_size", "sliding_window"), required=False),
    HParam("window_used", None, BOOL, {"hf": "use_sliding_window"}, required=False),
    HParam("window_listed", None, BOOL, required=False),
    HParam("window_everywhere", None, BOOL, dflash.inner("use_swa"), required=False),
    common.LAYER_WINDOWS,
    HParam("n_swa", "attention.sliding_window", derive=dflash.window, absent=0),
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=dflash.windows, length="n_layer",
           required=False),
)
HPARAMS = (
    drafts.N_VOCAB, drafts.TARGET_VOCAB, common.N_CTX, common.N_EMBD, *deepseek4.SIZES, common.N_HEAD,
    HParam("draft_kind", None, STRING, required=False),
    HParam("k_is_v", None, BOOL, {"hf": "attention_k_eq_v"}, required=False,
           check="k_is_v == 0 and draft_kind != 'gemma4' or k_is_v == 1 and draft_kind == 'gemma4'"),
    HParam("n_head_kv_global", None, fields={"hf": "num_global_key_value_heads"}, required=False),
    HParam("head_dim_global", None, fields={"hf": "global_head_dim"}, required=False),
    HParam("n_head_kv_stated", None, fields={"hf": "num_key_value_heads"}, required=False),
    HParam("head_dim_stated", None, fields={"hf": "head_dim"}, required=False),
    HParam("n_head_kv", "attention.head_count_kv", derive=dflash.key_heads,
           check="0 < n_head_kv and n_head % n_head_kv == 0"),
    HParam("head_dim", "attention.key_length", derive=dflash.head_width, implied="n_embd / n_head"),
    HParam("head_dim_v", "attention.value_length", derive="head_dim", implied="n_embd / n_head"),
    common.RMS_EPS,
    replace(rope.BASE, defaults=(Default(1e6, _GEMMA, dialect="gemma4"), *rope.BASE.defaults)),
    replace(
        rope.FRACTION,
        fields={"hf": f"rope_parameters.full_attention.partial_rotary_factor|{rope.FRACTION.fields['hf']}"},
        defaults=(Default(0.25, _GEMMA, when="rope_kind == 'proportional'", dialect="gemma4"),),
    ),
    HParam("n_rot_stated", None, fields={"hf": "qk_rope_head_dim"}, required=False),
    HParam("n_rot", "rope.dimension_count", derive=dflash.rotated_width, check="n_rot % 2 == 0 and 0 < n_rot"),
    replace(
        rope.KIND, words={**rope.KIND.words, "mrope": "default", "proportional": "proportional"},
        defaults=(Default("proportional", _GEMMA, dialect="gemma4"),),
    ),
    *rope.SCALING,
    HParam("target_axes", None, BOOL, {"hf": f"{TARGET}.axes"}, required=False),
    HParam("rope_sections", "rope.dimension_sections", ValueType.INT32, derive=dflash.sections, length="4",
           required=False),
    HParam("neox", None, BOOL, {"hf": "rope_is_neox_style"}, required=False,
           defaults=(Default(True, "as in every other draft", dialect="hf"),)),
    HParam("pairs", None, BOOL, required=False, check="neox != pairs and (pairs == 0 or n_rot == head_dim)"),
    HParam("hidden_activation", "hidden_activation", STRING, {"hf": "hidden_activation|hidden_act"}, absent="silu",
           words={"silu": "silu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}),
    HParam("activation", None, STRING, derive=dflash.activation),
    *TARGETS, *DRAFTING, *SECOND, *SCALES, *WINDOWS, *drafts.DRAFT_ROWS, *deepseek4.HPARAMS,
)

_PAIRS = """
blk.{n}.attn_q.weight      layers.{n}.self_attn.q_proj.weight @halves
blk.{n}.attn_k.weight      layers.{n}.self_attn.k_proj.weight @halves
blk.{n}.attn_q_norm.weight layers.{n}.self_attn.q_norm.weight @halves
blk.{n}.attn_k_norm.weight layers.{n}.self_attn.k_norm.weight @halves
"""
_FRAME = roles(
    drafts.frame(rows="n_targets*n_embd", width="n_embd"),
    dflash.heads(),
    "rope_freqs.weight f32 optional : head_dim/2 | hf =factors",
    factors=dflash.proportional_factors,
)
_BLOCKS = also(
    block(
        dflash.SHARED, roles(dflash.BLOCK, when="n_streams == 0"), layer={"hf": "layers.{n}.", "gemma4": "layers.{n}."}
    ),
    "gemma4",
    "blk.{n}.ffn_norm.weight layers.{n}.pre_feedforward_layernorm.weight",
)
_ALL = roles(
    varied(varied(_FRAME, "pairs", "hf"), "gemma4", "hf"),
    varied(_BLOCKS, "pairs", "hf", _PAIRS, halves=dflash.PAIRS_TO_HALVES),
    block(deepseek4.BLOCK, layer={"hf": deepseek4.LAYER}, when="n_streams > 0"),
    roles(streams.head("last.hc_head_"), when="n_streams > 0"),
)
ROLES = varied(_ALL, deepseek4.NAME, "hf", deepseek4.OWN_NAMES)

ONE_LESS = Caveat(
    "n_swa > 0",
    "attention reaches back {n_swa} tokens in transformers, and one less in llama.cpp",
    differs_in="llama.cpp",
)
HF = Dialect(
    "hf",
    conventions={"draft_rows": "offsets"},
    fixed={"draft_kind": "", "pairs": False},
    drops=(drafts.DROP_T2D, common.DROP_BUFFERS),
    caveats=(rope.DYNAMIC, rope.BETAS),
    config_section="transformer_layer_config",
    renames=(
        ("model.", ""), ("encoder.fc.", "fc."), ("encoder.output_norm_enc.", "hidden_norm."),
        ("confidence_proj.", "confidence_head.proj."),
    ),
    ignored_keys=(common.UNBIASED, drafts.IGNORED_KEYS, dflash.IGNORED_KEYS),
)

SPEC = Architecture(
    name="dflash", runtimes=("llama.cpp",),
    display_name="DFlash",
    hf_classes=(
        "DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel", "DSparkSpeculator", "Qwen3DSparkModel",
        "Lfm2DSparkDraftModel", "LingDSparkModel", "Gemma4DSparkModel", "MuseGlimmerAssistantModel",
        deepseek4.CLASS,
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="pairs", fields="hf", classes=("LingDSparkModel",), fixed={"draft_kind": "", "pairs": True},
            conventions={"rope": "pairs", "draft_rows": "offsets"},
        ),
        replace(
            HF, name="muse", names="hf", fields="hf", classes=("MuseGlimmerAssistantModel",),
            fixed={**HF.fixed, "window_listed": True}, caveats=(*HF.caveats, ONE_LESS),
        ),
        replace(
            HF, name="gemma4", fields="hf", classes=("Gemma4DSparkModel",),
            fixed={"draft_kind": "gemma4", "pairs": False},
        ),
        replace(
            HF, name=deepseek4.NAME, fields="hf", classes=(deepseek4.CLASS,), bundled=deepseek4.BUNDLED,
            renames=deepseek4.RENAMES,
            fixed={**HF.fixed, "window_everywhere": True, "rope_kind": "default"},
            drops=(*HF.drops, *deepseek4.DROPS), caveats=(deepseek4.FOUR,),
            ignored_keys=(*HF.ignored_keys, deepseek4.IGNORED_KEYS),
        ),
    ),
    recipe={"computation": "ggferry.converters.forward.drafts.dflash", "rope": "halves", "routing": "root_softplus"},
)
