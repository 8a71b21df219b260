"""LLaMA: Meta's 1 and 2, and every model that shares their graph.

Sources: docs/formats/ggml-era.md "Headers" (and what they lack), the GGUF specification's "LLaMA", llama.cpp's
`src/models/llama.cpp` for the graph. Meta, GGML and GGUF store Q and K rows as interleaved rotary pairs, Hugging Face
as halves: only the latter is permuted. Mistral and Mixtral are `llama` in GGUF: the same graph, with experts or a
sliding window.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _mistral as mistral
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._llama import UNWINDOWED, not_of_gguf, windows
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import also, block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.reader import HeaderLayout, VocabLayout

_LLAMA2 = r"(?i)llama[-_. ]?(v)?2(?![0-9])"
_GQA = "n_head_kv < n_head"

HEADER = HeaderLayout(
    name="llama",
    containers=(("ggml", None), ("ggmf", 1), ("ggjt", 1), ("ggjt", 2), ("ggjt", 3)),
    header=Struct(
        "LLaMA header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of tok_embeddings
        n_embd   i32  1..MAX_WIDTH   columns of tok_embeddings
        n_mult   i32  1..MAX_WIDTH   n_ff was rounded up to a multiple of it
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   obsolete; 64 in files of 10 March 2023 whatever the model
        ftype    i32  0..18          llama_ftype; the tensors' own types decide
        """,
    ),
    names=("layers.*.attention.w[qkv].weight", "layers.*.feed_forward.w3.weight"),
    vocab=VocabLayout(short=True, texts="llama"),
    planar=("Q4_0_V1", "Q4_1_V1"),
    embedding="tok_embeddings.weight",
    column_split=("tok_embeddings.weight", "*.attention.wo.weight", "*.feed_forward.w2.weight"),
)

_NO_HEADER = Struct("params.json", "")
_META = HeaderLayout(
    name="llama-meta",
    containers=(("pytorch-meta", None),),
    header=_NO_HEADER,
    names=("tok_embeddings.weight", "layers.*.attention.w[qkvo].weight", "layers.*.feed_forward.w[123].weight"),
    embedding="tok_embeddings.weight",
    width="dim",
    column_split=HEADER.column_split,
    options={"square": ("layers.*.attention.wq.weight",)},  # Meta's heads are dim / n_heads wide
)
# LLaMA 3 cuts the embedding along the vocabulary, not along the width as LLaMA 1 and 2 do.
_META3 = replace(_META, name="llama3-meta", column_split=HEADER.column_split[1:])

N_CTX = replace(
    common.N_CTX,
    fields={"hf": "max_position_embeddings|max_sequence_length"},  # the latter in 2023's LLaMAForCausalLM
    defaults=(
        Default(131072, "rotary scaling of LLaMA 3.1", when="rope_kind == 'llama3'", dialect="meta"),
        *not_of_gguf((
            Default(8192, "a rotary base of 500000: LLaMA 3, trained on 8192 tokens", when="rope_base == 500000"),
            Default(4096, "grouped-query attention in a legacy file: LLaMA-2, trained on 4096 tokens", when=_GQA),
            Default(4096, "the name says LLaMA-2, trained on 4096 tokens", named=_LLAMA2),
            Default(2048, "LLaMA-1 was trained on 2048 tokens; neither legacy files nor params.json store it"),
        )),
    ),
)
EPS = replace(
    common.RMS_EPS,
    fields={"hf": "rms_norm_eps", "meta": "norm_eps"},
    defaults=(
        *common.RMS_EPS.defaults,
        *not_of_gguf((
            Default(1e-5, "grouped-query attention in a legacy file: LLaMA-2, trained with 1e-5", when=_GQA),
            Default(1e-5, "the name says LLaMA-2, trained with 1e-5", named=_LLAMA2),
            Default(1e-6, "LLaMA-1 was trained with 1e-6, and llama.cpp used it from 19 March to 24 July 2023"),
        )),
    ),
)
# InternLM 3 says of each what it has; everybody else of attention, and of the feed-forward.
BIASES = (
    replace(common.ATTENTION_BIAS, fields={"hf": "qkv_bias|attention_bias"}, own_only=True),
    HParam("output_bias", None, ValueType.BOOL, {"hf": "bias|attention_bias"}, required=False),
    replace(common.MLP_BIAS, fields={"hf": "bias|mlp_bias"}),
)
# transformers' Llama and Helium have no window whatever a configuration says, Mistral and Mixtral one in every block.
WINDOWS = common.own_window(*UNWINDOWED)
# Where CWM lists no kinds of blocks, the first of four has no window.
FULL_EVERY = HParam("full_every", None, required=False, defaults=(
    Default(4, "transformers' default", when="hf_class == 'CwmForCausalLM'", dialect="hf"),
))
HPARAMS = mistral.declared((
    common.N_VOCAB, N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, common.N_HEAD_KV,
    common.HEAD_DIM, common.HEAD_DIM_V, EPS, *rope.WHOLE_ROPE_WITH_FACTORS, *WINDOWS, FULL_EVERY,
    *(replace(param, derive=windows) if param.name == "swa_layers" else param for param in common.WINDOW_LIST),
    common.N_EXPERT,
    common.N_EXPERT_USED, common.TIED, *BIASES, common.SILU, *embeddings.DECODER_POOLING,
))

