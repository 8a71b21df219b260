"""The modules of sentence-transformers: what makes one vector of the states that a model computes of a text.

`modules.json` lists them in order, each with its class and its folder: the model itself, how states are pooled,
matrices behind that (`…Dense`), whether vectors get unit length. Source: sentence-transformers
`SentenceTransformer.py`, `models/{Pooling,Dense,Normalize}.py`; PyLate `models/Dense.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, NotFoundError, OutOfRangeError
from ggferry.formats.files.local_files import confined
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_json, load_object
from ggferry.formats.reader import find_reader
from ggferry.support.records import dataclass

FILE = "modules.json"
SETTINGS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
POOLING = "sentence_transformers_pooling"
"""The key under which the configuration of a checkpoint has the settings of the module that pools."""
DENSE = "sentence_transformers_dense"
"""The same of the matrices behind it, by number; their tensors are called DENSE.NUMBER.linear.weight."""
ORDER = "sentence_transformers_modules"
"""The same of the names of all modules, in order."""
SCORED_BY = "sentence_transformers_logit_score"
"""The same of the module that makes a score of two tokens' logits: their ids."""
NO_PLACE = (
    f"{FILE} has a module LogitScore, which makes a score of two tokens' logits: GGUF has no place for that here, and "
    "holds the model without it"
)
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
_MOST = 16  # modules of one model
_SHOWN = 3  # prompts that a note quotes


@dataclass(frozen=True, slots=True)
class Module:
    """One module: the last part of its class, its folder below the model's ('' for the model itself), its settings."""

    kind: str
    folder: str
    settings: Mapping[str, Any]


def module_files(folder: str, names: frozenset[str]) -> dict[str, str]:
    """Return role → path of the files of the modules of the model in `folder`, which has these names."""
    if FILE not in names:
        return {}
    found = {}
    for module in modules(os.path.join(folder, FILE)):
        inside = os.path.join(folder, module.folder)
        for name in sorted(os.listdir(inside)) if module.folder and os.path.isdir(inside) else ():
            if name == "config.json" or (module.kind == "Dense" and name.endswith((".safetensors", ".bin"))):
                found[f"{module.folder}/{name}"] = os.path.join(inside, name)
    return found


def modules(path: str) -> tuple[Module, ...]:
    """Return the modules that the file at `path` lists.

    Raises OutOfRangeError for a folder outside of the model's, or too many modules, InconsistentError for what is no
    list of modules, and whatever reading their settings raises.
    """
    listed = load_json(path)
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InconsistentError("modules", path=path, found=listed, expected="a list of objects")
    if len(listed) > _MOST:
        raise OutOfRangeError("number of modules", path=path, found=len(listed), expected=f"≤ {_MOST}")
    return tuple(_module(one, path) for one in listed)


def _module(declared: Mapping[str, Any], path: str) -> Module:
    kind = str(declared.get("type")).rpartition(".")[2]
    name = declared.get("path", "")
    if kind == "Transformer":
        return Module(kind, "", {})
    if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*", name):
        raise OutOfRangeError("folder of a module", path=path, found=name, expected="a name within the model")
    folder = os.path.dirname(path)
    file = os.path.join(folder, name, "config.json")
    has_settings = kind in ("Pooling", "Dense") or os.path.exists(file)
    return Module(kind, name, load_object(file, root=folder or os.curdir) if has_settings else {})


def described(beside: Mapping[str, str]) -> tuple[JSONObject, tuple[str, ...]]:
    """Return the members that the modules add to the configuration of a checkpoint, and notes for the user.

    Args:
        beside: Role → path of the model's sidecar files.
    """
    if FILE not in beside:
        return {}, ()
    listed = modules(beside[FILE])
    found: JSONObject = {ORDER: " ".join(module.kind for module in listed)}
    pooling = next((module.settings for module in listed if module.kind == "Pooling"), None)
    if pooling is not None:
        found[POOLING] = _by_mode(pooling)
    dense = {str(number): dict(module.settings) for number, module in enumerate(_of(listed, "Dense"))}
    if dense:
        found[DENSE] = dense
    answers = next((module.settings for module in listed if module.kind == "LogitScore"), None)
    if answers is not None:
        found[SCORED_BY] = dict(answers)
    return found, tuple(_notes(listed, beside))


