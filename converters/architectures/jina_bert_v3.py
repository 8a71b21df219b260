"""Jina's embeddings v3: XLM-RoBERTa with rotary positions and, for each of five tasks, adapters of every matrix.

The base model is written; the adapters of the tasks are dropped by name, since a file of a model has no place for them
(convert_hf_to_gguf writes each as a file of its own). JinaEmbeddingsV3Model of transformers is the base model alone: it
saves the names of Jina's code and a configuration of its own. Sources: jinaai's `xlm-roberta-flash-implementation`
(`modeling_lora.py`, `mha.py`); transformers `configuration_jina_embeddings_v3.py`; llama.cpp
`src/models/{jina-bert-v3,bert}.cpp`, `conversion/bert.py`, `gguf-py/gguf/tensor_mapping.py`.
"""

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles, varied

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *embeddings.POOLING,
    HParam("rope_base", "rope.freq_base", common.F32,
           {"hf": "rope_parameters.rope_theta|rope_theta|rotary_emb_base"},
           defaults=(Default(20000.0, "transformers' default", dialect="saved"),
                     Default(10000.0, "the default of Jina's code, and of readers of GGUF")),
           check="rope_base > 1"),
    rope.KIND, *rope.SCALING,
    HParam("n_rot", "rope.dimension_count", derive="n_embd / n_head",
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot * n_head <= n_embd"),
    gpt.GELU,
    HParam("positions", None, common.STRING, {"hf": "position_embedding_type"}, words={"rotary": "rotary"},
           required=False, defaults=(Default("absolute", "Jina's default", dialect="hf"),),
           check="positions == 'rotary'"),
)

_WAS = "parametrizations.weight.original"  # what torch calls a matrix that adapters are added to
_ADAPTED = roles(
    f"token_embd.weight : n_vocab n_embd | hf embeddings.word_embeddings.{_WAS}",
    f"token_types.weight f32 when=n_types > 0 : n_types n_embd | hf embeddings.token_type_embeddings.{_WAS}",
    tensors.norm("token_embd_norm", "emb_ln", bias=True),
    block(
        f"""
        attn_qkv.weight    : 3*n_embd n_embd | hf mixer.Wqkv.{_WAS}
        attn_qkv.bias      : 3*n_embd        | hf mixer.Wqkv.bias
        attn_output.weight : n_embd n_embd   | hf mixer.out_proj.{_WAS}
        attn_output.bias   : n_embd          | hf mixer.out_proj.bias
        """,
        tensors.norm("attn_output_norm", "norm1", bias=True),
        f"""
        ffn_up.weight   : n_ff n_embd | hf mlp.fc1.{_WAS}
        ffn_up.bias     : n_ff        | hf mlp.fc1.bias
        ffn_down.weight : n_embd n_ff | hf mlp.fc2.{_WAS}
        ffn_down.bias   : n_embd      | hf mlp.fc2.bias
        """,
        tensors.norm("layer_output_norm", "norm2", bias=True),
        layer="encoder.layers.{n}.",
    ),
)
ROLES = varied(
    _ADAPTED, "saved", "hf",
    """
    token_embd.weight              embeddings.word_embeddings.weight
    token_types.weight             embeddings.token_type_embeddings.weight
    blk.{n}.attn_qkv.weight        encoder.layers.{n}.mixer.Wqkv.weight
    blk.{n}.attn_output.weight     encoder.layers.{n}.mixer.out_proj.weight
    blk.{n}.ffn_up.weight          encoder.layers.{n}.mlp.fc1.weight
    blk.{n}.ffn_down.weight        encoder.layers.{n}.mlp.fc2.weight
    """,
)
_ADAPTERS = Drop(
    "*.parametrizations.weight.0.lora_*",
    "an adapter of the tasks, which a model's file has no place for: the vectors are those without a task",
)

SPEC = Architecture(
    name="jina-bert-v3", runtimes=("llama.cpp",),
    display_name="Jina embeddings v3",
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            classes=("XLMRobertaModel", "XLMRobertaLoRA"),
            forbidden_tensors=("*.mixer.Wqkv.weight", "*.attention.self.query.weight"),
            drops=(
                Drop("pooler.dense.*original", bert.POOLED), Drop("pooler.dense.bias", bert.POOLED), _ADAPTERS,
            ),
            fixed={"causal": False, "after_padding": True},
            renames=(("roberta.", ""),),
            caveats=rope.CAVEATS,
            ignored_keys=(
                *bert.IGNORED_KEYS,
                IgnoredKey("lora_* task_instructions matryoshka_dimensions truncate_dim emb_pooler"
                         " load_trained_adapters use_flash_attn use_reentrant",
                         "of the adapters, or how it is computed"),
                IgnoredKey("use_cache position_embedding_dim", "never"),
            ),
        ),
        Dialect(
            "saved",
            fields="hf",
            classes=("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"),
            drops=(*bert.DROPS, *embeddings.language_heads("lm_head.*")),
            fixed={"causal": False, "after_padding": True, "positions": "rotary"},
            renames=(("roberta.", ""),),
            caveats=rope.CAVEATS,
            ignored_keys=bert.IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "bert", "norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu"},
)
