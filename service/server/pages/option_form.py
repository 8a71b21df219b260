"""The form of a conversion: a control for every option that a plan may state, made of the table that `--help` is.

Pages show it where a source is named, on a plan, whose options it changes, and on a model, with what its error needs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggferry.converters.conversion.options import FORMATS, OPTIONS, Heading, Kind, Option, outtypes
from ggferry.converters.conversion.plan import kind_of_format
from ggferry.formats.errors import UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.parse import parse_json
from ggferry.service.records.option_paths import with_paths

OWN = ("to", "outtype", "verify")
"""Options that stand before the groups, since everybody looks for them."""
LABELS = {
    "like": "Types like those of a GGUF file",
    "target_size": "Size to choose types for",
    "target_bpw": "Bits a weight to choose types for",
    "among": "Types to choose among",
    "lora": "LoRA adapters to merge",
    "to": "Format",
    "dtype": "Type of all weights",
    "max_shard_size": "Largest file of weights",
    "outtype": "Type of the output",
    "verify": "Proof",
    "tensor_first_split": "First shard without tensors",
    "text": "Text for the tokenizer check",
}
FURTHER = "further"
LONGEST = 200_000  # characters of a field
_PUBLISHED = "the token of the Hub is a person's, not the server's; `ggferry publish` takes what was downloaded"
LEFT_OUT = {
    "out": "the server names outputs, so that no two models have one name",
    "mmproj_out": "the server names outputs, so that no two models have one name",
    "force": "outputs of the server are never replaced: the same plan is the same job",
    "recipe_out": "the receipt states the recipe that a size led to",
    "measurements": "a job measures in one go, and a file of the server's is nobody's",
    "tensor_type_file": "a file's items are lines of the tensor types, which it can be loaded into",
    "publish": _PUBLISHED,
    "create_pr": _PUBLISHED,
    "private": _PUBLISHED,
    "remove_published": _PUBLISHED,
    "dry_run": "the page of a plan is what it prints",
    "jobs": "threads are the server's to give (`serve --threads`)",
    "cache": "the server decides how sources are reached",
    "follow_redirects": "the server decides how sources are reached",
    "as_json": "the API answers in JSON",
}
"""Options of `ggferry convert` that the form does not have, and why."""
FORMAT_NAMES = {
    "gguf": "GGUF",
    "safetensors": "Hugging Face folder",
    "mlx": "MLX folder",
    "whisper.cpp": "whisper.cpp file",
}
"""The formats for people, in the order of the table."""
USUAL = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""Types whose sizes are compared, where nobody names others: one of each number of bits that llama.cpp quantizes to."""
_FLAG = re.compile(r"(?P<flag>--[a-z][a-z-]+)(?: [A-Z][A-Z=]*)?")
_KINDS = {
    Kind.FLAG: "flag",
    Kind.NUMBER: "number",
    Kind.FILE: "file",
    Kind.DECIMAL: "text",
    Kind.LIKE_FILE: "file",
    Kind.ADAPTERS: "lines",
    Kind.TEXTS: "lines",
    Kind.PAIRS: "lines",
    Kind.TYPES: "lines",
    Kind.TEXT_FILE: "lines",
    Kind.JSON_FILE: "lines",
}
_EITHER = ("yes", "no")
AS_OTHERS = "as the others"
_NONE = {"dtype": "plain types stay"}
"""What the choice of nothing is called, where it is not 'as the others'."""
_LOADED = (Kind.TYPES, Kind.TEXT_FILE, Kind.JSON_FILE)
"""Kinds whose text people have in a file: the page can load it into the field."""
_FILES = (Kind.FILE, Kind.LIKE_FILE, Kind.ADAPTERS)
"""Kinds whose files can be sent from there."""
_WHERE = "a path below a root, or upload:ID"
_PAIRS = {Kind.PAIRS: "KEY=VALUE", Kind.TYPES: "REGEX=TYPE"}
_EXAMPLES = {
    "recipe": "default Q4_K",
    "text": "The cat sat on the mat.",
    "metadata": '{"general.license": "mit"}',
    "split_max_size": "4G",
    "max_shard_size": "5G",
    "target_size": "4GiB",
    "target_bpw": "4.5",
    "among": "q4_k,q5_k,q6_k",
    "lora": f"{_WHERE}, with :SCALE or without",
}


