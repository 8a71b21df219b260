"""Gemma 4's assistant: a draft of a few blocks, which attend to the keys and values of the model it guesses for.

It has a vocabulary and embeddings of its own. GGUF calls all its blocks such as predict further tokens. Tables of which
tokens are alike (`masked_embedding`) are not carried: llama.cpp computes all logits. Source: llama.cpp
`src/models/gemma4-assistant.cpp`, `conversion/gemma.py`, transformers `modeling_gemma4_assistant.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gemma4 as gemma4
from ggferry.converters.architectures import _gemma_layers as gemma
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL

HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF,
    HParam("n_nextn", "nextn_predict_layers", derive="n_layer", check="n_nextn == n_layer"),
    HParam("n_embd_target", "embedding_length_out", fields={"hf": "backbone_hidden_size"},
           check="n_embd_target != n_embd"),
    *gemma4.WINDOWS,
    HParam("shared_stated", None, fields={"hf": "num_kv_shared_layers"}, required=False,
           check="shared_stated == 0 or shared_stated == n_layer"),
    HParam("shared_kv_layers", "attention.shared_kv_layers", derive="n_layer", check="shared_kv_layers == n_layer"),
    *gemma4.HEADS, common.RMS_EPS, *gemma4.ROPE, common.ALWAYS_TIED, common.GEMMA_GELU,
    HParam("double_wide", None, BOOL, {"hf": "use_double_wide_mlp"}, words={False: False}, required=False),
    HParam("moe_block", None, BOOL, {"hf": "enable_moe_block"}, words={False: False}, required=False),
    HParam("n_embd_per_layer", None, fields={"hf": "hidden_size_per_layer_input"}, words={0: 0}, required=False),
    HParam("ordered", None, BOOL, {"hf": "use_ordered_embeddings"}, required=False),
)

ROLES = roles(
    tensors.embedding(output=""),
    "rope_freqs.weight f32 : head_dim_full/2 | hf =factors",
    """
    nextn.pre_projection.weight  : n_embd 2*n_embd_target | hf pre_projection.weight
    nextn.post_projection.weight : n_embd_target n_embd   | hf post_projection.weight
    """,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.linear("attn_q", "n_head*head_dim n_embd", "self_attn.q_proj"),
        tensors.linear("attn_output", "n_embd n_head*head_dim", "self_attn.o_proj"),
        tensors.norm("attn_q_norm", "self_attn.q_norm", width="head_dim"),
        gemma.feed_forward_norms(),
        tensors.gated(),
        "layer_output_scale.weight : 1 | hf layer_scalar",
    ),
    factors=gemma.proportional_factors,
)

_TABLES = "tables of which tokens are alike, with which transformers computes few logits: llama.cpp computes all"
UNUSED = tuple(
    Drop(f"model.layers.{{n}}.self_attn.{name}.weight", "of a block that takes over keys and values")
    for name in ("k_proj", "v_proj", "k_norm")
)

SPEC = Architecture(
    name="gemma4-assistant", runtimes=("llama.cpp",),
    display_name="Gemma 4's assistant",
    hf_classes=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*UNUSED, Drop("masked_embedding.*", _TABLES), *common.DROPS),
            caveats=(Caveat("ordered == 1", _TABLES),),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            fixed={"attn_scale": 1.0},
            ignored_keys=(
                common.UNBIASED, gemma.BY_BLOCK, *gemma.IGNORED_KEYS,
                IgnoredKey("final_logit_softcapping", "transformers and llama.cpp cap no logits of an assistant"),
                IgnoredKey("num_centroids centroid_intermediate_top_k", "of tables that are not carried"),
                IgnoredKey("use_bidirectional_attention", "its tokens do not see one another"),
                IgnoredKey("num_experts top_k_experts moe_intermediate_size expert_intermediate_size",
                    "there are none"),
            ),
        ),
        Dialect("gguf", fixed={"attn_scale": 1.0}),
    ),
    recipe={
        "computation": "ggferry.converters.forward.drafts.gemma4_assistant", "rope": "halves",
        "activation": "gelu_tanh",
    },
)
