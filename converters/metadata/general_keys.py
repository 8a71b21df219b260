"""The `general.*` keys: what is known of a model, from where, and which source wins.

Order of authority: `--model-name`; `--metadata`; the general keys of a source that is GGUF itself; the model card's
front matter; the name of the file or directory; config.json's `_name_or_path`, only where the path names nothing
(in a fine tune it names the model that was tuned, which today's converter then writes as the model's own name).
What can be counted is counted: size label, file type, quantization version. Keys, their types and the card fields are
those of today's converter (docs/formats/todays-converter.md) and the specification; what differs:

* card fields keep their text: `version: 1.10` is "1.10", the language `no` is Norwegian; lists hold nothing twice;
* `model_type` of a card is the architecture, not a base name, and is not used;
* `general.datasets` (the specification's) is written beside `general.dataset.*` (llama.cpp's);
* `repetition_penalty`, as transformers spells it, is `general.sampling.penalty_repeat`;
* `general.quantization_version` stands only where a tensor is quantized;
* local paths, which cards of merges and trainers' configs hold, never get into the file. Nor does any time stamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ggferry import __version__
from ggferry.converters.metadata.beside import MMPROJ
from ggferry.converters.metadata.file_names import (
    Guess,
    NameOrigin,
    NameParts,
    guess,
    shown_name,
    size_label,
    title,
    visible,
)
from ggferry.converters.metadata.key_table import (
    CARD_LISTS,
    CARD_ORIGINS,
    CARD_TEXTS,
    FACTS,
    GROUPS,
    ORDER,
    ORIGIN_FIELDS,
    SAMPLING,
    brief,
    check_overrides,
    is_local,
    reference,
    sampling_value,
)
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.reader import label_of
from ggferry.quant.recipes.file_types import file_type_name
from ggferry.support.records import dataclass

CARD = "README.md front matter"
OVERRIDE = "--metadata"
INHERITED = "the source's own metadata"


@dataclass(frozen=True, slots=True)
class Entry:
    """A metadata value, and in words where it came from."""

    value: Value
    origin: str


def general_metadata(
    *,
    architecture: str,
    guessed: Guess,
    description: str,
    parameters: int = 0,
    experts: int = 0,
    expert_parameters: int = 0,
    file_type: int | None = None,
    quantized: bool = False,
    kind: str = "model",
    model_name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    inherited: Mapping[str, Value] | None = None,
    card: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    base_model: str | None = None,
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Return the `general.*` keys of an output file but `general.alignment`, in order, and notes for the user.

    Args:
        architecture: Name of the architecture.
        guessed: What `file_names.guess` made of the source's path.
        description: The sentence of `describe_origin`; it follows a description of the card's.
        parameters: As in `file_names.size_label`; 0 for no weights, and so no counted label.
        experts: As in `file_names.size_label`.
        expert_parameters: As in `file_names.size_label`.
        file_type: None leaves it out (no weights).
        quantized: Whether a tensor is quantized.
        kind: `general.type`: 'model', 'adapter' or 'mmproj'.
        model_name: The value of `--model-name`.
        overrides: The object of `--metadata`; a null leaves its key out.
        inherited: All keys of a GGUF source.
        card: Front matter of README.md.
        config: The object of config.json.
        generation_config: The object of generation_config.json.
        base_model: The base of an adapter, as adapter_config.json states it.

    Raises UsageError for overrides that are not metadata.
    """
    found = _Collector()
    found.fact("architecture", string(architecture), "the architecture recognized")
    found.fact("type", string(kind), "ggferry")
    for key, value, origin in (("file_type", file_type, "tensor types"), ("quantization_version", 2, "tensor types")):
        if value is not None and (key == "file_type" or quantized):
            found.fact(key, u32(value), origin)
    found.settled |= {f"general.{key}" for key in FACTS}
    if model_name is not None:
        found.text("name", visible(model_name), "--model-name")
    _take_overrides(found, overrides or {})
    if kind == "adapter" and guessed.parts.size_label:
        found.text("size_label", guessed.parts.size_label, guessed.origin)
    if parameters > 0:
        found.text("size_label", size_label(parameters, experts, expert_parameters), "counted")
    _take_inherited(found, inherited or {})
    _take_card(found, card or {}, description)
    found.text("description", description, "ggferry")
    _take_name(found, guessed, config or {}, parameters, adapter=kind == "adapter")
    _take_sampling(found, generation_config or {})
    if base_model:
        found.origins("base_model", [base_model], "adapter_config.json")
    return found.ordered(), tuple(found.notes)