@dataclass(frozen=True, slots=True)
class Control:
    """A control of the form.

    Attributes:
        name: Name of the option.
        label: Its name for people.
        help: What it does.
        kind: 'flag', 'choice', 'number', 'file', 'lines' or 'text'.
        value: What it holds.
        choices: What may be chosen.
        placeholder: What a value looks like.
        flag: What a command line calls it.
        is_loaded: Whether a file of the browser's can be loaded into it.
        is_sent: Whether a file of the browser's can be sent, and is named by it then.
        formats: The formats that take it; () for all.
        none: What the choice of nothing is called.
    """

    name: str
    label: str
    help: str
    kind: str
    value: str = ""
    choices: tuple[str, ...] = ()
    placeholder: str = ""
    flag: str = ""
    is_loaded: bool = False
    is_sent: bool = False
    formats: tuple[str, ...] = ()
    none: str = AS_OTHERS

    @property
    def lines(self) -> list[str]:
        """Return what it holds, line by line."""
        return self.value.split("\n") if self.value else []

    @property
    def is_set(self) -> bool:
        """Return whether it holds anything but the default."""
        return bool(self.value) and self.value != (self.choices or ("",))[0]

    @property
    def rows(self) -> int:
        """Return the height of a field of lines."""
        return min(12, max(2, len(self.lines)))


@dataclass(frozen=True, slots=True)
class Group:
    """Controls under a heading."""

    title: str
    controls: tuple[Control, ...]

    @property
    def set(self) -> int:
        """Return how many of them hold something."""
        return sum(control.is_set for control in self.controls)


@dataclass(frozen=True, slots=True)
class OptionForm:
    """The form, filled in.

    Attributes:
        format: The format of the output.
        outtype: The type of the output, and `further`, types that are made in the same reading.
        verify: The level of proof.
        formats: The formats to choose from, with their names for people.
        outtypes: The types to choose from, each with the formats that take it.
        levels: The levels of proof.
        groups: All other options.
        needed: Those that an error asks for.
        path: The source, as a request names it.
    """

    format: str = "gguf"
    outtype: str = "keep"
    further: str = ""
    verify: str = "full"
    formats: tuple[tuple[str, str], ...] = tuple(FORMAT_NAMES.items())
    outtypes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    levels: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    needed: tuple[Control, ...] = ()
    path: str = ""

    @property
    def set(self) -> int:
        """Return how many options in the groups hold something."""
        return sum(group.set for group in self.groups)


def planned_options() -> list[Option]:
    """Return the options that a plan may state, and `like`, in the order of their headings."""
    order = list(Heading)
    found = (each for each in OPTIONS if each.in_plan or each.kind is Kind.LIKE_FILE)
    return sorted(found, key=lambda each: order.index(each.heading))


def label_of(option: Option) -> str:
    """Return the name of an option for people: 'Tokenizer model'."""
    if option.name in LABELS:
        return LABELS[option.name]
    words = option.name.replace("_", " ")
    for word in ("mtp", "qkv", "ggla", "gguf", "mmproj", "huggingface json"):
        words = words.replace(
            word, {"huggingface json": "tokenizer.json"}.get(word, word if word == "mmproj" else word.upper())
        )
    return words[0].upper() + words[1:]


