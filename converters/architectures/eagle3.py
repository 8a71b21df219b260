"""EAGLE-3: a draft of one block for another model, of which it reads states of three blocks.

GGUF has rows of queries and keys in pairs. `d2t` of a checkpoint says how far the target's id of a draft's token is
ahead of it; GGUF's holds the ids. Without embeddings or an output matrix of its own a draft uses its target's.
Source: llama.cpp `src/models/eagle3.cpp`, `conversion/llama.py`; vLLM and SGLang for which states a configuration
counts (`_drafts.eagle_layers`).
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _drafts as drafts
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import TARGET, Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL

HPARAMS = (
    drafts.N_VOCAB, drafts.TARGET_VOCAB, *common.SIZES[1:], common.RMS_EPS, *rope.LLAMA3_ROPE, common.SILU,
    HParam("only", None, derive="n_layer", check="only == 1"),
    HParam("target_stated", None, fields={"hf": "eagle_aux_hidden_state_layer_ids"}, required=False, length="3"),
    HParam("target_outputs", None, fields={"hf": "eagle_config.eagle_aux_hidden_state_layer_ids"}, required=False,
           length="3"),
    HParam("n_layer_target", None, fields={"hf": f"{TARGET}.num_hidden_layers"}, required=False),
    HParam("target_layers", "target_layers", ValueType.INT32, derive=drafts.eagle_layers, length="3"),
    HParam("n_embd_target", "target_hidden_size", fields={"hf": f"target_hidden_size|{TARGET}.hidden_size"}),
    HParam("norm_before_residual", "norm_before_residual", BOOL, {"hf": "norm_before_residual"}, absent=False),
    HParam("norm_before_fc", "norm_before_fc", BOOL, {"hf": "norm_before_fc"}, absent=False),
    *drafts.DRAFT_ROWS,
)

ROLES = roles(
    drafts.frame("fc", "input_norm", rows="3*n_embd_target", width="3*n_embd_target",
                 norm_when="norm_before_fc == 1"),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.norm("attn_norm_2", "hidden_norm"),
        tensors.linear("attn_q", "n_head*head_dim 2*n_embd", "self_attn.q_proj", heads_halves_to_pairs("n_head")),
        tensors.linear("attn_k", "n_head_kv*head_dim 2*n_embd", "self_attn.k_proj", heads_halves_to_pairs("n_head_kv")),
        tensors.linear("attn_v", "n_head_kv*head_dim_v 2*n_embd", "self_attn.v_proj"),
        tensors.linear("attn_output", "n_embd n_head*head_dim_v", "self_attn.o_proj"),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
        layer="layers.{n}.",
    ),
)

SPEC = Architecture(
    name="eagle3", runtimes=("llama.cpp",),
    display_name="EAGLE-3",
    hf_classes=("Eagle3DraftModel", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "LlamaForCausalLMEagle3"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"rope": "halves", "draft_rows": "offsets"},
            drops=(drafts.DROP_T2D, common.DROP_BUFFERS),
            caveats=(rope.DYNAMIC, rope.BETAS),
            config_section="transformer_layer_config",
            renames=(("midlayer.", "layers.0."), ("model.", "")),
            ignored_keys=(common.UNBIASED, drafts.IGNORED_KEYS, IgnoredKey("mlp_bias", "there is none", (False,)),
                      IgnoredKey("tie_word_embeddings", "the draft's own tensors are taken as they are")),
        ),
    ),
    recipe={"computation": "ggferry.converters.forward.drafts.eagle3"},
)
