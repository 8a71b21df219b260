"""Jina's embeddings v2 (base, small, and their bilingual kin): BERT with ALiBi in place of positions, and GEGLU.

The variant for code, whose queries and keys are normed and whose halves are the other way round, has other tensors and
is refused. No published package has the class, so llama.cpp alone witnesses it. Sources: jinaai's `modeling_bert.py`;
llama.cpp `src/models/bert.cpp`, `jina-bert-v2.cpp`; `_bert`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *embeddings.MODES,
    HParam("pooling", "pooling_type", derive="@pooling_type", required=False),
    HParam("max_alibi", None, common.F32, required=False),
    HParam("gate", None, common.STRING, {"hf": "feed_forward_type"}, words={"geglu": "geglu"}, required=False,
           defaults=(Default("original", "Jina's default", dialect="hf"),), check="gate == 'geglu'"),
    HParam("positions", None, common.STRING, {"hf": "position_embedding_type"}, words={"alibi": "alibi"},
           required=False, defaults=(Default("absolute", "Jina's default", dialect="hf"),),
           check="positions == 'alibi'"),
    HParam("decoder", None, common.BOOL, {"hf": "is_decoder"}, words={False: False}, required=False),
)

ROLES = roles(
    [replace(role, when="") for role in bert.EMBEDDING],
    block(
        tensors.linear("attn_q", "n_embd n_embd", "attention.self.query", bias=True),
        tensors.linear("attn_k", "n_embd n_embd", "attention.self.key", bias=True),
        tensors.linear("attn_v", "n_embd n_embd", "attention.self.value", bias=True),
        tensors.linear("attn_output", "n_embd n_embd", "attention.output.dense", bias=True),
        tensors.norm("attn_output_norm", "attention.output.LayerNorm", bias=True),
        tensors.linear("ffn_up", "2*n_ff n_embd", "mlp.gated_layers"),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.wo", bias=True),
        tensors.norm("layer_output_norm", "mlp.layernorm", bias=True),
        layer="encoder.layer.{n}.",
    ),
)

SPEC = Architecture(
    name="jina-bert-v2", runtimes=("llama.cpp",),
    display_name="Jina embeddings v2",
    hf_classes=("JinaBertModel", "JinaBertForMaskedLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*bert.DROPS, *embeddings.language_heads("cls.*")),
            fixed={"causal": False, "max_alibi": 8.0},
            renames=(("bert.", ""),),
            ignored_keys=(
                *bert.IGNORED_KEYS,
                IgnoredKey("hidden_act emb_pooler attn_implementation", "its own code reads others"),
            ),
        ),
        Dialect("gguf", fixed={"max_alibi": 8.0}),
    ),
    recipe={"computation": "bert", "norm": "layer", "rope": "none", "ffn": "fused", "activation": "gelu"},
)