ROLES = also(
    roles(
        tensors.embedding(),
        rope.FACTORS,
        block(
            tensors.norm("attn_norm", "input_layernorm"),
            tensors.paired_attention(bias="attention_bias == 1", output_bias="output_bias == 1"),
            tensors.norm("ffn_norm", "post_attention_layernorm"),
            tensors.gated(when="n_expert == 0", bias="mlp_bias == 1"),
            tensors.experts(
                "block_sparse_moe.experts.{e}.", "block_sparse_moe.gate", ("w1", "w2", "w3"), width="n_ff",
                when="n_expert > 0",
            ),
        ),
    ),
    "meta",
    """
    token_embd.weight          tok_embeddings.weight
    output_norm.weight         norm.weight
    output.weight              output.weight
    rope_freqs.weight          =llama3_factors
    blk.{n}.attn_norm.weight   layers.{n}.attention_norm.weight
    blk.{n}.attn_q.weight      layers.{n}.attention.wq.weight
    blk.{n}.attn_k.weight      layers.{n}.attention.wk.weight
    blk.{n}.attn_v.weight      layers.{n}.attention.wv.weight
    blk.{n}.attn_output.weight layers.{n}.attention.wo.weight
    blk.{n}.ffn_norm.weight    layers.{n}.ffn_norm.weight
    blk.{n}.ffn_gate.weight    layers.{n}.feed_forward.w1.weight
    blk.{n}.ffn_down.weight    layers.{n}.feed_forward.w2.weight
    blk.{n}.ffn_up.weight      layers.{n}.feed_forward.w3.weight
    """,
)

# llama2.c's names are those of run.c's TransformerWeights, which computes with one eps and one rotary base.
ROLES = also(
    ROLES,
    "llama2.c",
    """
    token_embd.weight          token_embedding_table
    output_norm.weight         rms_final_weight
    output.weight              wcls
    blk.{n}.attn_norm.weight   rms_att_weight.{n}
    blk.{n}.attn_q.weight      wq.{n}
    blk.{n}.attn_k.weight      wk.{n}
    blk.{n}.attn_v.weight      wv.{n}
    blk.{n}.attn_output.weight wo.{n}
    blk.{n}.ffn_norm.weight    rms_ffn_weight.{n}
    blk.{n}.ffn_gate.weight    w1.{n}
    blk.{n}.ffn_down.weight    w2.{n}
    blk.{n}.ffn_up.weight      w3.{n}
    """,
)
LLAMA2C = Dialect(
    "llama2.c",
    fields="hf",
    header="header",
    required_tensors=("token_embedding_table", "rms_att_weight.0", "w3.0"),
    fixed={"eps": 1e-5, "rope_base": 10000.0},
    drops=(Drop("freq_cis_*", "a buffer: rotary frequencies follow from the rotary base", follows=True),),
)

_N_FF = "(8 * n_embd // 3 + header_n_mult - 1) // header_n_mult * header_n_mult"
_META_WIDTHS = " and ".join(f"n_embd != {width}" for width in (4096, 5120, 6656, 8192))

