"""Nomic's embeddings v2: NomicBert whose every second block has experts; biases, plain feed-forwards.

A router's weights are shares among all experts, and those of the chosen ones are not made to sum to one. The bias that
nomic-ai's code adds to the sum of the experts has no place in llama.cpp's graph: it is dropped by name. Sources:
nomic-ai's `modeling_hf_nomic_bert.py` (`NomicExperts`, `NomicRouter`), also in vLLM's `bert_with_rope.py`; llama.cpp
`src/models/{nomic-bert-moe,bert}.cpp`, `conversion/bert.py`; `nomic_bert`.
"""

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.parts import Reshape, Transpose
from ggferry.converters.schema.roles import block, roles

_NO = {False: False}
_STACKED = Reshape(("n_expert", "n_ff", "n_embd"), back=("n_expert*n_ff", "n_embd"))
_ROTATED = Then(_STACKED, Transpose())
_ROUTED = "n % moe_every == 1"

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *embeddings.MODES,
    HParam("pooling", "pooling_type", derive="@pooling_type",
           defaults=(Default(1, "Nomic's embeddings are means"),)),
    HParam("rope_base", "rope.freq_base", common.F32, {"hf": "rotary_emb_base|rope_theta"},
           defaults=(Default(10000.0, "the default of nomic-ai's code, and of readers of GGUF"),),
           check="rope_base > 1"),
    HParam("n_rot", "rope.dimension_count", derive="n_embd / n_head",
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot * n_head <= n_embd"),
    HParam("moe_every", "moe_every_n_layers", fields={"hf": "moe_every_n_layers"}, check="1 < moe_every"),
    HParam("n_expert", "expert_count", fields={"hf": "num_experts"}),
    HParam("n_expert_used", "expert_used_count", fields={"hf": "moe_top_k"},
           check="0 < n_expert_used and n_expert_used <= n_expert"),
    HParam("expert_normed", None, common.BOOL, {"hf": "moe_normalize_expert_weights"}, words=_NO, required=False),
    HParam("activation", None, common.STRING, {"hf": "activation_function"}, words={"gelu": "gelu"}, required=False),
    HParam("rope_fraction", None, common.F32, {"hf": "rotary_emb_fraction"}, words={1: 1.0}, required=False),
    HParam("rope_pairs", None, common.BOOL, {"hf": "rotary_emb_interleaved"}, words=_NO, required=False),
    HParam("rope_heads", None, common.BOOL, {"hf": "rotary_head_dim"}, words=_NO, required=False),
    HParam("pre_norm", None, common.BOOL, {"hf": "prenorm"}, words=_NO, required=False),
    HParam("shared_experts", None, common.BOOL, {"hf": "num_shared_experts"}, words=_NO, required=False),
    HParam("stretch", None, common.F32, {"hf": "rotary_scaling_factor"}, required=False),
)

_STRETCH = Caveat(
    "stretch > 0",
    "beyond {n_ctx} tokens nomic-ai's own code stretches the rotary base by {stretch}: GGUF has no key for that",
)
_BIAS = Drop(
    "encoder.layers.{n}.mlp.experts.bias",
    "added to the sum of the experts, for which llama.cpp's nomic-bert-moe has no place: the vectors are those without",
)
_IGNORED_KEYS = (
    *bert.IGNORED_KEYS,
    IgnoredKey("n_positions", "how far nomic-ai's own code stretches, which max_trained_positions is not"),
    IgnoredKey("causal parallel_block parallel_block_tied_norm use_rms_norm scale_attn_by_inverse_layer_idx"
             " add_pooling_layer", "never", (False,)),
    IgnoredKey("mlp_fc1_bias mlp_fc2_bias qkv_proj_bias scale_attn_weights", "always", (True,)),
    IgnoredKey("fused_bias_fc fused_dropout_add_ln use_xentropy dense_seq_output reorder_and_upcast_attn"
             " pad_vocab_size_multiple moe_impl moe_resid_pdrop expert_choice_router ffn_div",
             "how it is computed, not what"),
)

ROLES = roles(
    tensors.linear("token_embd", "n_vocab n_embd", "embeddings.word_embeddings"),
    "token_types.weight f32 when=n_types > 0 : n_types n_embd | hf embeddings.token_type_embeddings.weight",
    tensors.norm("token_embd_norm", "emb_ln", bias=True),
    block(
        tensors.fused_attention("attn.Wqkv", "attn.out_proj", rows="3*n_embd", columns="n_embd", bias=True),
        tensors.norm("attn_output_norm", "norm1", bias=True),
        (
            tensors.tensor("ffn_gate_inp.weight", "n_expert n_embd", "mlp.router.layer.weight", f32=True, when=_ROUTED),
            tensors.tensor("ffn_up_exps.weight", "n_expert n_ff n_embd", "mlp.experts.mlp.w1", _STACKED, when=_ROUTED),
            tensors.tensor("ffn_down_exps.weight", "n_expert n_embd n_ff", "mlp.experts.mlp.w2", _ROTATED,
                when=_ROUTED),
        ),
        tensors.linear("ffn_up", "n_ff n_embd", "mlp.fc1", bias=True, when="n % moe_every != 1"),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.fc2", bias=True, when="n % moe_every != 1"),
        tensors.norm("layer_output_norm", "norm2", bias=True),
        layer="encoder.layers.{n}.",
    ),
)

SPEC = Architecture(
    name="nomic-bert-moe", runtimes=("llama.cpp",),
    display_name="NomicBert with experts",
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"transposed": ("ffn_down_exps",)},
            drops=(*bert.DROPS, _BIAS),
            fixed={"causal": False},
            classes=("NomicBertModel",),
            caveats=(_STRETCH,),
            ignored_keys=_IGNORED_KEYS,
        ),
    ),
    recipe={"computation": "bert", "norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu"},
)