def describe_origin(
    path: str, container: str, version: int | None = None, era: str | None = None, tool: str = f"ggferry {__version__}"
) -> str:
    """Return 'Converted from llama-7b.ggmlv3.q4_0.bin (GGJT v3, 19 May – 21 August 2023) by ggferry 0.1.0', say.

    Of `path`, only what `file_names.shown_name` returns is used; of `era`, the commits in brackets are left out.
    """
    what = label_of(container) + ("" if version is None else f" v{version}")
    when = f", {era.partition(' (')[0]}" if era and not era.startswith("unknown") else ""
    return f"Converted from {shown_name(path)} ({what}{when}) by {tool}"


def name_parts(entries: Mapping[str, Entry], *, vocab_only: bool = False, shard: str | None = None) -> NameParts:
    """Return the parts of the file name that belongs to these entries; `file_names.file_name` joins them."""

    def text(key: str) -> str | None:
        entry = entries.get(f"general.{key}")
        return None if entry is None else str(entry.value.data)

    base, fine, version = text("basename"), text("finetune"), text("version")
    if base is None:  # a name only: its own parts, its size word left to the label
        named = guess((text("name") or text("architecture") or "model").replace("/", "-")).parts
        base, fine, version = named.base_name, fine or named.fine_tune, version or named.version
    file_type = entries.get("general.file_type")
    encoding = None if file_type is None or vocab_only else file_type_name(file_type.value.data)
    kinds = {"adapter": "LoRA", MMPROJ: MMPROJ}
    kind = "vocab" if vocab_only else kinds.get(text("type") or "")
    label = None if kind == MMPROJ else text("size_label")
    return NameParts(base, label, fine, version, encoding, kind, shard)


