"""Write the model types, classes and configuration keys that transformers knows.

    python tools/transformers_keys.py > converters/hf_export/transformers_keys.txt

Run where transformers is installed. Only classes that a table of ggferry names are listed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.open_checkpoint import architectures

HEAD = """\
# What transformers {version} knows of the classes in our tables: model type | classes | keys of its configuration.
# Made by tools/transformers_keys.py; not edited by hand.
"""
EVERY = set(transformers.PretrainedConfig().to_dict()) - {"tie_word_embeddings", "is_decoder", "add_cross_attention"}
HALVES = (
    "vision_config",
    "audio_config",
    "encoder_config",
    "vq_config",
    "talker_config",
    "code2wav_config",
    "token2wav_config",
)
LISTED = (
    "rope_parameters",
    "rope_scaling",
    "attn_config",
    "ffn_config",
    "text_config",
    "linear_attn_config",
    "thinker_config",
)

UNTRIED = {
    "CLIPModel",
    "Cohere2VisionForConditionalGeneration",
    "Gemma4AssistantForCausalLM",
    "Gemma4UnifiedAssistantForCausalLM",
    "JinaEmbeddingsV3ForMaskedLM",
    "JinaEmbeddingsV3Model",
    "Lfm2Model",
    "MuseGlimmerAssistantModel",
    "PocketTTSModel",
    "Qwen3ForSequenceClassification",
}
"""Classes that transformers knows and for which nobody has shown that a folder made of a GGUF file is right: they are
not listed, so that none is made (`tests/converters/hf_export/test_round_trip.py`, `UNSAID`)."""
_DOTS = (
    *(f"swa_{name}:int" for name in (
        "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "head_dim", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim",
    )),
    "rope_theta", "swa_rope_theta", "apply_mla_qkv_lora_rescale",
)  # fmt: skip
TAKEN: dict[str, tuple[str, ...]] = {
    "dots3_note": tuple(f"text_config.{key}" for key in _DOTS),
    "dots3_note_text": _DOTS,
    "glm_ocr": ("text_config.head_dim:int",),
}
"""Keys of published configurations that a class takes and writes otherwise itself, or has no choice in
(`Dots3NoteTextConfig.__post_init__`, `convert_rope_params_to_dict`); or that its code asks for by name and its
configuration lacks by default (GLM-OCR)."""
OF_TRAINING = {"initializer_range": ("hrm_text",)}
"""Keys that most configurations have, and the model types whose models compute with them."""
REQUIRED: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    }
}
"""What a configuration must state, where its own defaults are refused (`validate_architecture`, transformers 5.24)."""


def places() -> set[str]:
    """Return the places that our tables ask for: what else a configuration has is not listed."""
    tables = architectures().values()
    fields = (param.fields.get("hf", "") for spec in tables for param in spec.hparams)
    found = {place.partition(".*")[0] for text in fields for place in text.split("|")}
    entries = (entry for spec in tables for dialect in spec.dialects for entry in dialect.ignored_keys)
    found |= {key for entry in entries if entry.follows for key in entry.keys.split()}
    found |= {"bos_token_id", "eos_token_id", "pad_token_id", "vocabulary_map"}
    return found | {place.rpartition(".")[2] for place in found if place.startswith("rope_")}


def classes() -> dict[str, set[str]]:
    """Return the classes of our tables by the model types under which transformers lists them."""
    tables = architectures().values()
    known = {name for spec in tables for name in spec.hf_classes}
    known |= {name for spec in tables for dialect in spec.dialects for name in dialect.classes}
    found: dict[str, set[str]] = defaultdict(set)
    for name in dir(modeling_auto):
        if name.startswith("MODEL") and name.endswith("MAPPING_NAMES"):
            for kind, listed in getattr(modeling_auto, name).items():
                found[kind] |= known & set(listed if isinstance(listed, list | tuple) else (listed,))
    return {kind: names for kind, names in found.items() if names}


def keys(config: Mapping[str, Any], nullable: Collection[str], before: str = "") -> Iterator[str]:
    """Yield the keys of a configuration, with the words that their defaults use: 'a.b=word,word'.

    Those of whole numbers end in ':int'; behind it is '!' where a key must not be null.

    'a.b' is member b of the object a.
    """
    for key, value in config.items():
        if isinstance(value, Mapping) and (key in LISTED or before.endswith("rope_parameters.")):
            yield from keys(value, nullable, f"{before}{key}.")
        elif key not in EVERY and key not in HALVES and key != "model_type":
            listed = value if isinstance(value, list) else [value]
            words = list(dict.fromkeys(word for word in listed if isinstance(word, str) and " " not in word))
            whole = isinstance(value, int) and not isinstance(value, bool)
            kind = f"={','.join(words)}" if words else ":int" if whole else ""
            yield f"{before}{key}{kind}" + ("" if key in nullable or value is None else "!")


def nullable(kind: Any) -> set[str]:
    """Return the keys that may be null, by the annotations of a configuration and its bases and parts."""
    kinds = [*kind.__mro__, *(base for part in kind.sub_configs.values() for base in getattr(part, "__mro__", ()))]
    found = {
        name: str(hint) for each in reversed(kinds) for name, hint in vars(each).get("__annotations__", {}).items()
    }
    return {name for name, hint in found.items() if "None" in hint}


def is_settable(kind: Any, name: str) -> bool:
    """Return whether a configuration may be given this key."""
    found = getattr(kind, name, None)
    return not isinstance(found, property) or found.fset is not None


def main() -> None:
    """Print the table."""
    print(HEAD.format(version=transformers.__version__), end="")
    asked = places()
    tried = {kind: names - UNTRIED for kind, names in classes().items() if names - UNTRIED}
    for kind, names in sorted(tried.items()):
        kind_of = CONFIG_MAPPING[kind]
        settable = (alias for alias, name in kind_of.attribute_map.items() if is_settable(kind_of, name))
        default = kind_of(**REQUIRED.get(kind, {})).to_dict()
        stated = dict.fromkeys((*keys(default, nullable(kind_of)), *TAKEN.get(kind, ()), *settable))
        found = [
            key
            for key in stated
            if ((name := re.split("[=:!]", key)[0].removeprefix("text_config.")) in asked or name.startswith("rope_"))
            and kind in OF_TRAINING.get(name, (kind,))
        ]
        print(kind, " ".join(sorted(names)), " ".join(found), sep=" | ")


if __name__ == "__main__":
    main()