def _of(listed: Sequence[Module], kind: str) -> list[Module]:
    return [module for module in listed if module.kind == kind]


def _by_mode(settings: Mapping[str, Any]) -> JSONObject:
    """Return settings that state each way of pooling as true or false; newer ones name it (`pooling_mode`)."""
    mode = settings.get("pooling_mode")
    named = {
        "mean": "mean_tokens",
        "cls": "cls_token",
        "max": "max_tokens",
        "weightedmean": "weightedmean_tokens",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "lasttoken": "lasttoken",
    }
    if not isinstance(mode, str) or mode not in named:
        return dict(settings)
    kept = {key: value for key, value in settings.items() if key not in ("pooling_mode", "embedding_dimension")}
    return {**kept, f"pooling_mode_{named[mode]}": True}


def _notes(listed: Sequence[Module], beside: Mapping[str, str]) -> Iterator[str]:
    for kind in dict.fromkeys(module.kind for module in listed if module.kind not in _KNOWN):
        other = f"{FILE} has a module {kind[:80]}, which GGUF has no place for: vectors of texts are made without it"
        yield NO_PLACE if kind == "LogitScore" else other
    if _of(listed, "Pooling") and not _of(listed, "Normalize"):
        yield (
            f"{FILE} has no Normalize: its vectors keep their length, and runtimes give them unit length unless told "
            "not to (llama.cpp: --embd-normalize -1)"
        )
    yield from _notes_of(beside)


def _notes_of(beside: Mapping[str, str]) -> Iterator[str]:
    """Yield what is stated of texts before they become tokens: GGUF has no keys for it."""
    if SETTINGS in beside:
        prompts = json_kinds.members(load_object(beside[SETTINGS]), "prompts", beside[SETTINGS])
        texts = [f"{name[:40]}: {str(text)[:80]!r}" for name, text in prompts.items() if text]
        if texts:
            more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            yield (
                f"{SETTINGS} has prompts that texts begin with, and GGUF no key for them: put them there yourself "
                f"({', '.join(texts[:_SHOWN])}{more})"
            )
    lengths = load_object(beside[LENGTHS]) if LENGTHS in beside else {}
    if lengths.get("max_seq_length"):
        yield (
            f"sentence-transformers cuts texts at {lengths['max_seq_length']!r:.20} tokens ({LENGTHS}); GGUF has no "
            "key for that: its context_length is what the model can read"
        )
    if lengths.get("do_lower_case"):
        yield f"{LENGTHS} has texts put in lower case before they are tokenized: GGUF has no key for that"


def with_dense(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the tensors of the matrices behind the pooling, which have files of their own."""
    if DENSE not in checkpoint.metadata or FILE not in checkpoint.sidecars or not checkpoint.tensors:
        return checkpoint
    place = checkpoint.sidecars[FILE]
    folder = os.path.dirname(place)
    files, tensors = list(checkpoint.files), dict(checkpoint.tensors)
    with confined([folder or os.curdir]):
        for number, module in enumerate(_of(modules(place), "Dense")):
            inside = os.path.join(folder, module.folder)
            if not os.path.isdir(inside):
                raise NotFoundError("the folder of a module is missing", path=inside)
            part = find_reader(inside)[0].open(inside, ())
            for ref in part.tensors.values():
                name = f"{DENSE}.{number}.{ref.name}"
                tensors[name] = _moved(ref, name, len(files))
            files += part.files
    return replace(checkpoint, files=tuple(files), tensors=tensors)


def _moved(ref: TensorRef, name: str, by: int) -> TensorRef:
    """Return the tensor under another name, its files counted from another one on."""
    return replace(ref, name=name, spans=tuple(replace(span, file=span.file + by) for span in ref.spans))