class _Collector:
    """Entries by authority: the first value offered for a key stays."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.settled: set[str] = set()
        self.notes: list[str] = []

    def offer(self, key: str, value: Value, origin: str) -> None:
        """Add a key unless it is there already."""
        name = f"general.{key}"
        if name not in self.entries and name not in self.settled:
            self.entries[name] = Entry(value, origin)

    def fact(self, key: str, value: Value, origin: str) -> None:
        self.entries[f"general.{key}"] = Entry(value, origin)

    def text(self, key: str, text: str | None, origin: str) -> None:
        if text:
            self.offer(key, string(text), origin)

    def texts(self, key: str, items: Iterable[str], origin: str) -> None:
        unique = tuple(dict.fromkeys(item for item in items if item))
        if unique:
            self.offer(key, array(ValueType.STRING, unique), origin)

    def origins(self, group: str, models: Sequence[Any], origin: str) -> None:
        """Add the count of a group, `base_model` or `dataset`, and the fields of each member.

        A group that is there already stays as it is.
        """
        if self.has_group(group):
            return
        described = [fields for model in models if (fields := self._described(group, model, origin))]
        if described:
            self.offer(f"{group}.count", u32(len(described)), origin)
        for number, fields in enumerate(described):
            for field, text in fields.items():
                self.text(f"{group}.{number}.{field}", text, origin)

    def has_group(self, group: str) -> bool:
        name = f"general.{group}"
        return name in self.settled or any(key.startswith(f"{name}.") for key in self.entries)

    def _described(self, group: str, model: Any, origin: str) -> dict[str, str]:
        if isinstance(model, Mapping):
            texts = {field: visible(text) for field in ORIGIN_FIELDS if isinstance(text := model.get(field), str)}
            return {field: text for field, text in texts.items() if origin == OVERRIDE or not is_local(text)}
        folder = "datasets/" if group == "dataset" else ""
        fields = reference(model, folder) if isinstance(model, str) else None
        if fields is None:
            self.notes.append(f"{origin}: {group} {brief(model)} is neither a name nor an address; left out")
        return fields or {}

    def ordered(self) -> dict[str, Entry]:
        def rank(key: str) -> int:
            first = key.split(".")[1]
            return ORDER.index(first if first in ORDER else "")

        return dict(sorted(self.entries.items(), key=lambda item: rank(item[0])))


def _take_inherited(found: _Collector, inherited: Mapping[str, Value]) -> None:
    taken = [f"general.{group}." for group in CARD_ORIGINS if found.has_group(group)]
    for key, value in inherited.items():
        if key.startswith("general.") and not any(key.startswith(group) for group in taken):
            found.offer(key.removeprefix("general."), value, INHERITED)


def _take_overrides(found: _Collector, overrides: Mapping[str, Any]) -> None:
    check_overrides(overrides)
    for key, value in overrides.items():
        short = key.removeprefix("general.")
        items = [value] if isinstance(value, str) else value
        if value is None or value == "":
            found.settled |= {key, f"general.{GROUPS.get(short, short)}"}
        elif short in GROUPS:
            found.origins(GROUPS[short], value, OVERRIDE)
            if short == "datasets":
                found.texts(short, (item for item in value if isinstance(item, str)), OVERRIDE)
            found.settled |= {key, f"general.{GROUPS[short]}"}
        elif short.startswith("sampling."):
            made = sampling_value(short.removeprefix("sampling."), value)
            if made is not None:
                found.offer(short, made, OVERRIDE)
        elif short in CARD_LISTS:
            found.texts(short, items, OVERRIDE)
        else:
            found.text(short, ", ".join(items), OVERRIDE)  # a license may be a list


def _take_card(found: _Collector, card: Mapping[str, Any], description: str) -> None:
    def text(*fields: str) -> str | None:
        for field in fields:
            value = card.get(field)
            if isinstance(value, str) and visible(value):
                if not is_local(value):
                    return visible(value)
                found.notes.append(f"{CARD}: {field} {brief(value)} is a local path; left out")
            elif value is not None and not isinstance(value, str):
                found.notes.append(f"{CARD}: {field} is not text; left out")
        return None

    def listed(*fields: str) -> list[str]:
        items: list[str] = []
        for field in fields:
            value = card.get(field)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and visible(item) and not is_local(item):
                    items.append(visible(item))
                elif item is not None:
                    found.notes.append(f"{CARD}: {field} {brief(item)} is not a term; left out")
        return items

    for key, fields in CARD_TEXTS.items():
        if f"general.{key}" not in found.entries:
            found.text(key, text(*fields), CARD)
    paragraph = text("description", "model_description")
    if paragraph:
        found.text("description", "\n".join(filter(None, (paragraph, description))), f"{CARD}; ggferry")
    # An SPDX expression would join several with OR or AND; the card does not say which, so a comma does not either.
    found.text("license", ", ".join(dict.fromkeys(listed("license"))), CARD)
    for key, fields in CARD_LISTS.items():
        found.texts(key, listed(*fields), CARD)
    for group, fields in CARD_ORIGINS.items():
        value: Any = next((card[field] for field in fields if card.get(field) is not None), [])
        models = [item for item in (value if isinstance(value, list) else [value]) if item is not None]
        found.origins(group, models, CARD)
        if group == "dataset":
            names = [item for item in models if isinstance(item, str) and reference(item) is not None]
            found.texts("datasets", map(visible, names), CARD)


def _take_name(found: _Collector, guessed: Guess, config: Mapping[str, Any], parameters: int, *, adapter: bool) -> None:
    """Take name and lineage from the path; from config.json where the path says nothing."""
    declared = config.get("_name_or_path")
    if isinstance(declared, str) and re.fullmatch(r"(?:\w[\w.-]*/)?\w[\w.-]*", declared, re.ASCII):
        from_name = guess(f"hf://{declared}" if "/" in declared else declared, parameters=parameters, adapter=adapter)
        if guessed.origin is NameOrigin.ARCHITECTURE and from_name.origin is not NameOrigin.ARCHITECTURE:
            guessed = Guess(
                from_name.parts, from_name.name, from_name.organization, from_name.repository, NameOrigin.CONFIG
            )
        elif from_name.repository and from_name.parts == guessed.parts:
            found.text(
                "organization", from_name.organization and title(from_name.organization.split("-")), "config.json"
            )
        elif from_name.repository:
            found.notes.append(f"config.json names {declared!r}, the path another model; the path's name was taken")
    parts = guessed.parts
    found.text("name", guessed.name, guessed.origin)
    if guessed.origin is not NameOrigin.ARCHITECTURE and (parts.size_label or parts.fine_tune or parts.version):
        for key, part in (("version", parts.version), ("finetune", parts.fine_tune), ("basename", parts.base_name)):
            found.text(key, part, guessed.origin)
    found.text("size_label", parts.size_label, guessed.origin)
    if guessed.organization:
        found.text("organization", title(guessed.organization.split("-")), guessed.origin)
    if guessed.repository:
        found.text("source.repo_url", f"https://huggingface.co/{guessed.repository}", "the source's path")


def _take_sampling(found: _Collector, generation_config: Mapping[str, Any]) -> None:
    for key, (_, fields) in SAMPLING.items():
        field = next((field for field in fields if generation_config.get(field) is not None), None)
        if field is None:
            continue
        value = sampling_value(key, generation_config[field])
        if value is None:
            shown = brief(generation_config[field])
            found.notes.append(f"generation_config.json: {field} {shown} is not a value for sampling; left out")
        else:
            found.offer(f"sampling.{key}", value, "generation_config.json")