def form_of(options: Mapping[str, Any], path: str = "", hint: str = "", uploads: str = "") -> OptionForm:
    """Return the form with the options of a plan; `hint` is an error's, which names those that it needs.

    `uploads` is the folder of uploads: a file in it is shown as the upload that it is of.
    """
    outtype, _, further = str(options.get("outtype", "keep")).partition(",")
    controls: dict[str, Control] = {}
    groups: dict[Heading, list[Control]] = {}
    for option in planned_options():
        if option.name in OWN:
            continue
        controls[option.name] = _control(option, options.get(option.name), uploads)
        groups.setdefault(option.heading, []).append(controls[option.name])
    needed = [controls[name] for name in needs(hint) if name in controls]
    level = next(each for each in OPTIONS if each.name == "verify")
    return OptionForm(
        str(options.get("to", "gguf")),
        outtype,
        further,
        str(options.get("verify", level.default)),
        tuple(FORMAT_NAMES.items()),
        tuple((name, _formats_of_type(name)) for name in dict.fromkeys([*outtypes(), outtype])),
        tuple(reversed(_choices(level))),
        tuple(Group(heading.value, tuple(some)) for heading, some in groups.items()),
        tuple(needed),
        path,
    )


def _formats_of_type(outtype: str) -> tuple[str, ...]:
    """Return the formats that take a type; all for one that none lists."""
    return tuple(to for to in FORMATS if outtype.lower() in kind_of_format(to).outtypes) or FORMATS


def _formats_of(option: Option) -> tuple[str, ...]:
    """Return the formats that take an option; () for all."""
    found = tuple(to for to in FORMATS if option.name in kind_of_format(to).takes)
    return found if found != FORMATS else ()


def _choices(option: Option) -> tuple[str, ...]:
    return tuple(option.choices() if callable(option.choices) else option.choices)


def _control(option: Option, value: Any, uploads: str) -> Control:
    choices, kind = _choices(option), _KINDS.get(option.kind, "text")
    default = option.default
    if option.either_way:
        kind, choices = "choice", ("", *_EITHER)
    elif kind == "text" and choices:
        kind = "choice"
        first = str(default) if default is not None else ""
        choices = (first, *(each for each in choices if each != first))
    placeholder = {**_PAIRS, Kind.FILE: _WHERE, Kind.LIKE_FILE: _WHERE}.get(option.kind, "")
    placeholder = _EXAMPLES.get(option.name, placeholder)
    if kind == "lines" and choices:
        placeholder = f"any of: {', '.join(choices)}"
    return Control(
        option.name,
        label_of(option),
        option.help.replace("; repeatable", "").replace(" (`ggferry types` lists them)", ""),
        kind,
        _text(option, value, uploads),
        choices if kind == "choice" else (),
        placeholder or (option.metavar or ""),
        option.flag,
        option.kind in _LOADED,
        option.kind in _FILES,
        _formats_of(option),
        _NONE.get(option.name, AS_OTHERS),
    )


def _text(option: Option, value: Any, uploads: str) -> str:
    """Return what a control holds for a plan's value."""
    if value is None or value == option.default:
        return str(option.default) if value is not None and _choices(option) and option.kind is Kind.TEXT else ""
    if option.either_way:
        return _EITHER[not value]
    if option.kind is Kind.FLAG:
        return "on"
    if option.kind is Kind.JSON_FILE:
        return json.dumps(value, indent=2, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}={each}" for key, each in value.items())
    named = with_paths({option.name: value}, lambda path: source_named(path, uploads))[option.name]
    if isinstance(named, Sequence) and not isinstance(named, str):
        return "\n".join(map(str, named))
    return str(named)


def source_named(path: str, uploads: str) -> str:
    """Return what a request names a source by: `upload:ID` for what lies in an upload."""
    if uploads and path.startswith(uploads.rstrip("/") + "/"):
        return "upload:" + os.path.relpath(path, uploads).partition("/")[0]
    return path


def needs(hint: str) -> list[str]:
    """Return the options that an error's way out names: '--tokenizer DIR, or --no-vocab'."""
    by_flag = {flag: each.name for each in planned_options() for flag in each.all_flags}
    return list(dict.fromkeys(by_flag[found["flag"]] for found in _FLAG.finditer(hint) if found["flag"] in by_flag))


