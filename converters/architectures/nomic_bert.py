"""NomicBert: a BERT with rotary positions and a gated feed-forward, in nomic-ai's own layout (queries, keys and values
in one matrix) and in transformers'. Sources: `_bert`; Nussbaum et al. (2402.01613).
"""

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Concat
from ggferry.converters.schema.roles import also, block, roles

_NO = {False: False}

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *embeddings.MODES,
    HParam("pooling", "pooling_type", derive="@pooling_type",
           defaults=(Default(1, "Nomic's embeddings are means, and llama.cpp before 2026 loads none without it"),)),
    HParam("rope_base", "rope.freq_base", common.F32,
           {"hf": "rope_parameters.rope_theta|rope_theta|rotary_emb_base"},
           defaults=(Default(1000.0, "transformers' default", dialect="hf"),
                     Default(10000.0, "the default of nomic-ai's code, and of readers of GGUF")),
           check="rope_base > 1"),
    HParam("own_base", None, common.F32, {"hf": "rotary_emb_base"}, required=False),
    HParam("n_rot", "rope.dimension_count", derive="n_embd / n_head",
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot * n_head <= n_embd"),
    rope.KIND, *rope.SCALING,
    # What the graph does not do is refused.
    HParam("activation", None, common.STRING, {"hf": "hidden_act|activation_function"},
           words={"silu": "silu", "swiglu": "silu"}, required=False),
    HParam("rope_fraction", None, common.F32, {"hf": "rotary_emb_fraction"}, words={1: 1.0}, required=False),
    HParam("rope_pairs", None, common.BOOL, {"hf": "rotary_emb_interleaved"}, words=_NO, required=False),
    # A bug of xformers that models were trained with: heads are rotated by their number, tokens are not.
    HParam("rope_heads", None, common.BOOL, {"hf": "rotary_head_dim"}, words=_NO, required=False),
    HParam("pre_norm", None, common.BOOL, {"hf": "prenorm"}, words=_NO, required=False),
    HParam("experts", None, common.BOOL, {"hf": "moe_every_n_layers"}, words={0: False}, required=False),
    HParam("head_dim", None, fields={"hf": "head_dim"}, check="head_dim == n_rot", required=False),
    HParam("stretch", None, common.F32, {"hf": "rotary_scaling_factor"}, required=False),
)
_BASE = Caveat(
    "own_base == rope_base and rope_base != 1000",
    "rotary_emb_base={rope_base}: nomic-ai's own code and llama.cpp honor it, transformers ignores it and computes "
    "with 1000",
    differs_in="transformers",
)
_STRETCH = Caveat(
    "stretch > 0",
    "beyond {n_ctx} tokens nomic-ai's own code stretches the rotary base by {stretch}: GGUF has no key for that",
)

_EXPERTS = "encoder.layers.*.mlp.experts.mlp.w1"  # of nomic-bert-moe

ROLES = also(
    roles(
        bert.EMBEDDING,
        block(
            """
            attn_qkv.weight    : 3*n_embd n_embd | hf q_proj.weight k_proj.weight v_proj.weight @qkv
            attn_output.weight : n_embd n_embd   | hf o_proj.weight
            """,
            layer="layers.{n}.self_attn.",
            qkv=Concat(),
        ),
        block(
            tensors.norm("attn_output_norm", "post_attention_layernorm", bias=True),
            """
            ffn_up.weight   : n_ff n_embd | hf mlp.up_proj.weight
            ffn_gate.weight : n_ff n_embd | hf mlp.gate_proj.weight
            ffn_down.weight : n_embd n_ff | hf mlp.down_proj.weight
            """,
            tensors.norm("layer_output_norm", "post_mlp_layernorm", bias=True),
            layer="layers.{n}.",
        ),
    ),
    "nomic",
    """
    token_embd.weight                embeddings.word_embeddings.weight
    token_types.weight               embeddings.token_type_embeddings.weight
    token_embd_norm.weight           emb_ln.weight
    token_embd_norm.bias             emb_ln.bias
    blk.{n}.attn_qkv.weight          encoder.layers.{n}.attn.Wqkv.weight
    blk.{n}.attn_output.weight       encoder.layers.{n}.attn.out_proj.weight
    blk.{n}.attn_output_norm.weight  encoder.layers.{n}.norm1.weight
    blk.{n}.attn_output_norm.bias    encoder.layers.{n}.norm1.bias
    blk.{n}.ffn_up.weight            encoder.layers.{n}.mlp.fc11.weight
    blk.{n}.ffn_gate.weight          encoder.layers.{n}.mlp.fc12.weight
    blk.{n}.ffn_down.weight          encoder.layers.{n}.mlp.fc2.weight
    blk.{n}.layer_output_norm.weight encoder.layers.{n}.norm2.weight
    blk.{n}.layer_output_norm.bias   encoder.layers.{n}.norm2.bias
    """,
)

IGNORED_KEYS = (
    *bert.IGNORED_KEYS,
    IgnoredKey("n_positions", "how far nomic-ai's own code stretches, which max_trained_positions is not"),
    IgnoredKey("causal parallel_block parallel_block_tied_norm use_rms_norm scale_attn_by_inverse_layer_idx", "never",
             (False,)),
    IgnoredKey("mlp_fc1_bias mlp_fc2_bias qkv_proj_bias", "there is none", (False,)),
    IgnoredKey("scale_attn_weights", "always", (True,)),
    IgnoredKey("fused_bias_fc fused_dropout_add_ln use_xentropy dense_seq_output reorder_and_upcast_attn"
             " pad_vocab_size_multiple", "how it is computed, not what"),
)
_CLASSES = ("NomicBertModel", "NomicBertForMaskedLM")
_DROPS = (*bert.DROPS, *embeddings.language_heads("cls.predictions.*"))

SPEC = Architecture(
    name="nomic-bert", runtimes=("llama.cpp",),
    display_name="NomicBert",
    hf_classes=_CLASSES,
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=_DROPS, fixed={"causal": False}, renames=(("nomic_bert.", ""),),
                      classes=_CLASSES, forbidden_tensors=(_EXPERTS,), caveats=(*rope.CAVEATS, _BASE),
                      ignored_keys=IGNORED_KEYS),
        Dialect(
            "nomic", fields="hf", drops=_DROPS, renames=(("nomic_bert.", ""),), fixed={"causal": False},
            required_tensors=("encoder.layers.*.attn.Wqkv.weight", "emb_ln.weight"), classes=_CLASSES,
            forbidden_tensors=(_EXPERTS, "*layers.*.self_attn.q_proj.weight"), caveats=(*rope.CAVEATS, _STRETCH, _BASE),
            ignored_keys=IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "bert", "norm": "layer", "rope": "halves", "ffn": "gated", "activation": "silu"},
)
