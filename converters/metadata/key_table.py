"""The `general.*` keys that exist, their types, and the values that they may have.

Sources: the GGUF specification; docs/formats/todays-converter.md "Metadata" for today's keys and card fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ggferry.converters.metadata.file_names import guess, title, visible
from ggferry.formats.errors import UsageError
from ggferry.formats.gguf.values import Value, ValueType, f32, string

# key without 'general.' ← fields of the front matter, the first that holds a text
CARD_TEXTS: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename"),
    "size_label": ("size_label", "model_size_label"),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}
CARD_LISTS = {"tags": ("tags", "pipeline_tag"), "languages": ("languages", "language")}
CARD_ORIGINS = {
    "base_model": ("base_model", "base_models", "base_model_sources"),
    "dataset": ("datasets", "dataset", "dataset_sources"),
}
ORIGIN_FIELDS = ("name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url")
TEXTS = (*CARD_TEXTS, "description", "quantized_by", "license", "url", "doi", "uuid", "repo_url")
# key without 'general.sampling.': its type, and its names in generation_config.json
SAMPLING: Mapping[str, tuple[ValueType, tuple[str, ...]]] = {
    "sequence": (ValueType.STRING, ("sequence",)),
    "top_k": (ValueType.INT32, ("top_k",)),
    "top_p": (ValueType.FLOAT32, ("top_p",)),
    "min_p": (ValueType.FLOAT32, ("min_p",)),
    "xtc_probability": (ValueType.FLOAT32, ("xtc_probability",)),
    "xtc_threshold": (ValueType.FLOAT32, ("xtc_threshold",)),
    "temp": (ValueType.FLOAT32, ("temperature", "temp")),
    "penalty_last_n": (ValueType.INT32, ("penalty_last_n",)),
    "penalty_repeat": (ValueType.FLOAT32, ("repetition_penalty", "penalty_repeat")),
    "mirostat": (ValueType.INT32, ("mirostat",)),
    "mirostat_tau": (ValueType.FLOAT32, ("mirostat_tau",)),
    "mirostat_eta": (ValueType.FLOAT32, ("mirostat_eta",)),
}
FACTS = {  # what the file is: no source may say otherwise. → the option that changes it
    "architecture": "--arch",
    "type": None,
    "file_type": "--outtype",
    "quantization_version": None,
    "alignment": "--alignment",
}
ORDER = (
    "architecture",
    "type",
    "sampling",
    "name",
    "author",
    "version",
    "organization",
    "finetune",
    "basename",
    "description",
    "quantized_by",
    "size_label",
    "license",
    "url",
    "doi",
    "uuid",
    "repo_url",
    "source",
    "base_model",
    "datasets",
    "dataset",
    "tags",
    "languages",
    "",
    "file_type",
    "quantization_version",
)
GROUPS = {"base_models": "base_model", "datasets": "dataset"}  # arrays of --metadata → the keys they become
_KNOWN = (*TEXTS, *CARD_LISTS, *GROUPS, *FACTS, *(f"sampling.{key}" for key in SAMPLING))


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Check that an object of `--metadata` can be applied.

    Its keys are GGUF keys, or the arrays general.base_models and general.datasets; null leaves a key out. Raises
    UsageError naming the wrong key and the nearest one that exists.
    """
    for key, value in overrides.items():
        short = key.removeprefix("general.")
        if not key.startswith("general.") or short not in _KNOWN:
            from difflib import get_close_matches  # 15 ms that only a mistake should cost

            near = get_close_matches(key, [f"general.{known}" for known in _KNOWN], 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "general.* keys of authorship, lineage and sampling only"
            raise UsageError("--metadata: not a key it can set", found=key, hint=hint)
        if short in FACTS:
            option = FACTS[short]
            raise UsageError(
                f"--metadata: {key} describes the file itself, and is not for setting",
                hint=f"use {option}" if option else None,
            )
        if value is not None and (wrong := _wrong(short, value)):
            raise UsageError(f"--metadata: {key} {wrong}", found=brief(value))


def _wrong(short: str, value: Any) -> str | None:
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if short in GROUPS:
        return _wrong_group(value)
    if short.startswith("sampling."):
        made = sampling_value(short.removeprefix("sampling."), value)
        return None if made else "is not a number or text that this key can hold"
    if short in CARD_LISTS:
        return None if texts or isinstance(value, str) else "must be an array of texts"
    return None if isinstance(value, str) or (short == "license" and texts) else "must be a text"


def _wrong_group(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(item, str | Mapping) for item in value):
        return "must be an array of texts or objects"
    for item in value:
        if isinstance(item, str):
            if reference(item) is None:
                return f"holds neither a name nor an address, {brief(item)}"
        elif odd := [field for field in item if field not in ORIGIN_FIELDS or not isinstance(item[field], str)]:
            return f"has the field {odd[0]!r}; texts under {', '.join(ORIGIN_FIELDS)} are known"
    return None


def sampling_value(key: str, value: Any) -> Value | None:
    kind, _ = SAMPLING[key]
    if kind is ValueType.STRING:
        return string(value) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind is ValueType.INT32:
        whole = isinstance(value, int) and -(1 << 31) <= value < 1 << 31
        return Value(kind, value) if whole else None
    return f32(value) if abs(value) < 2.0**127 and math.isfinite(value) else None


def reference(text: str, folder: str = "") -> dict[str, str] | None:
    """Return the fields of a model or data set that a card names by an address, 'org/name', or a name.

    None for a local path and for anything else. `folder`: where the hub keeps such things ('datasets/').
    """
    text = visible(text)
    hub = re.fullmatch(
        r"(?:https?://huggingface\.co/(?:datasets/(?=[^/]+/[^/]))?)?([\w.-]+)/([\w.-]+)/?", text, re.ASCII
    )
    if is_local(text) or not text:
        return None
    if "://" in text:
        address = re.fullmatch(r"(?:https?|ssh|git)://[^\s/@]+(?:/\S*)?", text)
        if address is None:
            return None
        if hub is None:
            return {"repo_url": text}
    if hub:
        organization, name = hub.groups()
        fields = {"name": title(name.split("-")), "organization": title(organization.split("-"))}
        version = guess(name).parts.version
        url = text if "://" in text else f"https://huggingface.co/{folder}{organization}/{name}"
        return fields | ({"version": version} if version else {}) | {"repo_url": url}
    return None if "/" in text or "\\" in text else {"name": text if " " in text else title(text.split("-"))}


def is_local(text: str) -> bool:
    """Return whether a text is a path on somebody's machine."""
    return re.match(r"\s*(?:/|~|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[\\/]|\\\\|file:)", text) is not None


def brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
