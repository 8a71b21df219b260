"""The plan of a migration: a head line and one JSON object for each model, made to be compared, edited and kept.

It contains no time, machine or random number: the same archive gives the same lines in the same order. A person may
change a line's `verdict` (convert or skip), `output` and `options`. What it was made from is checked before anything is
done.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from math import isfinite
from typing import Any

import ggferry
from ggferry.converters.conversion.options import types_of
from ggferry.converters.metadata.beside import FOLDER_FORMATS, RECEIPT
from ggferry.formats.errors import CorruptError, NotFoundError, UsageError
from ggferry.formats.files.local_files import Named, open_file
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.partial_files import write_text
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.fields import FoundRecord
from ggferry.service.storage.stores import Found, is_remote, local_path, local_roots, parts_below, split
from ggferry.support.printable import printable_json

FORMAT = 1
CONVERT, SKIP, DUPLICATE, CORRUPT, INCOMPLETE, UNSUPPORTED, ARCHIVE, OTHER = VERDICTS = (
    "convert",
    "skip",
    "duplicate",
    "corrupt",
    "incomplete",
    "unsupported",
    "archive",
    "other",
)
BAD = (CORRUPT, INCOMPLETE, UNSUPPORTED)
MAX_LINE = 64 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """What holds for all lines.

    Attributes:
        roots: What was planned: folders, files or URLs.
        dest: Folder or URL of the outputs; None: next to their sources.
        outtype: The type of the outputs; several, separated by commas, where every model gets one of each.
        verify: The level of proof.
        ggferry: Version that made the plan.
        format: Version of the plan's form.
        redirects: Whether web servers may redirect to others (`urls.Access`).
    """

    roots: tuple[str, ...]
    dest: str | None = None
    outtype: str = "keep"
    verify: str = "full"
    ggferry: str = ggferry.__version__
    format: int = FORMAT
    redirects: bool = False

    @property
    def trees(self) -> list[str]:
        """Return the local folders that a job may touch."""
        return local_roots((*self.roots, *([self.dest] if self.dest else [])))

    @property
    def id(self) -> str:
        """The id by which a ledger knows the run: the same for every plan of the same roots to the same place."""
        return digest_of([self.roots, self.dest, self.outtype, self.verify])[:16]


@dataclass(frozen=True, slots=True)
class Further:
    """An output of a line besides its first: of another type, made in the same reading.

    Attributes:
        outtype: Its type.
        output: Its path or URL, in the folder of the first.
        bytes_out: Its exact size.
    """

    outtype: str
    output: str
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A model, or a file that is none. Sizes and memory are in bytes.

    Attributes:
        files: The weights in reading order, each with path, bytes and version (`places.Found`).
        beside: The sidecar files, likewise.
        bytes_out: Exact size of the output; of several, of all of them.
        memory: Estimated memory of the conversion.
        disk: The most room it takes while it is made.
        gpus: What a cluster is to reserve for it (nothing here needs one).
        output: Where the output goes; of several, the first.
        further: The other outputs, in the order of the types.
        lost: Tensors of which the output will hold nothing, a record for each reason (`graph.Loss`).
        same_as: Source of the line with the same content.
        proof: How that is known (blake3: every byte; inode).
        options: What differs from the head (`converters.conversion.options.PLAN_NAMES`).
    """

    source: str
    verdict: str
    reason: str = ""
    kind: str = "file"
    container: str | None = None
    version: int | None = None
    era: str | None = None
    architecture: str | None = None
    types: str | None = None
    files: tuple[Found, ...] = ()
    beside: tuple[Found, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    memory: int = 0
    disk: int = 0
    gpus: float = 0
    output: str | None = None
    further: tuple[Further, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    grades: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lost: tuple[Mapping[str, Any], ...] = ()
    same_as: str | None = None
    proof: str | None = None
    error: Mapping[str, Any] | None = None

    def id(self, head: Head) -> str:
        """Return the id of the job.

        It depends on the files as listed, what is asked of them, where the outputs go, and the class of ggferry's
        version.
        """
        listed = [(each.path, each.bytes, each.version) for each in (*self.files, *self.beside)]
        goes = [*self.outputs] if self.further else self.output
        return digest_of([self.source, listed, self.recipe(head), goes, version_class()])[:32]

    def outtypes(self, head: Head) -> tuple[str, ...]:
        """Return the types of the outputs."""
        return types_of(str(self.recipe(head)["outtype"]))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Where the outputs go, in the order of the types."""
        return () if self.output is None else (self.output, *(each.output for each in self.further))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the outputs in bytes, as `sizes_of`."""
        return tuple(sizes_of({"bytes_out": self.bytes_out, "further": [asdict(each) for each in self.further]}))

    def recipe(self, head: Head) -> JSONObject:
        """Return everything besides the source's bytes that decides the output's bytes."""
        return {"outtype": head.outtype, "verify": head.verify, **self.options}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value of a line may be, and the words for it."""

    name: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    """Return whether a value can be the path of a file of this machine, or is a URL."""
    if not _is_text(value) or is_remote(value):
        return _is_text(value)
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # half of a UTF-16 pair
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # what a ledger's column holds


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and value >= 0


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_TEXT, _COUNT = _Kind("text", _is_text), _Kind("a whole number", _is_count)
_MAYBE = _Kind("text or null", lambda value: value is None or _is_text(value))
_TEXTS, _OBJECTS = _Kind("a list of texts", _list_of(_is_text)), _Kind("a list of objects", _list_of(_is_object))
_OBJECT = _Kind("an object", _is_object)
_NAME = _Kind("a path or a URL", _is_name)
_MAYBE_NAME = _Kind("a path, a URL or null", lambda value: value is None or _is_name(value))
_NAMES = _Kind("a list of paths and URLs", _list_of(_is_name))
HEAD_FIELDS = {
    "roots": _NAMES,
    "dest": _MAYBE_NAME,
    "outtype": _TEXT,
    "verify": _TEXT,
    "ggferry": _TEXT,
    "redirects": _Kind("true or false", lambda value: type(value) is bool),
}
ENTRY_FIELDS = {
    "source": _NAME,
    "verdict": _TEXT,
    "reason": _TEXT,
    "kind": _TEXT,
    "container": _MAYBE,
    "version": _Kind("a whole number or null", lambda value: value is None or _is_count(value)),
    "era": _MAYBE,
    "architecture": _MAYBE,
    "types": _MAYBE,
    "files": _OBJECTS,
    "beside": _OBJECTS,
    "bytes_in": _COUNT,
    "bytes_out": _COUNT,
    "memory": _COUNT,
    "disk": _COUNT,
    "gpus": _Kind("a number", _is_number),
    "output": _MAYBE_NAME,
    "further": _OBJECTS,
    "options": _OBJECT,
    "grades": _Kind("an object of numbers", lambda value: _is_object(value) and all(map(_is_count, value.values()))),
    "notes": _TEXTS,
    "lost": _OBJECTS,
    "same_as": _MAYBE,
    "proof": _MAYBE,
    "error": _Kind("an object or null", lambda value: value is None or _is_object(value)),
}
FOUND_FIELDS = {
    "path": _NAME,
    "bytes": _Kind("a whole number", lambda value: value == -1 or _is_count(value)),
    "version": _TEXT,
}


FURTHER_FIELDS = {"outtype": _TEXT, "output": _NAME, "bytes_out": _COUNT}


def outputs_of(entry: Mapping[str, Any]) -> list[str]:
    """Return where the outputs of a line go, which is plain data here; lines of before have one."""
    first = entry.get("output")
    return [] if first is None else [str(first), *(str(each["output"]) for each in entry.get("further") or ())]


def sizes_of(entry: Mapping[str, Any]) -> list[int]:
    """Return the sizes of the outputs of a line in bytes; −1 for one that an edited line does not tell."""
    whole, rest = int(entry.get("bytes_out", -1)), [int(each["bytes_out"]) for each in entry.get("further") or ()]
    return [size if size > 0 else -1 for size in (whole - sum(rest), *rest)] if rest else [whole]


def version_class() -> str:
    """Return the versions that write the same bytes: those with the same first two numbers."""
    return ".".join(ggferry.__version__.split(".")[:2])


def digest_of(value: Any) -> str:
    """Return the BLAKE3 digest of plain data in hex."""
    from blake3 import blake3

    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=list)
    return str(blake3(text.encode()).hexdigest())


# --- to and from a file --------------------------------------------------------------------------------------------


def to_line(value: Head | Entry) -> str:
    """Return one line of the file; fields with default values are left out."""
    if isinstance(value, Head):
        record = asdict(value)
        redirects = {"redirects": True} if record.pop("redirects") else {}
        return printable_json({"ggferry_plan": record.pop("format"), **record, **redirects})
    keep: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():  # not `asdict`, whose copies took a third of a plan's own time
        found = getattr(value, name)
        if name in ("source", "verdict") or (found and found != default):
            keep[name] = found
    keep |= {name: _found(keep[name]) for name in ("files", "beside") if name in keep}
    keep |= {"further": [asdict(each) for each in value.further]} if value.further else {}
    return printable_json(keep)


_DEFAULTS = {each.name: each.default for each in fields(Entry)}


def _found(files: Iterable[Found]) -> list[FoundRecord]:
    return [{"path": each.path, "bytes": each.bytes, "version": each.version} for each in files]


def write_plan(path: str, head: Head, entries: Sequence[Entry], *, overwrite: bool = False) -> None:
    """Write a plan whole or not at all.

    Raises RefusedError where a file exists: a plan is edited by hand, so it is replaced only with `overwrite`, and a
    model that it plans never is.
    """
    lines = chain([to_line(head)], map(to_line, entries))
    write_text(path, lines, overwrite=overwrite, sources=_model_files(entries))


def _model_files(entries: Iterable[Entry]) -> dict[Identity, str]:
    """Return the local files of all lines but those of other files."""
    files = (each for entry in entries if entry.verdict != OTHER for each in (*entry.files, *entry.beside))
    return {each.inode: each.path for each in files if each.inode}


def read_plan(path: str) -> tuple[Head, list[Entry]]:
    """Return the plan at `path`, perhaps edited. Raises NotFoundError, UsageError or CorruptError naming the line."""
    try:
        with open(open_file(Named(path)), "rb") as file:
            return parse_plan(iter(lambda: file.readline(MAX_LINE), b""), path)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None


def parse_plan(lines: Iterable[bytes], path: str) -> tuple[Head, list[Entry]]:
    """Return the plan that `lines` are. Raises UsageError or CorruptError naming `path` and the line."""
    entries: list[Entry] = []
    numbers: list[int] = []
    head: Head | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _object(line, path, number)
        if head is None:
            head = _head(record, path)
        else:
            entries.append(_entry(record, path, number))
            numbers.append(number)
    if head is None:
        raise UsageError("plan is empty", path=path, hint="ggferry plan ROOT -o FILE")
    _check_types(head, entries, path)
    _check_outputs(head, entries, path)
    _check_twice(head, entries, numbers, path)
    return head, entries


def _object(line: bytes, path: str, number: int) -> JSONObject:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"line {number} of the plan is not JSON: {error}", path=path) from None
    if not isinstance(record, dict):
        raise CorruptError(f"line {number} of the plan is not an object", path=path)
    return record


def _head(record: JSONObject, path: str) -> Head:
    if record.pop("ggferry_plan", None) != FORMAT:
        raise UsageError("not a plan of this version of ggferry", path=path, hint="its first line must be kept")
    _check(record, HEAD_FIELDS, ("roots",), path, "the plan's first line")
    return Head(roots=tuple(record.pop("roots")), **record)


def _entry(record: JSONObject, path: str, number: int) -> Entry:
    place = f"line {number} of the plan"
    _check(record, ENTRY_FIELDS, ("source", "verdict"), path, place)
    for name in ("files", "beside"):
        for each in record.get(name, ()):
            _check(each, FOUND_FIELDS, tuple(FOUND_FIELDS), path, f"{place}: {name}")
        record[name] = tuple(Found(**each) for each in record.get(name, ()))
    for each in record.get("further", ()):
        _check(each, FURTHER_FIELDS, ("outtype", "output"), path, f"{place}: further")
    record["further"] = tuple(Further(**each) for each in record.get("further", ()))
    record["notes"], record["lost"] = tuple(record.get("notes", ())), tuple(record.get("lost", ()))
    entry = Entry(**record)
    if entry.verdict not in VERDICTS:
        raise UsageError(f"{place}: verdict", path=path, found=entry.verdict, expected=", ".join(VERDICTS))
    if entry.verdict == CONVERT and not (entry.files and entry.output and isinstance(entry.options, dict)):
        raise UsageError(f"{place}: a model to convert needs files, an output and options", path=path)
    return entry


def _check(record: Mapping[str, Any], known: Mapping[str, _Kind], needed: Sequence[str], path: str, place: str) -> None:
    """Raise UsageError naming the first key that is unknown, missing, or not of its kind."""
    odd = next((key for key in record if key not in known), None)
    if odd is not None:
        raise UsageError(f"{place}: an unknown key", path=path, found=odd, expected=", ".join(known))
    missing = next((key for key in needed if key not in record), None)
    if missing is not None:
        raise UsageError(f"{place}: a key is missing", path=path, expected=missing)
    for key, value in record.items():
        if not known[key].fits(value):
            raise UsageError(f"{place}: {key}", path=path, found=value, expected=known[key].name)


def _check_types(head: Head, entries: Iterable[Entry], path: str) -> None:
    """Check that every line to convert has an output for each of its types, all of them in one folder.

    A receipt names the files beside it. A type that does not exist is refused when the line is carried out.
    """
    for entry in entries:
        outtype = entry.recipe(head)["outtype"]
        if entry.verdict != CONVERT or not isinstance(outtype, str):
            continue
        _, *types = types_of(outtype)
        if types != [each.outtype for each in entry.further]:
            raise UsageError(
                f"the outputs of {entry.source} are not those of its types",
                path=path,
                found=", ".join(each.outtype for each in entry.further) or "no further output",
                expected=f"in 'further', an object with outtype and output for each of {', '.join(types)}"
                if types
                else f"one output, of {outtype}",
            )
        if len({split(local_path(each))[0] for each in entry.outputs}) > 1:
            raise UsageError(
                "outputs of one model in several folders", path=path, found=", ".join(entry.outputs), expected="one"
            )


def _check_outputs(head: Head, entries: Iterable[Entry], path: str) -> None:
    """Check that no output has the name of another or of a receipt: the second would be taken for the first's.

    Nor is one inside another that is a folder: what is in there is what its receipt lists.
    """
    seen: dict[str, str] = {}
    folders: set[str] = set()
    for entry in entries:
        for each in entry.outputs if entry.verdict == CONVERT else ():
            output = local_path(each)
            if output in seen:
                words = "two outputs of one name" if seen[output] == entry.source else "two models with one output"
                raise UsageError(words, path=path, found=f"{seen[output]}, {entry.source}")
            if output.endswith(RECEIPT):
                raise UsageError("output has the name of a receipt", path=path, found=each)
            seen[output] = entry.source
            if entry.recipe(head).get("to") in FOLDER_FORMATS:
                folders.add(output)
    for output in seen if folders else ():
        above = split(output)[0]
        while above and above not in folders and above != split(above)[0]:
            above = split(above)[0]
        if above in folders:
            raise UsageError("an output in the folder of another", path=path, found=output, expected=f"not in {above}")


def _check_twice(head: Head, entries: Sequence[Entry], numbers: Sequence[int], path: str) -> None:
    """Check that no two lines are one job: a ledger has one row for each.

    A source may have two lines if its files, what is asked or the outputs differ.
    """
    seen: dict[str, dict[str, int]] = {}
    several = {source for source, count in Counter(entry.source for entry in entries).items() if count > 1}
    for number, entry in zip(numbers, entries, strict=True):
        if entry.source not in several:  # an id is a digest, and archives have many lines
            continue
        ids = seen.setdefault(entry.source, {})
        first = ids.setdefault(entry.id(head), number)
        if first != number:
            raise UsageError(
                f"lines {first} and {number} of the plan have the same source, files, options and output",
                path=path,
                found=entry.source,
                expected="one line",
                hint="remove one of them",
            )


def outside(head: Head, entries: Iterable[Entry]) -> list[str]:
    """Return the outputs that a plan with a `dest` would write elsewhere."""
    if head.dest is None:
        return []
    inside = local_path(head.dest)
    outputs = [output for entry in entries if entry.verdict == CONVERT for output in entry.outputs]
    return [output for output in outputs if not parts_below(_plainly(output), inside)]


def _plainly(output: str) -> str:
    """Return an output's whole path; nothing for a URL whose path goes up."""
    whole = local_path(output)
    return "" if is_remote(whole) and {".", ".."} & set(whole.split("/")) else whole
