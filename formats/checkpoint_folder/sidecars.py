"""The sidecar files of a training checkpoint: which ones are looked for, and the configuration they hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.folder import Weights
from ggferry.formats.checkpoint_folder.modules import described, module_files
from ggferry.formats.errors import InconsistentError, MissingError, NotFoundError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.formats.reader import Container, Kind, kind_of, names_in
from ggferry.support.records import dataclass
from ggferry.support.registry import scan

PREPROCESSOR = "preprocessor"
"""The key under which `with_preprocessor` puts what becomes of pictures and recordings before an encoder takes them
them."""
PROCESSORS = frozenset({"preprocessor_config", "processor_config"})
"""The roles of the files that `with_preprocessor` reads."""
ADDED_TOKENS = "added_tokens"
"""The key under which `with_preprocessor` puts the ids of special tokens."""
TEMPLATES = "additional_chat_templates"
NO_CONFIG = "no config.json stands beside the weights"


MISTRAL = tuple(f"tokenizer.model.{version}" for version in ("v7", "v7m1", "v3", "v2", "v1"))
"""SentencePiece files as Mistral numbers them (mistral_common, `is_sentencepiece`), the newest first."""


@dataclass(frozen=True, slots=True)
class SidecarFile:
    """A file that is looked for in the folder of the weights.

    Attributes:
        role: What the file is for.
        names: Its possible names; the first that exists is taken.
        tokenizer: Whether it says something about the tokenizer.
        vocabulary: Whether a tokenizer can be built from it.
        alias: A further name under which it is taken for this role, for this role only.
    """

    role: str
    names: tuple[str, ...]
    tokenizer: bool = False
    vocabulary: bool = False
    alias: str | None = None


SIDECARS = (
    SidecarFile("config", ("config.json",), tokenizer=True),
    SidecarFile("generation_config", ("generation_config.json",), tokenizer=True),
    SidecarFile("params.json", ("params.json",), tokenizer=True),
    SidecarFile("adapter_config", ("adapter_config.json",)),
    SidecarFile("sinq_layers", ("model.safetensors.index.json.meta.json",)),
    SidecarFile("quantize_config", ("quantize_config.json", "quant_config.json", "hf_quant_config.json")),
    SidecarFile(
        "tokenizer.model", ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", *MISTRAL), True, True
    ),
    SidecarFile("tokenizer.json", ("tokenizer.json",), True, True, "20B_tokenizer.json"),  # RWKV-4's Pile models
    SidecarFile("tekken.json", ("tekken.json",), True, True),
    SidecarFile("qwen.tiktoken", ("qwen.tiktoken",), True, True),
    SidecarFile("tokenizer_config", ("tokenizer_config.json",), tokenizer=True),
    SidecarFile("special_tokens_map", ("special_tokens_map.json",), tokenizer=True),
    SidecarFile("added_tokens", ("added_tokens.json",), tokenizer=True),
    SidecarFile("vocab.json", ("vocab.json",), True, True),
    SidecarFile("merges.txt", ("merges.txt",), tokenizer=True),
    SidecarFile("vocab.txt", ("vocab.txt",), True, True),
    SidecarFile("rwkv_vocab", ("rwkv_vocab_v20230424.txt",), True, True),
    SidecarFile("tokenizer.bin", ("tokenizer.bin",), True, True),  # of llama2.c
    SidecarFile("gpt2_tokenizer.bin", ("gpt2_tokenizer.bin",), True, True),  # of llm.c
    SidecarFile("chatglm-ggml.bin", ("chatglm-ggml.bin",), True, True),  # of chatglm.cpp, which holds its vocabulary
    SidecarFile("chat_template.jinja", ("chat_template.jinja",), tokenizer=True),
    SidecarFile("chat_template.json", ("chat_template.json",), tokenizer=True),
    SidecarFile("README.md", ("README.md",)),
    SidecarFile("modules.json", ("modules.json",)),
    SidecarFile("config_sentence_transformers.json", ("config_sentence_transformers.json",)),
    SidecarFile("sentence_bert_config.json", ("sentence_bert_config.json",)),
    SidecarFile("preprocessor_config", ("preprocessor_config.json",)),
    SidecarFile("processor_config", ("processor_config.json",)),
)


@cache
def sidecar_files() -> tuple[SidecarFile, ...]:
    """Return all files that are looked for; those of other distributions come last."""
    return tuple(file for files in scan("ggferry.formats.checkpoint_folder", "SIDECARS") for file in files)


@cache
def sidecar_names() -> tuple[str, ...]:
    """Return every name that is looked for in the folder of the weights."""
    return tuple(name for file in sidecar_files() for name in (*file.names, file.alias) if name)


@cache
def tokenizer_names() -> tuple[str, ...]:
    """Return the names of all files that say something about a tokenizer."""
    return tuple(name for file in sidecar_files() if file.tokenizer for name in file.names)


@cache
def vocabulary_names() -> frozenset[str]:
    """Return the names of all files from which a tokenizer can be built."""
    return frozenset(name for file in sidecar_files() if file.vocabulary for name in file.names)


def sidecars(weights: Weights) -> dict[str, str]:
    """Return role → path of the sidecar files of the weights.

    LLaMA 1 kept its tokenizer.model one folder up: it is looked for there when Meta's weights have none of their own.
    """
    names = names_in(weights.folder)
    found = {}
    for file in sidecar_files():
        name = next((name for name in (*file.names, file.alias) if name in names), None)
        if name is not None:
            found[file.role] = os.path.join(weights.folder, name)
    if TEMPLATES in names and os.path.isdir(os.path.join(weights.folder, TEMPLATES)):
        for name in sorted(names_in(os.path.join(weights.folder, TEMPLATES))):
            if name.endswith(".jinja"):
                found[f"chat_template:{name.removesuffix('.jinja')}"] = os.path.join(weights.folder, TEMPLATES, name)
    found |= module_files(weights.folder, names)
    above = os.path.join(weights.folder or ".", os.pardir, "tokenizer.model")
    if kind_of(weights.container) is Kind.META and "tokenizer.model" not in found and os.path.isfile(above):
        found["tokenizer.model"] = os.path.normpath(above)
    return found


def files_of(path: str, container: Container) -> dict[str, str]:
    """Return role → path of what is read beside a single file of a container (`Container.beside`)."""
    found = sidecars(Weights(container.name, os.path.dirname(path), (path,)))
    return {role: file for role, file in found.items() if role in container.beside}


def beside_or_above(weights: Weights) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the sidecar files of weights that a trainer wrote into a folder of their own, and notes for the user.

    Where there is no config.json beside them and one in the folder above, that folder's are taken.
    """
    beside = sidecars(weights)
    above = os.path.normpath(os.path.join(weights.folder or ".", os.pardir))
    if "config" in beside or not os.path.isfile(os.path.join(above, "config.json")):
        return beside, ()
    return sidecars(replace(weights, folder=above)), ("config.json was found in the folder above",)


