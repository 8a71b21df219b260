"""The configuration of a model made of Megatron-LM's arguments, which its checkpoints keep.

Source: Megatron-LM `training/arguments.py` (names, defaults), `core_transformer_config_from_args`; Megatron-Bridge
`conversion/model_bridge.py` (`CONFIG_MAPPING`) for what transformers calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggferry.formats.errors import MissingError, UnsupportedError
from ggferry.formats.json_files.kinds import JSONObject

_HINT = "--hf-config DIR takes the configuration of the model that was trained"
_COMMON: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("rope", "learned_absolute"),
    "multi_latent_attention": (False,),
    "rotary_interleaved": (False,),
    "rotary_seq_len_interpolation_factor": (1,),
    "window_size": (),
    "softmax_type": ("vanilla",),
    "softmax_scale": (),
    "qk_l2_norm": (False,),
    "attention_output_gate": (False,),
    "no_rope_freq": (),
    "quick_geglu": (False,),
    "openai_gelu": (False, True),
    "apply_residual_connection_post_layernorm": (False,),
    "glu_linear_offset": (0,),
    "activation_func_clamp_value": (),
    "mtp_num_layers": (0,),
    "spec": (),
    "heterogeneous_layers_config_path": (),
    "heterogeneous_layers_config_encoded_json": (),
    "moe_layer_freq": (1,),
    "moe_router_score_function": ("softmax",),
    "moe_router_enable_expert_bias": (False,),
    "moe_router_topk_scaling_factor": (1,),
    "moe_router_num_groups": (),
    "moe_shared_expert_intermediate_size": (),
    "moe_apply_probs_on_input": (False,),
    "moe_latent_size": (),
    "use_mup": (False,),
}
"""Argument → the values with which a model is one of the classes that are known here; None is always one."""
_LAYOUT: dict[str, tuple[Any, ...]] = {"rotary_interleaved": (False,)}
"""The same, of arguments that no configuration of transformers says anything about."""
_MOST = 1e12  # of any number of them; the greatest known base of rotary embeddings is 1e7
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What `RotaryEmbedding._apply_scaling` of megatron-core takes beside the factor."""


def check_layout(args: Mapping[str, Any], path: str, zero_centered: bool) -> None:
    """Check that weights mean what the class takes them for. Raises UnsupportedError."""
    _check(args, _LAYOUT, path)
    if args and bool(args.get("apply_layernorm_1p")) != zero_centered:
        found = f"--apply-layernorm-1p is {bool(args.get('apply_layernorm_1p'))}"
        message = "weights of norms are stored less one where the class has them whole, or the other way round"
        raise UnsupportedError(message, path=path, found=found)


def configuration(args: Mapping[str, Any], path: str) -> JSONObject:
    """Return a configuration as transformers has it.

    Raises UnsupportedError for a model of no class that is known here, MissingError where an argument is not there.
    """
    _check(args, _COMMON, path)
    name = _class(args)
    if name is None:
        shown = ("normalization", "swiglu", "squared_relu", "add_bias_linear", "qk_layernorm", "num_experts")
        found = ", ".join(f"{key}={args.get(key)}" for key in shown)
        raise UnsupportedError(
            "the training arguments fit no model class that is read", path=path, found=found, hint=_HINT
        )
    made = {"architectures": [name], **(_gpt2(args, path) if name == "GPT2LMHeadModel" else _decoder(args, name, path))}
    vocab = args.get("vocab_size") or args.get("padded_vocab_size")
    return {**made, **({"vocab_size": vocab} if isinstance(vocab, int) else {})}


def _check(args: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]], path: str) -> None:
    for key, values in allowed.items():
        value = args.get(key)
        if value is not None and value not in values:
            message = f"a model with --{key.replace('_', '-')}"
            hint = "save it by Megatron-Bridge in transformers' form" if key in _LAYOUT else _HINT
            raise UnsupportedError(message, path=path, found=value, expected=values[0] if values else None, hint=hint)


