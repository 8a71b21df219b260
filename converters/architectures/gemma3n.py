"""Gemma 3n, the text half: four streams, of which every block computes one and corrects the others by it; a low-rank
branch beside attention; an embedding of every block for each token; the last blocks take over keys and values.

Source: llama.cpp `src/models/gemma3n.cpp`, `conversion/gemma.py`, transformers `modeling_gemma3n.py`. llama.cpp has
constants for much of it.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma_layers as gemma
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.block_patterns import window_layers
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

F32, BOOL, STRING = ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
_HF = "transformers' default"

STREAMS = (
    HParam("n_altup", "altup.num_inputs", fields={"hf": "altup_num_inputs"}, defaults=(Default(4, _HF, dialect="hf"),),
           check="1 < n_altup"),
    HParam("altup_active", "altup.active_idx", fields={"hf": "altup_active_idx"},
           defaults=(Default(0, _HF, dialect="hf"),), check="altup_active < n_altup"),
    HParam("altup_scaled", None, BOOL, {"hf": "altup_correct_scale"}, words={True: True}, required=False),
    HParam("laurel_rank", None, fields={"hf": "laurel_rank"}),
    HParam("sparsity_stated", None, F32, {"hf": "activation_sparsity_pattern"}, length="n_layer", allow_scalar=True,
           required=False),
    HParam("sparsity_scale", "activation_sparsity_scale", F32, derive=gemma.sparsity, length="n_layer"),
    HParam("sparsity_odd", None, derive=gemma.sparse_unlike_published),
)
ATTENTION = (
    HParam("n_swa", "attention.sliding_window", fields={"hf": "sliding_window"},
           defaults=(Default(512, _HF, dialect="hf"),), check="0 < n_swa"),
    common.LAYER_WINDOWS, HParam("window_period", None, required=False, defaults=(Default(5, _HF, dialect="hf"),)),
    common.N_WINDOWS,
    HParam("swa_layers", "attention.sliding_window_pattern", BOOL, derive=window_layers, length="n_layer"),
    HParam("shared_kv_layers", "attention.shared_kv_layers", fields={"hf": "num_kv_shared_layers"},
           defaults=(Default(15, _HF, dialect="hf"),), check="shared_kv_layers < n_layer"),
    HParam("attn_scale", None, F32),
    *gemma.BASES,
    HParam("rope_kind", None, STRING, {"hf": "rope_parameters.full_attention.rope_type|rope_scaling.rope_type"},
           words={"default": "default"}, required=False),
    HParam("n_rot", "rope.dimension_count", derive="head_dim",
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot <= head_dim"),
)
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER,
    HParam("n_ff", "feed_forward_length", fields={"hf": "intermediate_size"}, length="n_layer", allow_scalar=True),
    common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V, common.RMS_EPS, *ATTENTION, *STREAMS,
    gemma.N_EMBD_PER_LAYER, gemma.SOFTCAP, common.ALWAYS_TIED, common.GEMMA_GELU,
    common.GEMMA_ERF,
)

ROLES = roles(
    tensors.embedding(),
    gemma.block_embeddings(),
    """
    altup_proj.weight        : n_altup-1 n_embd n_embd | hf model.altup_projections.{e}.weight @stack
    altup_unembd_proj.weight : n_altup-1 n_embd n_embd | hf model.altup_unembed_projections.{e}.weight @stack
    """,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        """
        attn_q.weight               : n_head*head_dim n_embd       | hf self_attn.q_proj.weight
        attn_k.weight optional      : n_head_kv*head_dim n_embd    | hf self_attn.k_proj.weight
        attn_v.weight optional      : n_head_kv*head_dim_v n_embd  | hf self_attn.v_proj.weight
        attn_output.weight          : n_embd n_head*head_dim_v     | hf self_attn.o_proj.weight
        attn_q_norm.weight f32      : head_dim                     | hf self_attn.q_norm.weight
        attn_k_norm.weight f32 optional : head_dim                 | hf self_attn.k_norm.weight
        """,
        gemma.feed_forward_norms(),
        tensors.gated(),
        gemma.block_input(),
        """
        altup_router.weight          : n_altup n_embd           | hf altup.modality_router.weight
        altup_router_norm.weight f32 : n_embd                   | hf altup.router_norm.weight
        altup_predict_coef.weight    : n_altup*n_altup n_altup  | hf altup.prediction_coefs.weight
        altup_correct_coef.weight    : n_altup n_altup          | hf altup.correction_coefs.weight
        altup_correct_scale.weight f32 : n_embd                 | hf altup.correct_output_scale
        laurel_l.weight              : laurel_rank n_embd       | hf laurel.linear_left.weight
        laurel_r.weight              : n_embd laurel_rank       | hf laurel.linear_right.weight
        laurel_post_norm.weight f32  : n_embd                   | hf laurel.post_laurel_norm.weight
        """,
    ),
    stack=Stack(),
)

CAVEATS = (
    Caveat("n_embd_per_layer != 256 or laurel_rank != 64", "llama.cpp does not load this model: embeddings of blocks "
           "are 256 wide and Laurel's rank is 64 there, {n_embd_per_layer} and {laurel_rank} here",
           unsupported_by="llama.cpp"),
    Caveat("n_layer >= 20 and n_layer - shared_kv_layers != 20 or n_layer < 20 and shared_kv_layers > 0",
           "llama.cpp runs this differently: blocks take over keys and values from the 21st on, and in this model the "
           "last {shared_kv_layers} of {n_layer}", unsupported_by="llama.cpp"),
    Caveat("n_altup != 4 or altup_active != 0 or final_softcap != 30",
           "llama.cpp runs this differently: there are four streams, number 0 is computed, and logits are capped at "
           "30 there; {n_altup}, number {altup_active} and {final_softcap} here", unsupported_by="llama.cpp"),
    Caveat("sparsity_odd > 0", "llama.cpp runs this differently: it keeps a twentieth of the gates in the first ten "
           "blocks, which {sparsity_odd} blocks of this model contradict", unsupported_by="llama.cpp"),
)

SPEC = Architecture(
    name="gemma3n", runtimes=("llama.cpp",),
    display_name="Gemma 3n",
    hf_classes=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*common.DROPS, *gemma.DROPS),
            caveats=(common.ERF,),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            fixed={"attn_scale": 1.0},
            ignored_keys=(common.UNBIASED, *gemma.IGNORED_KEYS, gemma.CLIP),
        ),
        Dialect("gguf", fixed={"attn_scale": 1.0}),
    ),
    recipe={
        "computation": "gemma3n", "rope": "halves", "activation": "gelu_tanh", "embedding_scale": "sqrt_width",
        "v_norm": True,
    },
    caveats=CAVEATS,
)
