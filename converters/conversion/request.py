"""A conversion as asked for: made of options by name, whether a command line, Python or a plan's line states them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import reduce
from typing import Any

from ggferry.converters.conversion.draft_target import with_target
from ggferry.converters.conversion.options import OPTIONS, Kind, Option, option
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.folder import mistral_weights
from ggferry.formats.checkpoint_folder.without_weights import open_without_weights
from ggferry.formats.errors import CorruptError, UsageError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.json_files.text import load_json
from ggferry.quant.recipes.text import parse_tensor_type, parse_tensor_types
from ggferry.quant.types import BlockError
from ggferry.support.records import dataclass
from ggferry.support.sizes import parse_size


@dataclass(frozen=True, slots=True)
class Request:
    """A conversion as asked for. `out`: file or folder, None beside the source. `base`, `ggla_permute`: for adapters,
    the model they change and whether Q and K rows of a ggla file are laid out as training meant them. `arch`, `config`:
    for files of the GGML era, the architecture and the config.json that they do not hold (`open.open_checkpoint`).
    `witness`: the programs that are asked at the level 'full' (`proof.witnesses.examine`). `text`: its lines are
    encoded by both tokenizers, too. `mtp`: whether blocks that predict further tokens are carried along. `rerank`:
    whether a causal model is a reranker: 'auto', 'yes', 'no' (`reranking`). `target`: the model that a draft guesses
    for. `mistral_format`: whether a folder's consolidated weights and params.json are taken (`open_source_of`).
    `device`: where forward passes are computed (`forward.device`). `to`: the format to write; `dtype`,
    `max_shard_size`: of a folder in Hugging Face's form, the type of all weights, and bytes of weights a file.
    `mmproj`, `mmproj_outtype`, `mmproj_out`: of a model that also sees or hears, which of its two files are written,
    and the type and the name of the second (`second_file`)."""

    source: str
    out: str | None = None
    options: Options = field(default_factory=Options)
    hparams: Mapping[str, str] = field(default_factory=dict)
    vocab: VocabOptions = field(default_factory=VocabOptions)
    prune: str | None = None
    override_keys: tuple[str, ...] = ()
    imatrix: str | None = None
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    model_name: str | None = None
    metadata: Mapping[str, Any] | None = None
    level: str = "full"
    force: bool = False
    jobs: int | None = None
    device: str = "cpu"
    base: str | None = None
    ggla_permute: bool = False
    arch: str | None = None
    config: str | None = None
    witness: tuple[str, ...] = ()
    text: str | None = None
    allow_quantization_error: bool = False
    mtp: bool = False
    rerank: str = "auto"
    target: str | None = None
    mistral_format: bool = False
    to: str = "gguf"
    dtype: str | None = None
    max_shard_size: int = 5 * 10**9
    mmproj: str = "both"
    mmproj_outtype: str | None = None
    mmproj_out: str | None = None


Naming = Callable[[Option], str]
"""What a message calls an option: its flag, its name, its place in a plan."""


def by_flag(each: Option) -> str:
    return each.flag


def request_of(source: str, given: Mapping[str, Any], naming: Naming = by_flag) -> Request:
    """Return the request that options by name make; None stands for what is not given.

    Raises UsageError for a value that is none of its option's, and what reading a file of options raises.
    """
    fields: dict[str, dict[str, Any]] = {"": {}, "options": {}, "vocab": {}}
    for name, value in given.items():
        each = option(name)
        if value is None:
            continue
        value = _value(each, value, naming(each))
        if each.target is None:
            continue
        holder, _, key = each.target.rpartition(".")
        if each.kind in (Kind.TYPES, Kind.TYPES_FILE):
            value = (*fields[holder].get(key, ()), *value)
        fields[holder][key] = value
    options = Options(**fields["options"])
    options.check()
    if fields[""].get("target"):
        fields["vocab"].setdefault("source", fields[""]["target"])
    return Request(source, options=options, vocab=VocabOptions(**fields["vocab"]), **fields[""])


_KINDS: dict[Kind, tuple[type, ...]] = {
    Kind.FLAG: (bool,), Kind.TEXT: (str,), Kind.NUMBER: (int,), Kind.SIZE: (int, str), Kind.FILE: (str,),
    Kind.TEXT_FILE: (str,), Kind.JSON_FILE: (str, dict), Kind.TEXTS: (list, tuple), Kind.PAIRS: (dict, list, tuple),
    Kind.TYPES: (dict, list, tuple), Kind.TYPES_FILE: (str,),
}  # fmt: skip


def _value(each: Option, value: Any, name: str) -> Any:
    """Return what a request holds of an option's value. Raises UsageError."""
    wrong = UsageError(name, found=value, expected=each.kind.value)
    if not isinstance(value, _KINDS[each.kind]) or (isinstance(value, bool) and each.kind is not Kind.FLAG):
        raise wrong
    return _parsed(each, value, name, wrong)


def _parsed(each: Option, value: Any, name: str, wrong: UsageError) -> Any:
    match each.kind:
        case Kind.TEXT:
            return _text(each, value, name)
        case Kind.NUMBER | Kind.SIZE:
            return _number(each, value, name)
        case Kind.TEXTS:
            return _texts(value, wrong)
        case Kind.PAIRS:
            return _pairs(value, name, wrong)
        case Kind.TYPES:
            items = [f"{pattern}={kind}" for pattern, kind in value.items()] if isinstance(value, dict) else value
            return _types(lambda: [parse_tensor_type(item) for item in _texts(items, wrong)], name)
        case Kind.TYPES_FILE:
            return _types(lambda: parse_tensor_types("\n".join(lines_of(value))), name)
        case Kind.TEXT_FILE:
            return "\n".join(lines_of(value))
        case Kind.JSON_FILE:
            return value if isinstance(value, dict) else load_json(Named(value))
    return value


