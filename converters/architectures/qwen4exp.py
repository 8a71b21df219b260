"""Qwen4-Exp (Qwen3.8-Flash-Next): Qwen3.5's blocks of linear attention and of gated attention with experts, between
several streams of states; attention to blocks of tokens that an indexer chooses by averaged keys; in one block,
embeddings of hashed sequences of tokens. A block that predicts further tokens reads the streams themselves.

Sources: `_qwen4`, `_qwen35`, `_gated_delta`. Published checkpoints hold the table of embeddings in many parts; experts
one by one or, gate and up joined, in two stacks.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _qwen4 as qwen4
from ggferry.converters.architectures import _qwen35 as qwen35
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, IgnoredKey
from ggferry.converters.schema.layouts.parts import Concat, Squeeze
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles, varied

PLE = "n_ple == 1 and n == ple_layer"
HASHED = """
ple_key.weight            : n_streams*n_embd ple_width  | hf ple.key_proj.weight
ple_value.weight          : n_embd ple_width            | hf ple.value_proj.weight
ple_norm_key.weight f32   : n_streams*n_embd            | hf ple.norm_key.weight @norm
ple_norm_query.weight f32 : n_streams*n_embd            | hf ple.norm_query.weight @norm
ple_norm_conv.weight f32  : n_streams*n_embd            | hf ple.norm_conv.weight @norm
ple_conv1d.weight f32     : n_streams*n_embd ple_kernel | hf ple.conv1d.weight @kernels
"""
TABLE = (
    "per_layer_token_embd.weight when=n_ple == 1 : ngram_rows ngram_width | "
    "hf model.ngram_embedding.{e}.weight @table"
)
ROLES = roles(
    tensors.embedding(last_norm=""),
    roles(TABLE, table=Concat()),
    qwen4.connection("output_hc", "model.hyper_connection_mixer", spreads=False),
    block(
        qwen4.connection("hc_attn", "attn_hyper_connection"),
        qwen35.PROJECTIONS,
        qwen35.delta_net(),
        delta.attention(),
        qwen4.indexer("recurrent == 0"),
        roles(HASHED, when=PLE, norm=ADD_ONE, kernels=Squeeze(1)),
        qwen4.connection("hc_ffn", "mlp_hyper_connection"),
        tensors.or_joined(tensors.experts()),
        delta.shared_expert(),
        qwen4.further(),
    ),
)
STACKED = "blk.{n}.ffn_down_exps.weight model.layers.{n}.mlp.experts.down_proj"
CLASSES = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
OF_LAYER, EMBEDDING = ".layers.{n}.ple.ple_embedding.", "model.ngram_embedding"
PARTS = {
    "ngram_embedding.shard_": f"{EMBEDDING}.", "ngram_embedding.weight": f"{EMBEDDING}.0.weight",
    "": "model.ple_embedding.",
}
HF = Dialect(
    "hf",
    conventions={**delta.CONVENTIONS, "delta_values": "grouped", "indexer_qk": "joint"},
    fixed={"joined": False},
    drops=(
        *delta.DROPS,
        Drop("model.ple_embedding.layer_multipliers", "numbers of the hash: they are among the keys", follows=True),
        Drop("model.ple_embedding.ngram_heads_*", "numbers of the hash: they are among the keys", follows=True),
        *common.DROPS, *half.drop_vision("model.visual.*", "visual.*"),
    ),
    caveats=(*delta.CAVEATS, *qwen4.CAVEATS),
    config_section=half.WITHIN,
    renames=(
        *(
            (f"{before}{OF_LAYER}{name}", spelled)
            for before in ("model.language_model", "model")
            for name, spelled in PARTS.items()
        ),
        *half.RENAMES,
    ),
    appended_blocks=qwen4.APPENDED,
    export_renames=(
        *qwen4.EXPORTED,
        (f"{EMBEDDING}.", "model.layers.{ple_layer}.ple.ple_embedding.ngram_embedding.shard_", "n_ple == 1"),
    ),
    ignored_keys=(
        *delta.IGNORED_KEYS, half.VISION_KEYS,
        IgnoredKey("number_of_conv_states", "how states are kept while text is generated"),
        IgnoredKey("language_model_only", "of the vision half"),
    ),
)

SPEC = Architecture(
    name="qwen4exp", runtimes=("llama.cpp",),
    display_name="Qwen4-Exp",
    hf_classes=CLASSES,
    hparams=qwen4.hparams(),
    roles=varied(ROLES, "stacked", "hf", STACKED),
    dialects=(
        HF,
        replace(
            HF, name="stacked", fields="hf", classes=CLASSES,
            forbidden_tensors=("*.mlp.experts.0.gate_proj.weight",),
            fixed={"joined": True},
        ),
    ),
    blocks=nextn.BLOCKS,
    recipe={**qwen35.RECIPE, "computation": "streams", "delta_gate": "sigmoid"},
    caveats=(qwen4.WHOLE_NORM,),
    of_decoder=("per_layer_token_embd.", "output_hc_", "ple.", "embedding_length_per_layer_input", *qwen4.OF_HASHES),
)
