"""The configuration of a model made of the config.json of a preset of KerasHub, for its class in transformers.

Source: keras-hub 0.32.0, `models/*/*_backbone.py` (what is computed), `utils/transformers/export/*.py` (what is
exported as which class, and with which context length).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggferry.formats.errors import InconsistentError, MissingError, UnsupportedError
from ggferry.formats.json_files.kinds import JSONObject

HINT = "convert the original checkpoint, in transformers' form"
_PACKAGES = ("keras_hub>", "keras_nlp>")
_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_query_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "head_dim": "head_dim",
    "layer_norm_epsilon": "rms_norm_eps",
    "rope_max_wavelength": "rope_theta",
}
_GPT2 = {
    "vocabulary_size": "vocab_size",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "hidden_dim": "n_embd",
    "intermediate_dim": "n_inner",
    "max_sequence_length": "n_positions",
}
_TEXT_ONLY: Mapping[str, Any] = {
    "vision_encoder": None,
    "use_bidirectional_attention": False,
    "is_embedding_model": False,
    "use_query_key_norm": True,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "use_sliding_window_attention": True,
    "attention_logit_soft_cap": None,
    "final_logit_soft_cap": None,
    "local_rope_scaling_factor": 1.0,
}
"""What Gemma3Backbone says of a model that Gemma3ForCausalLM is."""
_PLAIN: Mapping[str, Any] = {
    "use_post_ffw_norm": False,
    "use_post_attention_norm": False,
    "attention_logit_soft_cap": None,
    "final_logit_soft_cap": None,
    "use_sliding_window_attention": False,
}
"""What GemmaBackbone says of a model that GemmaForCausalLM is."""
_SECOND = {"use_post_ffw_norm": True, "use_post_attention_norm": True, "use_sliding_window_attention": True}
"""What it says of one that Gemma2ForCausalLM is."""


def configuration(declared: Mapping[str, Any], path: str) -> JSONObject:
    """Return a configuration as transformers has it. KerasHub states no length of context: see `context_note`.

    Raises UnsupportedError for another class, or for what its class in transformers does not compute; MissingError.
    """
    name, registered, own = (declared.get(key) for key in ("class_name", "registered_name", "config"))
    if not isinstance(registered, str) or not registered.startswith(_PACKAGES) or not isinstance(own, Mapping):
        raise MissingError("config.json is not one of a KerasHub preset", path=path, found=registered, hint=HINT)
    make = _CLASSES.get(name) if isinstance(name, str) else None
    if make is None:
        expected = ", ".join(_CLASSES)
        raise UnsupportedError("KerasHub's names of this class", path=path, found=name, expected=expected, hint=HINT)
    return make(own, path)


def context_note(config: Mapping[str, Any]) -> str:
    """Return a note on the length of context, which config.json does not have."""
    length = config.get("max_position_embeddings")
    taken = "transformers' default" if length is None else f"{length}, as KerasHub exports the class,"
    return f"config.json states no length of context: {taken} is taken; --hparam context_length=N"


def _renamed(own: Mapping[str, Any], names: Mapping[str, str]) -> JSONObject:
    return {theirs: own[key] for key, theirs in names.items() if own.get(key) is not None}


def _check(own: Mapping[str, Any], expected: Mapping[str, Any], path: str, class_name: str) -> None:
    for key, value in expected.items():
        if key in own and own[key] != value:
            message = f"{key} of a model that {class_name} does not compute"
            raise UnsupportedError(message, path=path, found=own[key], expected=value, hint=HINT)


def _number(own: Mapping[str, Any], key: str, path: str) -> int:
    value = own.get(key)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise InconsistentError(key, path=path, found=value, expected="a number in config.json")
    return value


def _query_scalar(own: Mapping[str, Any], path: str) -> int:
    """Return the number by whose root scores are divided."""
    if own.get("query_head_dim_normalize", True):
        return _number(own, "head_dim", path)
    return _number(own, "hidden_dim", path) // _number(own, "num_query_heads", path)


def _gemma(own: Mapping[str, Any], path: str) -> JSONObject:
    """GemmaBackbone: Gemma, or Gemma 2; what it calls the size of the feed-forward is that of gate and up together."""
    second = bool(own.get("use_post_ffw_norm"))
    name = "Gemma2ForCausalLM" if second else "GemmaForCausalLM"
    _check(own, _SECOND if second else _PLAIN, path, name)
    scalar = _query_scalar(own, path)
    made = {
        "architectures": [name],
        "model_type": "gemma2" if second else "gemma",
        **_renamed(own, _SIZES),
        "intermediate_size": _number(own, "intermediate_dim", path) // 2,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if not second:
        _check({"query_head_dim_normalize": scalar}, {"query_head_dim_normalize": own.get("head_dim")}, path, name)
        return {**made, "hidden_act": "gelu_pytorch_tanh"}
    return {
        **made,
        "query_pre_attn_scalar": scalar,
        "sliding_window": own.get("sliding_window_size"),
        "attn_logit_softcapping": own.get("attention_logit_soft_cap"),
        "final_logit_softcapping": own.get("final_logit_soft_cap"),
    }


def _gemma3(own: Mapping[str, Any], path: str) -> JSONObject:
    name = "Gemma3ForCausalLM"
    _check(own, _TEXT_ONLY, path, name)
    factor = own.get("global_rope_scaling_factor", 1.0)
    return {
        "architectures": [name],
        "model_type": "gemma3_text",
        **_renamed(own, _SIZES),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(own, path),
        "sliding_window": own.get("sliding_window_size"),
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        **({"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {}),
    }


def _decoder(own: Mapping[str, Any], name: str, kind: str) -> JSONObject:
    """Return what Llama and its relatives have in common."""
    factor = own.get("rope_scaling_factor", own.get("rope_position_scaling_factor", 1.0))
    made = {"architectures": [name], "model_type": kind, **_renamed(own, _SIZES), "hidden_act": "silu"}
    return {**made, **({"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {})}


def _llama(own: Mapping[str, Any], path: str) -> JSONObject:
    made = _decoder(own, "LlamaForCausalLM", "llama")
    if (factor := own.get("rope_frequency_adjustment_factor")) is None:
        return made
    _check(own, {"rope_position_scaling_factor": 1.0}, path, "LlamaForCausalLM")
    scaled = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": own.get("rope_low_freq_factor"),
        "high_freq_factor": own.get("rope_high_freq_factor"),
        "original_max_position_embeddings": own.get("rope_pretraining_sequence_length"),
    }
    return {**made, "rope_scaling": scaled, "max_position_embeddings": 131072}


def _llama3(own: Mapping[str, Any], path: str) -> JSONObject:
    return {"max_position_embeddings": 8192, **_llama(own, path)}


def _mistral(own: Mapping[str, Any], path: str) -> JSONObject:
    made = _decoder(own, "MistralForCausalLM", "mistral")
    return {**made, "sliding_window": own.get("sliding_window"), "max_position_embeddings": 32768}


def _qwen(own: Mapping[str, Any], path: str) -> JSONObject:
    _check(own, {"use_sliding_window_attention": False}, path, "Qwen2ForCausalLM")
    return {**_decoder(own, "Qwen2ForCausalLM", "qwen2"), "use_sliding_window": False}


def _qwen3(own: Mapping[str, Any], path: str) -> JSONObject:
    """Qwen3Backbone, whose window, where it has one, is in every block."""
    made = _decoder(own, "Qwen3ForCausalLM", "qwen3")
    if (window := own.get("sliding_window_size")) is None:
        return {**made, "use_sliding_window": False}
    return {**made, "use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}


def _gpt2(own: Mapping[str, Any], path: str) -> JSONObject:
    made = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **_renamed(own, _GPT2)}
    return {**made, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}


_CLASSES = {
    "GemmaBackbone": _gemma,
    "Gemma3Backbone": _gemma3,
    "LlamaBackbone": _llama,
    "Llama3Backbone": _llama3,
    "MistralBackbone": _mistral,
    "QwenBackbone": _qwen,
    "Qwen3Backbone": _qwen3,
    "GPT2Backbone": _gpt2,
}