def _class(args: Mapping[str, Any]) -> str | None:
    """Return the class that computes what these arguments say; None where none does."""
    norm, biased = args.get("normalization"), bool(args.get("add_bias_linear"))
    centered, rope = bool(args.get("apply_layernorm_1p")), args.get("position_embedding_type") == "rope"
    qkv, normed, experts = (bool(args.get(key)) for key in ("add_qkv_bias", "qk_layernorm", "num_experts"))
    if norm == "RMSNorm" and args.get("swiglu") and rope and not (biased or centered):
        if experts:
            known = {(False, False): "MixtralForCausalLM", (False, True): "Qwen3MoeForCausalLM"}
            found = known.get((qkv, normed))
            return None if found == "MixtralForCausalLM" and args.get("moe_router_pre_softmax") else found
        dense = {(False, False): "LlamaForCausalLM", (True, False): "Qwen2ForCausalLM"}
        return {**dense, (False, True): "Qwen3ForCausalLM"}.get((qkv, normed))
    if norm != "LayerNorm" or args.get("swiglu") or qkv != biased or normed or experts:
        return None
    if args.get("squared_relu"):
        return "NemotronForCausalLM" if rope and centered and not biased else None
    alone = args.get("num_query_groups") in (None, args.get("num_attention_heads"))
    plain = alone or not args.get("group_query_attention")
    tied = not args.get("untie_embeddings_and_output_weights")
    return "GPT2LMHeadModel" if not rope and biased and plain and tied and not centered else None


def _decoder(args: Mapping[str, Any], name: str, path: str) -> JSONObject:
    heads = _number(args, "num_attention_heads", path)
    width = _number(args, "hidden_size", path)
    grouped = args.get("group_query_attention") and args.get("num_query_groups")
    made: JSONObject = {
        "model_type": _MODEL_TYPES[name],
        "num_hidden_layers": _number(args, "num_layers", path),
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": grouped or heads,
        "head_dim": args.get("kv_channels") or width // heads,
        "max_position_embeddings": _number(args, "max_position_embeddings", path),
        "rope_theta": _real(args, "rotary_base", 10000.0, path),
        "tie_word_embeddings": not args.get("untie_embeddings_and_output_weights"),
        "intermediate_size": _number(args, "ffn_hidden_size", path),
        "norm_eps" if name == "NemotronForCausalLM" else "rms_norm_eps": _real(args, "norm_epsilon", 1e-5, path),
        "hidden_act": "relu2" if name == "NemotronForCausalLM" else "silu",
    }
    part = _real(args, "rotary_percent", 1.0, path)
    if name == "NemotronForCausalLM":
        made["partial_rotary_factor"] = part
    elif part != 1.0:
        raise UnsupportedError("only a part of each head is rotated", path=path, found=part, expected=1.0, hint=_HINT)
    if args.get("use_rope_scaling"):
        factor = _real(args, "rope_scaling_factor", 8.0, path)
        made["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    experts = args.get("num_experts")
    if experts:
        made["num_experts_per_tok"] = _number(args, "moe_router_topk", path)
        width = args.get("moe_ffn_hidden_size") or made["intermediate_size"]
        if name == "MixtralForCausalLM":
            made |= {"num_local_experts": experts, "intermediate_size": width}
        else:
            normed = not args.get("moe_router_pre_softmax")
            made |= {"num_experts": experts, "moe_intermediate_size": width, "norm_topk_prob": normed}
    return made


_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "NemotronForCausalLM": "nemotron",
}


def _gpt2(args: Mapping[str, Any], path: str) -> JSONObject:
    tanh = args.get("bias_gelu_fusion") or args.get("openai_gelu")  # both take the approximation by tanh
    return {
        "model_type": "gpt2",
        "n_layer": _number(args, "num_layers", path),
        "n_embd": _number(args, "hidden_size", path),
        "n_head": _number(args, "num_attention_heads", path),
        "n_inner": _number(args, "ffn_hidden_size", path),
        "n_positions": _number(args, "max_position_embeddings", path),
        "layer_norm_epsilon": _real(args, "norm_epsilon", 1e-5, path),
        "activation_function": "gelu_new" if tanh else "gelu",
    }


def _number(args: Mapping[str, Any], key: str, path: str) -> int:
    found = args.get(key)
    if type(found) is not int or found < 1:
        raise MissingError(f"--{key.replace('_', '-')} of the training", path=path, found=found, hint=_HINT)
    return found


def _real(args: Mapping[str, Any], key: str, default: float, path: str) -> float:
    found = args.get(key, default)
    if found is None:
        return default
    if type(found) not in (int, float) or not 0 < found < _MOST:
        raise MissingError(f"--{key.replace('_', '-')} of the training", path=path, found=found, hint=_HINT)
    return float(found)