def configured(checkpoint: Checkpoint, place: str) -> Checkpoint:
    """Return a training checkpoint that has no configuration with the one at `place`, and the files beside that.

    Args:
        checkpoint: The checkpoint.
        place: A config.json, or its folder.

    Raises UsageError where it has one of its own, NotFoundError where there is none, and as `configuration`.
    """
    path = os.path.join(place, "config.json") if os.path.isdir(place) else place
    if "config" in checkpoint.sidecars:
        hint = f"its own is {checkpoint.sidecars['config']}"
        raise UsageError("--hf-config: the checkpoint has a configuration", path=checkpoint.path, hint=hint)
    if not os.path.isfile(path):
        raise NotFoundError("no such configuration", path=path)
    weights = Weights(checkpoint.container, os.path.dirname(path), (checkpoint.path,))
    beside = {**sidecars(weights), "config": path}
    config, notes = configuration(weights, beside)
    kept = [note for note in checkpoint.notes if note != NO_CONFIG]
    return replace(checkpoint, metadata=config, sidecars=beside, notes=(*kept, *notes))


def configuration(weights: Weights, beside: Mapping[str, str]) -> tuple[JSONObject, tuple[str, ...]]:
    """Return the model's own configuration as found, and notes for the user.

    Args:
        weights: The weights of the model.
        beside: Role → path of its sidecar files (`sidecars`).

    Returns:
        The object in config.json, Meta's params.json or adapter_config.json ({} without one), and notes.

    Raises:
        EncodingError: A file is not UTF-8 or not JSON.
        DuplicateError: A file has a key twice.
        CorruptError: A file is broken in another way.
    """
    name = os.path.basename(weights.index or weights.files[0])
    adapter, own = name.startswith("adapter_model"), name.startswith("consolidated")  # Meta's and Mistral's own format
    roles = ("params.json", "config") if own or kind_of(weights.container) is Kind.META else ("config", "params.json")
    role = next((role for role in ("adapter_config", *roles) if role in beside and (role in roles or adapter)), None)
    notes: list[str] = []
    if role is None:
        return {}, (NO_CONFIG,)
    found = load_object(beside[role])
    members, module_notes = described(beside)
    found = {**found, **members}
    notes += module_notes
    if "auto_map" in found:
        notes.append("config.json names custom code (auto_map): it is never run")
    if role != "adapter_config" and not any(file.vocabulary and file.role in beside for file in sidecar_files()):
        notes.append("there is no tokenizer file next to the weights")
    return found, tuple(notes)