def _text(each: Option, value: str, name: str) -> str:
    if isinstance(each.choices, tuple) and each.choices:
        value = value.lower()
        if value not in each.choices:
            raise UsageError(name, found=value, expected=", ".join(each.choices))
    return value


def _number(each: Option, value: int | str, name: str) -> int:
    try:
        number = parse_size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(name, found=value, expected=str(error)) from None
    low, high = each.least, each.most
    if (low is not None and number < low) or (high is not None and number > high):
        raise UsageError(name, found=value, expected=f"{low} or more" if high is None else f"{low} to {high}")
    return number


def _texts(values: Iterable[Any], wrong: UsageError) -> tuple[str, ...]:
    found = tuple(values)
    if not all(isinstance(each, str) for each in found):
        raise wrong
    return found


def _pairs(value: Mapping[str, Any] | Sequence[Any], name: str, wrong: UsageError) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(zip(_texts(value, wrong), _texts(value.values(), wrong), strict=True))
    pairs = {}
    for item in _texts(value, wrong):
        key, sign, text = item.partition("=")
        if not sign or not key or not text:
            raise UsageError(name, found=item, expected="KEY=VALUE")
        pairs[key.strip()] = text.strip()
    return pairs


def _types(parse: Callable[[], Iterable[tuple[str, str]]], name: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse())
    except BlockError as error:
        raise UsageError(f"{name}: {error}") from None


def open_source_of(request: Request) -> Checkpoint:
    """Open the source of a request as it is asked for. Raises as `open_checkpoint`.

    For the vocabulary alone a folder without weights is enough.
    """
    path = request.source
    if request.mistral_format and os.path.isdir(path):
        path = mistral_weights(path)
    if request.options.vocab_only and os.path.isdir(path):
        found = open_without_weights(path)
        if found is not None:
            return found
    checkpoint = open_checkpoint(path, request.arch, request.config)
    return checkpoint if request.target is None else with_target(checkpoint, request.target)


# --- as receipts state it ------------------------------------------------------------------------------------------


def stated_options(request: Request, *, adapter: bool = False) -> dict[str, Any]:
    """Return what was asked for as a receipt states it: of files their names."""
    found = {**asdict(request.options), "hparams": dict(request.hparams), "vocab": asdict(request.vocab)}
    for each in _stated(adapter):
        value = _at(request, each)
        if each.kind is Kind.FILE:
            value = os.path.basename(os.path.normpath(value)) if value else None
        holder, key = _holder(found, each)
        holder[key] = list(value) if isinstance(value, tuple) else value
    return found


def missing_files(request: Request, stated: Mapping[str, Any]) -> list[str]:
    """Return a line for every file that a receipt's options name and this request does not."""
    lines = []
    for each in _stated(adapter=True):
        holder, key = _holder(stated, each)
        name = holder.get(key) if isinstance(holder, Mapping) else None
        if each.kind is Kind.FILE and name and not _at(request, each):
            lines.append(f"it was converted with {each.flag} {name}: give it here, too")
    return lines


def with_stated(request: Request, stated: Mapping[str, Any], path: str) -> Request:
    """Return the request with the options that a receipt states for what it leaves at its defaults. Files among them
    are told by name only and must be given again. Raises CorruptError for options of another kind."""
    try:
        for each in _stated(adapter=True):
            holder, key = _holder(stated, each)
            if not isinstance(holder, Mapping):
                raise TypeError(f"{holder!r} is no object")
            if each.kind is Kind.FILE or each.target == "level" or key not in holder:
                continue
            default, asked = _at(Request(""), each), _at(request, each)
            value = _of_kind(holder[key], default, each)
            if each.kind is Kind.PAIRS:
                request = _with(request, each, {**value, **asked})
            elif asked == default:
                request = _with(request, each, value)
    except (TypeError, AttributeError) as error:
        raise CorruptError(f"the receipt's options: {error}", path=path) from None
    return request


def _stated(adapter: bool) -> Iterator[Option]:
    """The options that receipts state, of adapters or of models."""
    return (each for each in OPTIONS if each.receipt is not None and (adapter or not each.of_adapters))


def _holder(options: Mapping[str, Any], each: Option) -> tuple[Any, str]:
    """Where among a receipt's options one is, and under which key."""
    holder, _, key = (each.receipt or "").rpartition(".")
    return (options.get(holder) or {} if holder else options), key


def _at(request: Request, each: Option) -> Any:
    return reduce(getattr, (each.target or "").split("."), request)


def _with(request: Request, each: Option, value: Any) -> Request:
    holder, _, key = (each.target or "").rpartition(".")
    return replace(request, **{holder: replace(getattr(request, holder), **{key: value})} if holder else {key: value})


_STATED_AS: dict[Kind, type] = {
    Kind.JSON_FILE: dict, Kind.PAIRS: dict, Kind.NUMBER: int, Kind.SIZE: int, Kind.FLAG: bool,
}  # fmt: skip


def _of_kind(value: Any, default: Any, each: Option) -> Any:
    """`value`, if it is of the kind that a receipt has for this option. Raises TypeError."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        return tuple(tuple(item) if isinstance(item, list) else _of_text(item) for item in value)
    kind = _STATED_AS.get(each.kind, str)
    if type(value) is not kind and not (value is None and default is None):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    pairs: Any = value
    return {str(key): str(item) for key, item in pairs.items()} if each.kind is Kind.PAIRS else value


def _of_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
