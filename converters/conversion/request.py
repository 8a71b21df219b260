"""A conversion as asked for: one source, options, and the outputs that they name.

It is made of options by name, whether a command line, Python or a plan's line states them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import isfinite
from typing import Any, TypeVar

from ggferry.converters.adapters.merge_parts import open_adapter
from ggferry.converters.conversion.draft_target import with_target
from ggferry.converters.conversion.like import recipe_like
from ggferry.converters.conversion.options import AUTO, Kind, Option, option, types_of
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.metadata.beside import mmproj_name
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.folder import mistral_weights
from ggferry.formats.checkpoint_folder.without_weights import open_without_weights
from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.json_files.text import load_json
from ggferry.quant.recipes.text import parse_tensor_type, parse_tensor_types
from ggferry.quant.types import BlockError
from ggferry.support.records import dataclass
from ggferry.support.sizes import parse_size

Item = TypeVar("Item")
GGUF, MMPROJ, HF_FOLDER, MLX_FOLDER, WHISPER_CPP = "gguf", "mmproj", "hf_folder", "mlx_folder", "whisper.cpp"
"""Kinds of outputs (`conversion.kinds`)."""
FOLDERS: Mapping[str, str] = {"safetensors": HF_FOLDER, "mlx": MLX_FOLDER}
"""The kinds that are folders, by what --to calls them."""
BOTH, ONLY, NONE = "both", "only", "none"
"""Values of --mmproj."""
PLACE = "{outtype}"
"""Stands for the type in the name of an output."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output that is asked for.

    Attributes:
        kind: GGUF, MMPROJ, HF_FOLDER, MLX_FOLDER or WHISPER_CPP.
        outtype: The type of its weights, as --outtype names it.
        out: Its file, or a folder in which it is named by convention; None: the folder of the source.
    """

    kind: str
    outtype: str
    out: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A conversion as asked for; `outputs` says what it writes.

    Attributes:
        source: The model file or folder.
        out: File or folder, with PLACE for the type where there are several; None: beside the source.
        options: How tensors are written; its `outtype` may name several types, separated by commas.
        base: For adapters, the model they change.
        lora: Adapters that are merged into the model, 'PATH' or 'PATH:SCALE'.
        ggla_permute: Whether Q and K rows of a ggla file are laid out as training meant them.
        calibration: A text by which values are rounded with feedback (`write.feedback_pass`).
        arch: For files of the GGML era, the architecture that they do not hold.
        config: For files of the GGML era, the config.json that they do not hold.
        witness: The reference implementations that are run at the level 'full'.
        text: Lines that both tokenizers encode, too.
        mtp: Whether blocks that predict further tokens are copied; None: where the checkpoint has them and GGUF a place
            for them.
        mtp_only: Whether they alone are written.
        fuse_qkv: Whether queries, keys and values of a block become one tensor.
        rerank: Whether a causal model is a reranker: 'auto', 'yes', 'no' (`reranking`).
        target: The target model of a speculative draft.
        mistral_format: Whether a folder's consolidated weights and params.json are read (`open_source_of`).
        device: Where forward passes are computed (`forward.device`).
        to: The format to write, 'gguf', 'safetensors', 'mlx' or 'whisper.cpp'.
        dtype: Of a Hugging Face folder, the type of all weights.
        max_shard_size: Of a Hugging Face folder, bytes of weights in a file.
        mmproj: Of a multimodal model, which of its two files are written.
        mmproj_outtype: The type of the mmproj file.
        mmproj_out: The name of the mmproj file.
        out_paths: A file for each type, in place of `out`; of a format that is a folder, that folder.
        target_size: The most bytes of the file, for which types are chosen (`target_size`).
        target_bpw: The same as bits a weight.
        among: The types that are chosen among, separated by commas.
        recipe_out: Where the recipe that is chosen is written, too.
        measurements: Where what is measured for a size is kept.
    """

    source: str
    out: str | None = None
    options: Options = field(default_factory=Options)
    hparams: Mapping[str, str] = field(default_factory=dict)
    vocab: VocabOptions = field(default_factory=VocabOptions)
    prune: str | None = None
    prune_experts: str | None = None
    override_keys: tuple[str, ...] = ()
    imatrix: str | None = None
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    calibration: str | None = None
    model_name: str | None = None
    metadata: Mapping[str, Any] | None = None
    level: str = "full"
    force: bool = False
    jobs: int | None = None
    device: str = "cpu"
    base: str | None = None
    lora: tuple[str, ...] = ()
    ggla_permute: bool = False
    arch: str | None = None
    config: str | None = None
    witness: tuple[str, ...] = ()
    text: str | None = None
    allow_quantization_error: bool = False
    mtp: bool | None = None
    mtp_only: bool = False
    fuse_qkv: bool = False
    rerank: str = "auto"
    target: str | None = None
    mistral_format: bool = False
    to: str = "gguf"
    dtype: str | None = None
    max_shard_size: int = 5 * 10**9
    mmproj: str = "both"
    mmproj_outtype: str | None = None
    mmproj_out: str | None = None
    out_paths: tuple[str, ...] = ()
    target_size: int | None = None
    target_bpw: float | None = None
    among: str | None = None
    recipe_out: str | None = None
    measurements: str | None = None

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs that are asked for, the mmproj file last.

        An mmproj file is written only of a model that has a vision or audio encoder. Raises UsageError where a type is
        missing or stands there twice, and where several outputs would have one name.
        """
        types = types_of(self.options.outtype)
        if self.to in FOLDERS:
            if types[1:]:
                raise UsageError("several types are for --to gguf")
            return (OutputSpec(FOLDERS[self.to], types[0], *(self.out_paths or (self.out,))),)
        kind = WHISPER_CPP if self.to == WHISPER_CPP else GGUF
        named = (self._out_of(name, len(types)) for name in types)
        outs: Sequence[str | None] = self.out_paths or tuple(named)
        texts = tuple(OutputSpec(kind, name, out) for name, out in zip(types, outs, strict=True))
        if kind != GGUF or self.mmproj == NONE or self.options.vocab_only:
            return texts
        outtype = self.mmproj_outtype or (types[0] if types[0].lower() in ("keep", "f32", "f16", "bf16") else "f16")
        out = self.mmproj_out or mmproj_out(self.out_paths[0] if self.out_paths else self.out, types[0], outtype)
        return (*(texts if self.mmproj != ONLY else ()), OutputSpec(MMPROJ, outtype, out))

    def _out_of(self, outtype: str, count: int) -> str | None:
        """Return the name of the output of a type, one of `count`."""
        out = self.out
        if out is None or os.path.isdir(out):
            return out
        if count > 1 and PLACE not in out:
            raise UsageError(
                "several types need several names of outputs",
                found=out,
                expected=f"a name with {PLACE}",
                hint=f"-o 'model-{PLACE}.gguf', or a folder",
            )
        return out.replace(PLACE, outtype)

    def of_output(self, output: OutputSpec) -> Request:
        """Return the request for one of the outputs alone."""
        options = replace(self.options, outtype=output.outtype)
        return replace(self, out=output.out, out_paths=(), options=options)


def split_mmproj(outputs: Sequence[Item], kind: Callable[[Item], str]) -> tuple[Sequence[Item], Item | None]:
    """Return outputs without the mmproj file beside them, and that file; where it is the only output, it and None."""
    *others, last = outputs
    return (others, last) if others and kind(last) == MMPROJ else (outputs, None)


def mmproj_out(out: str | None, outtype: str, own: str) -> str | None:
    """Return the name of the mmproj file beside a text model called `out`: in a folder it gets its own.

    Where the text model's name ends in its type, `outtype`, that of the mmproj file ends in its own.
    """
    if out is None or os.path.isdir(out):
        return out
    folder, name = os.path.split(out)
    shard = shard_of(name)
    name = f"{shard.stem}.gguf" if shard is not None else name
    if PLACE not in name:
        ending = re.compile(rf"(?<=[-._]){re.escape(outtype)}(?=\.gguf$)", re.IGNORECASE)
        as_written = own.upper() if (found := ending.search(name)) and found[0].isupper() else own
        name = ending.sub(as_written, name)
    return os.path.join(folder, mmproj_name(name.replace(PLACE, own)))


Naming = Callable[[Option], str]
"""What a message calls an option: its flag, its name, its place in a plan."""


def by_flag(each: Option) -> str:
    return each.flag


def request_of(source: str, given: Mapping[str, Any], naming: Naming = by_flag) -> Request:
    """Return the request that options by name make; None stands for what is not given.

    Raises UsageError for a value that is none of its option's, and what reading a file of options raises.
    """
    fields: dict[str, dict[str, Any]] = {"": {}, "options": {}, "vocab": {}}
    if given.get("recipe") is not None and given.get("like") is not None:
        both = f"{naming(option('recipe'))} and {naming(option('like'))}"
        raise UsageError("two recipes", found=both, expected="one of them")
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
    for name in types_of(options.outtype):
        replace(options, outtype="f16" if name.lower() == AUTO else name).check()
    if fields[""].get("target"):
        fields["vocab"].setdefault("source", fields[""]["target"])
    return Request(source, options=options, vocab=VocabOptions(**fields["vocab"]), **fields[""])


_KINDS: dict[Kind, tuple[type, ...]] = {
    Kind.FLAG: (bool,),
    Kind.TEXT: (str,),
    Kind.NUMBER: (int,),
    Kind.SIZE: (int, str),
    Kind.DECIMAL: (int, float),
    Kind.FILE: (str,),
    Kind.TEXT_FILE: (str, list, tuple),
    Kind.LIKE_FILE: (str,),
    Kind.JSON_FILE: (str, dict),
    Kind.TEXTS: (list, tuple),
    Kind.ADAPTERS: (list, tuple),
    Kind.PAIRS: (dict, list, tuple),
    Kind.TYPES: (dict, list, tuple),
    Kind.TYPES_FILE: (str,),
}


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
        case Kind.DECIMAL:
            return _decimal(each, value, name)
        case Kind.TEXTS | Kind.ADAPTERS:
            return _texts(value, wrong)
        case Kind.PAIRS:
            return _pairs(value, name, wrong)
        case Kind.TYPES:
            items = [f"{pattern}={kind}" for pattern, kind in value.items()] if isinstance(value, dict) else value
            return _types(lambda: [parse_tensor_type(item) for item in _texts(items, wrong)], name)
        case Kind.TYPES_FILE:
            return _types(lambda: parse_tensor_types("\n".join(lines_of(value))), name)
        case Kind.TEXT_FILE:
            return "\n".join(lines_of(value) if isinstance(value, str) else _texts(value, wrong))
        case Kind.LIKE_FILE:
            return recipe_like(value)
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


def _decimal(each: Option, value: float, name: str) -> float:
    if not isfinite(value) or value < (each.least or 0):
        raise UsageError(name, found=value, expected=f"a number, {each.least or 0} or more")
    return float(value)


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


def folder_of(request: Request) -> str:
    """Return the folder to which the outputs of a request go."""
    out = request.out_paths[0] if request.out_paths else request.out or request.source
    return out if os.path.isdir(out) else os.path.dirname(os.path.abspath(out))


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
    if request.target is not None:
        checkpoint = with_target(checkpoint, request.target)
    return _with_lora(checkpoint, request.lora)


def _with_lora(checkpoint: Checkpoint, adapters: Sequence[str]) -> Checkpoint:
    """Return a source with its adapters opened; it is closed where one cannot be."""
    for text in adapters:
        try:
            checkpoint = replace(checkpoint, adapters=(*checkpoint.adapters, open_adapter(text)))
        except BaseException:
            checkpoint.close()
            raise
    return checkpoint