def with_preprocessor(config: Mapping[str, Any], beside: Mapping[str, str]) -> JSONObject:
    """Return a configuration with what its processor does under PREPROCESSOR.

    processor_config.json wins over preprocessor_config.json. Members that are configurations of their own are taken to
    the root of either. Source: transformers 5 `ProcessorMixin.to_dict`, and llama.cpp `conversion/base.py` for the
    order.

    Raises as `configuration`.
    """
    found: JSONObject = {}
    for role, inner in (("preprocessor_config", "media_proc_cfg"), ("processor_config", "image_processor")):
        declared = load_object(beside[role]) if role in beside else {}
        own = declared.pop(inner, None)
        found |= {**declared, **(own if isinstance(own, dict) else {})}
    tokens = added_tokens(beside)
    return {**config, **({PREPROCESSOR: found} if found else {}), **({ADDED_TOKENS: tokens} if tokens else {})}


def added_tokens(beside: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of special tokens by their text, of tekken.json, tokenizer.json and tokenizer_config.json.

    The latter win. Raises as `configuration`.
    """
    declared = {role: load_object(beside[role]) if role in beside else {} for role in _NAME_TOKENS}
    decoder = declared["tokenizer_config"].get("added_tokens_decoder")
    listed: list[tuple[Any, Any]] = [*decoder.items()] if isinstance(decoder, dict) else []
    found = []
    for role, items, text, number in (
        ("tekken.json", "special_tokens", "token_str", "rank"),
        ("tokenizer.json", "added_tokens", "content", "id"),
    ):
        entries = declared[role].get(items)
        known = (entry for entry in (entries if isinstance(entries, list) else ()) if isinstance(entry, dict))
        found += [(entry.get(text), entry.get(number)) for entry in known]
    named = ((key, entry) for key, entry in listed if isinstance(entry, dict) and str(key).isdecimal())
    found += [(entry.get("content"), int(key)) for key, entry in named]
    return {text: number for text, number in found if isinstance(text, str) and isinstance(number, int)}


_NAME_TOKENS = ("tekken.json", "tokenizer.json", "tokenizer_config")


def architectures(config: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the classes that config.json names.

    Raises MissingError when it names none, InconsistentError for another type.
    """
    named = config.get("architectures")
    if not named:
        hint = "config.json of the base model has one: --hf-config DIR takes it from there"
        kind = config.get("model_type")
        found = f'no "architectures", and model_type {kind}' if isinstance(kind, str) else None
        raise MissingError("config.json does not say which architecture it is", path=path, found=found, hint=hint)
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise InconsistentError("architectures", path=path, found=named, expected="a list of class names")
    return tuple(named)