CAVEATS = (
    Caveat(
        f"header_n_mult == 256 and header_n_head * 128 == n_embd and header_n_head == n_head and {_META_WIDTHS}",
        "attention.head_count={n_head} is n_embd / 128, which is what convert.py wrote from 14 April to 22 June 2023 "
        "without knowing; no tensor can confirm it: --hparam attention.head_count=N if the model has another number",
    ),
    Caveat(
        f"{_N_FF} != n_ff",
        "the header's n_mult={header_n_mult} does not lead to the feed-forward width of the tensors, {n_ff}: "
        "the tensors' is taken",
    ),
    Caveat(
        "header_n_rot != n_rot",
        "the header's n_rot={header_n_rot} is obsolete: {n_rot} = n_embd / n_head is taken",
    ),
)

HF = Dialect(
    "hf",
    conventions={"rope": "halves"},
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, rope.FRACTION_UNREAD, common.WINDOW),
    ignored_keys=(
        IgnoredKey("rope_interleaved", "rows of Q and K lie as halves", (False,)),
        IgnoredKey("is_llama_config", "which program wrote it"),
    ),
)

# Kyutai's Helium turns pairs side by side, as GGUF does.
ROLES = varied(
    ROLES, "helium", "hf",
    """
    blk.{n}.attn_q.weight model.layers.{n}.self_attn.q_proj.weight
    blk.{n}.attn_k.weight model.layers.{n}.self_attn.k_proj.weight
    blk.{n}.attn_q.bias   model.layers.{n}.self_attn.q_proj.bias
    blk.{n}.attn_k.bias   model.layers.{n}.self_attn.k_proj.bias
    """,
)
HELIUM = replace(
    HF, name="helium", fields="hf", conventions={}, classes=("HeliumForCausalLM",), fixed={"output_bias": False}
)

# GLM-ASR under its publisher's names: the text half beside an audio encoder.
GLM_ASR = replace(
    HF, name="glm asr", names="hf", fields="hf", classes=("GlmasrModel",), config_section="lm_config",
    drops=(*common.DROPS, *half.drop_audio("audio_encoder.*")),
    ignored_keys=(
        *HF.ignored_keys,
        IgnoredKey("whisper_config whisper_config.* merge_factor use_rope mlp_adapter_act max_whisper_length "
                   "adapter_type spec_aug max_length", "of the audio encoder, dropped, or of its publisher's program"),
    ),
)

ROLES = also(ROLES, mistral.NAME, mistral.TENSORS + mistral.EXPERTS, stack=Stack())

SPEC = Architecture(
    name="llama", runtimes=("llama.cpp",),
    display_name="LLaMA",
    hf_classes=(
        "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "LLaMAForCausalLM", "LlamaModel",
        "MistralModel", "MixtralModel", "MinistralModel",
        "IQuestCoderForCausalLM", "InternLM3ForCausalLM", "VLlama3ForCausalLM", "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration", "VoxtralForConditionalGeneration", "Idefics3ForConditionalGeneration",
        "SmolVLMForConditionalGeneration", "JanusForConditionalGeneration", "Sarashina2VisionForCausalLM",
        "CwmForCausalLM", "MinistralForCausalLM", "HeliumForCausalLM", "GlmAsrForConditionalGeneration", "GlmasrModel",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("ggml", names="meta", caveats=CAVEATS, fixed={"tied": False}),
        Dialect(
            "meta",
            drops=(Drop("rope.freqs", "a buffer: rotary frequencies follow from the rotary base", follows=True),),
            fixed={"tied": False},
            ignored_keys=(
                IgnoredKey("multiple_of ffn_dim_multiplier vocab_size", "the tensors say it, and -1 is no size"),
                IgnoredKey("max_batch_size max_seq_len model_parallel_size", "of Meta's own program"),
            ),
        ),
        HF,
        HELIUM,
        GLM_ASR,
        LLAMA2C,
        mistral.DIALECT,
        *half.of(HF, "llama", "mistral", "mixtral"),
        *half.headless(HF, "LlamaModel", "MistralModel", "MixtralModel", "MinistralModel"),
    ),
    recipe={"norm": "rms", "rope": "pairs", "ffn": "gated", "activation": "silu", "expert_norm": True},
    headers=(HEADER, _META, _META3),
)