def in_words(hint: str) -> str:
    """Return an error's way out with the form's names of options in place of a command line's."""
    by_flag = {flag: label_of(each) for each in planned_options() for flag in each.all_flags}
    return _FLAG.sub(lambda found: f"“{by_flag[found['flag']]}”" if found["flag"] in by_flag else found[0], hint)


def options_in(pairs: Iterable[tuple[str, str]]) -> JSONObject:
    """Return the options of a plan that the fields of a form state; what is left at its default is not among them.

    Raises UsageError for a field that cannot be read.
    """
    given = _given(pairs)
    types = [given.get("outtype", ["keep"])[0] or "keep", *filter(None, given.get("type", ()))]
    types += [each for text in given.get(FURTHER, ()) for each in map(str.strip, text.split(",")) if each]
    if "type" in given:  # chosen from a table of sizes, instead of the type before
        types = types[1:]
    found: JSONObject = {"outtype": ",".join(types)}
    for option in planned_options():
        text = next((each for each in given.get(option.name, ()) if each), "")
        if option.name != "outtype" and text and (value := _value(option, text)) != option.default:
            found[option.name] = value
    return found


def _given(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if len(value) > LONGEST:
            raise UsageError(f"the field {name[:100]}", found=f"{len(value)} characters", expected=f"{LONGEST} at most")
        given.setdefault(name, []).append(value.replace("\r\n", "\n").strip())
    return given


def as_typed(form: OptionForm, pairs: Iterable[tuple[str, str]]) -> OptionForm:
    """Return a form with what somebody typed into it, whether it can be read or not."""
    given = {name: value[:LONGEST].replace("\r\n", "\n") for name, value in reversed([*pairs])}
    groups = (
        Group(group.title, tuple(replace(each, value=given.get(each.name, "")) for each in group.controls))
        for group in form.groups
    )
    return replace(
        form,
        format=given.get("to") or form.format,
        outtype=given.get("outtype") or form.outtype,
        further=given.get(FURTHER, ""),
        verify=given.get("verify") or form.verify,
        groups=tuple(groups),
    )


def _value(option: Option, text: str) -> Any:
    if option.either_way:
        return text == _EITHER[0]
    if option.kind is Kind.FLAG:
        return not option.default
    if option.kind is Kind.TEXT_FILE:
        return text.split("\n")
    if option.kind is Kind.JSON_FILE:
        found = parse_json(text.encode("utf-8", "backslashreplace"), label_of(option))
        if not isinstance(found, dict):
            raise UsageError(label_of(option), found=text[:100], expected=_EXAMPLES[option.name])
        return found
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if option.kind in (Kind.PAIRS, Kind.TYPES):
        types = option.kind is Kind.TYPES  # an expression may hold the sign, a type does not
        pairs = [line.rpartition("=") if types else line.partition("=") for line in lines]
        if odd := next((line for line, (key, sign, _) in zip(lines, pairs, strict=True) if not key or not sign), None):
            raise UsageError(label_of(option), found=odd, expected=f"{_PAIRS[option.kind]}, one a line")
        found = [(key.strip(), value.strip()) for key, _, value in pairs]
        return ["=".join(pair) for pair in found] if types else dict(found)
    if option.kind is Kind.ADAPTERS:
        return lines
    if option.kind is Kind.TEXTS:
        return [each for line in lines for each in map(str.strip, line.split(",")) if each]
    if option.kind is Kind.NUMBER:
        if not re.fullmatch(r"\d{1,15}", text):
            raise UsageError(label_of(option), found=text, expected="a whole number")
        return int(text)
    if option.kind is Kind.DECIMAL:
        try:
            return float(text)
        except ValueError:
            raise UsageError(label_of(option), found=text[:100], expected="a number, such as 4.5") from None
    return text
