"""Say what a file or folder is, whether it is whole, what can be done with it, and by which command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from ggferry.converters.analysis import mixed_endian as mixed_endian
from ggferry.converters.analysis import other_formats as foreign
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.prequantized.recognize import UNWRITTEN, WHY, configuration, method_of
from ggferry.converters.proof.receipt import LLAMA_CPP
from ggferry.converters.proof.runtime_notes import faults
from ggferry.converters.rewrite.pieces import is_piece
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    AccessError,
    CorruptError,
    GgferryError,
    NotFoundError,
    TruncatedError,
    UnknownFormatError,
    UnreachableError,
    UnsupportedError,
)
from ggferry.formats.files.publication_record import is_interrupted
from ggferry.formats.files.sources import Window, known_by, open_source
from ggferry.formats.json_files.text import load_object
from ggferry.formats.packed.kinds import COMMANDS, kind_of_packing, unpacked_name, words_for
from ggferry.formats.reader import HEAD_BYTES, Kind, container_by_magic, kind_of, label_of, names_in
from ggferry.quant.codec import codec, types_of_forks
from ggferry.support.records import dataclass

NOT_FOUND, UNSUPPORTED, CORRUPT = NotFoundError.exit_code, UnsupportedError.exit_code, CorruptError.exit_code


@dataclass(frozen=True, slots=True)
class Remedy:
    """What can be done, and the command that does it ('' where there is none)."""

    what: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found out about one file or folder.

    Attributes:
        path: What was inspected.
        what: What it is, in words.
        whole: Whether its structure is whole; None where nobody can say.
        exit_code: 0, or the exit code of commands that are given it.
        findings: What is wrong, or should be known.
        remedies: What can be done.
        stray: Names of tensors whose byte order is not the file's.
    """

    path: str
    what: str
    whole: bool | None
    exit_code: int = 0
    findings: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    stray: tuple[str, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "path": self.path,
            "what": self.what,
            "whole": self.whole,
            "exit_code": self.exit_code,
            "findings": list(self.findings),
            "stray_tensors": list(self.stray),
            "remedies": [{"what": each.what, "command": each.command} for each in self.remedies],
        }


def examine(path: str) -> Diagnosis:
    """Return what is known of `path`; nothing that is wrong with it is raised, it is what is returned.

    Headers are read, and of big-endian files samples of the tensors; no tensor is read whole.
    """
    found = _examined(path)
    if not is_interrupted(path):
        return found
    problem = "a run was interrupted that was about to give this name to another file"
    remedy = Remedy(
        "finish or undo it; the same command, run again, does so too", f"ggferry edit {shlex.quote(path)} --recover"
    )
    return replace(found, findings=(problem, *found.findings), remedies=(remedy,))


def _examined(path: str) -> Diagnosis:
    name = known_by(path)
    if not os.path.lexists(path):
        return Diagnosis(name, "nothing: there is no such file or folder", None, NOT_FOUND)
    if os.path.isdir(path):
        return _folder(path, name)
    try:
        with _opened(path) as (head, size):
            return _file(path, name, head, size)
    except GgferryError as error:
        return Diagnosis(name, "a file that cannot be read", None, error.exit_code, (str(error),))


class _opened:
    """The first bytes of a file, and its size."""

    def __init__(self, path: str) -> None:
        self.source = open_source(path)

    def __enter__(self) -> tuple[bytes, int]:
        return self.source.read(0, min(HEAD_BYTES, self.source.size)), self.source.size

    def __exit__(self, *_: object) -> None:
        self.source.close()


# --- one file ------------------------------------------------------------------------------------------------------


def _file(path: str, name: str, head: bytes, size: int) -> Diagnosis:
    if not size:
        return Diagnosis(name, "an empty file", False, CORRUPT, (), (Remedy("download it again"),))
    other = foreign.of_head(head, path)
    if other is not None:
        return _foreign(name, other)
    if name == path and is_piece(path):  # of a URL nothing else is there to tell
        join = Remedy(
            "join it with the others", f"ggferry merge {shlex.quote(name)} -o {shlex.quote(_whole_name(name))}"
        )
        return Diagnosis(name, "a piece of a file that was cut at a byte", False, CORRUPT, (), (join,))
    swapped = container_by_magic(head[:4][::-1])
    if (swapped is not None and container_by_magic(head) is None) or head[:4] == b"FUGG":
        label = "GGUF" if swapped is None else swapped.label
        what = f"{label} with its first bytes reversed: written by a program that swapped the bytes of the magic"
        return Diagnosis(name, what, None, UNSUPPORTED, (), (Remedy("make the file again; nothing reads such files"),))
    try:
        checkpoint = open_checkpoint(path)
    except UnknownFormatError as error:
        if kind := kind_of_packing(head, path):
            unpack = Remedy("unpack it and examine what is inside", COMMANDS[kind].replace("FILE", shlex.quote(name)))
            return Diagnosis(name, words_for(kind), None, error.exit_code, (str(error),), (unpack,))
        return Diagnosis(name, f"nothing that is known here: {error.found}", None, error.exit_code)
    except GgferryError as error:
        return _broken(path, name, head, size, error)
    try:
        return _checkpoint(checkpoint, path, name)
    finally:
        checkpoint.close()


def _whole_name(name: str) -> str:
    """Return the name of the file that pieces make: up to its suffix."""
    return name[: name.lower().rfind(".gguf") + 5] if ".gguf" in name.lower() else f"{name}.whole"


def _foreign(name: str, found: foreign.OtherFormat) -> Diagnosis:
    command = found.command.replace("FILE", shlex.quote(name))
    code = CORRUPT if found.damaged else UNSUPPORTED
    return Diagnosis(name, found.what, False if found.damaged else None, code, (), (Remedy(found.remedy, command),))


def _broken(path: str, name: str, head: bytes, size: int, error: GgferryError) -> Diagnosis:
    """Return what is known of a file that a reader claims and cannot open."""
    own, packing = container_by_magic(head), kind_of_packing(head, path)
    known = foreign.in_part(head) or (own.label if own is not None else _by_suffix(path))
    what = words_for(packing) if packing else known
    findings = [str(error)]
    cut = isinstance(error, TruncatedError) or foreign.unfinished(path)
    if cut:
        what = f"{what}, cut short: {size:,} bytes are here"
        findings += ["it has the name of a download at work"] if foreign.unfinished(path) else []
        url = "URL"
        remedies = [
            Remedy("continue the download; what is here is kept", f"curl -L -C - -o {shlex.quote(name)} {url}"),
            Remedy("of a repository of the Hub", "hf download OWNER/NAME FILE --local-dir ."),
        ]
    elif isinstance(error, UnreachableError | AccessError):
        what, remedies = f"{what}, which cannot be read", [Remedy("copy it from the disk while that is possible")]
    elif isinstance(error, NotFoundError):
        what, remedies = f"{what}, one of several files", [Remedy("put the other files beside it")]
    elif isinstance(error, CorruptError):
        what, remedies = f"{what}, damaged", [Remedy("download it again, or restore it from a copy")]
    else:
        remedies = [Remedy(error.hint)] if error.hint else []
    whole = False if isinstance(error, CorruptError | NotFoundError) or cut else None
    return Diagnosis(name, what, whole, error.exit_code, tuple(findings), tuple(remedies))


def _by_suffix(path: str) -> str:
    suffix = os.path.splitext(path)[1].lstrip(".").lower()
    return f"a .{suffix} file" if suffix else "a file"


# --- what opens ----------------------------------------------------------------------------------------------------


def _checkpoint(checkpoint: Checkpoint, path: str, name: str) -> Diagnosis:
    kind = kind_of(checkpoint.container)
    what = _words(checkpoint)
    findings = list(checkpoint.notes)
    if _is_misnamed(checkpoint, path):
        findings.append("GGUF under another name: programs look for .gguf")
    if scheme := _unread(checkpoint.metadata):
        original = (Remedy(foreign.CONVERTED),)
        return Diagnosis(name, what, True, UNSUPPORTED, (f"{scheme} is not read: {_why(checkpoint)}",), original)
    if checkpoint.big_endian:
        return _big_endian(checkpoint, name, what, findings)
    try:
        graph = understand(checkpoint, vocab_only=not checkpoint.tensors)
    except GgferryError as error:
        remedies = (Remedy(error.hint),) if error.hint else ()
        return Diagnosis(name, what, True, error.exit_code, (*findings, str(error)), remedies)
    if graph.architecture.hparams:
        what += f", {graph.architecture.name}"
        faulty = faults(checkpoint, graph.architecture.name, graph.notes) if kind is Kind.GGUF else ()
        forks = types_of_forks(ref.type for ref in checkpoint.tensors.values())
        findings += [f"{', '.join(names)}: types that only {runtime} reads" for runtime, names in forks.items()]
        runtimes = ", ".join(forks or (each for each in graph.runtimes if each != LLAMA_CPP or not faulty))
        findings += [*faulty, f"supported by {runtimes} (as GGUF)" if runtimes else "no runtime is known to run it"]
        if faulty:
            edit = f"ggferry edit {shlex.quote(name)} --set KEY=VALUE"
            remedy = Remedy("correct the keys, if their right values are known", edit)
            return Diagnosis(name, what, True, 0, tuple(dict.fromkeys(findings)), (remedy,))
    return Diagnosis(name, what, True, 0, tuple(dict.fromkeys(findings)), tuple(_remedies(checkpoint, name)))


def _is_misnamed(checkpoint: Checkpoint, path: str) -> bool:
    """Return whether a file is GGUF from its first byte on and its name does not say so."""
    plain = kind_of(checkpoint.container) is Kind.GGUF and not isinstance(checkpoint.files[0], Window)
    return plain and not os.path.isdir(path) and not path.lower().endswith(".gguf")


def _words(checkpoint: Checkpoint) -> str:
    version = "" if checkpoint.version is None else f" v{checkpoint.version}"
    scheme = _scheme(checkpoint) if kind_of(checkpoint.container) is Kind.TRAINING else ""
    count = f", {len(checkpoint.tensors)} tensors" if checkpoint.tensors else ", a vocabulary without tensors"
    files = f" in {len(checkpoint.files)} files" if len(checkpoint.files) > 1 else ""
    era = f", {checkpoint.era}" if checkpoint.era else ""
    return f"{label_of(checkpoint.container)}{version}{era}{count}{files}{scheme}"


def _scheme(checkpoint: Checkpoint) -> str:
    """Return in words how a checkpoint is quantized already."""
    declared = configuration(checkpoint)
    if declared is None:
        return ""
    method = method_of(declared, checkpoint.tensors)
    how = "" if len(declared) > 1 else ", as its tensors show"
    return f", quantized already: {foreign.SCHEMES.get(method, method.upper())}{how}"


def _remedies(checkpoint: Checkpoint, name: str) -> Iterator[Remedy]:
    quoted = shlex.quote(name)
    if kind_of(checkpoint.container) is Kind.GGUF:
        if checkpoint.version == 3:
            if isinstance(checkpoint.files[0], Window):
                yield Remedy("take the model out of it", f"ggferry quantize {quoted} {shlex.quote(_beside(name))} copy")
            elif _is_misnamed(checkpoint, name):
                yield Remedy("give it its suffix", f"mv {quoted} {shlex.quote(f'{name}.gguf')}")
            brought_back = list(_brought_back(checkpoint, quoted, name))
            yield from brought_back
            as_it_is = (
                "its tensors can be read" if brought_back else "nothing has to be done; its tensors can be read, too"
            )
            yield Remedy(as_it_is, f"ggferry verify {quoted}")
        else:
            yield Remedy("carry it to GGUF v3", f"ggferry convert {quoted} -o {shlex.quote(_beside(name))}")
    elif kind_of(checkpoint.container) is Kind.ADAPTER:
        yield Remedy("make a GGUF adapter of it", f"ggferry convert {quoted}")
    elif not checkpoint.tensors:
        yield Remedy("carry its vocabulary to GGUF v3", f"ggferry convert {quoted} --vocab-only")
    else:
        yield Remedy("carry it to GGUF v3, as exact as it is", f"ggferry convert {quoted}")
        if kind_of(checkpoint.container) is Kind.TRAINING:
            yield Remedy("quantize it on the way", f"ggferry convert {quoted} --outtype q4_k_m")


def _brought_back(checkpoint: Checkpoint, quoted: str, name: str) -> Iterator[Remedy]:
    """Yield how a file with types of a fork of llama.cpp becomes one that llama.cpp reads."""
    forks = types_of_forks(ref.type for ref in checkpoint.tensors.values())
    target = shlex.quote(_beside(name).replace("-v3.", "-llama.cpp."))
    if forks and all(codec(kind).repack is not None for names in forks.values() for kind in names):
        yield Remedy("bring it to llama.cpp's types, with the same values", f"ggferry convert {quoted} -o {target}")
    elif forks:
        command = f"ggferry convert {quoted} -o {target} --outtype bf16"
        yield Remedy("bring it to a type of llama.cpp's; a quantized one needs --allow-requantize", command)


def _beside(name: str) -> str:
    stem, suffix = os.path.splitext(unpacked_name(name))
    return f"{stem}-v3{'.gguf' if suffix.lower() in ('', '.zip', '.tar') else suffix}"


# --- big-endian files ----------------------------------------------------------------------------------------------


def _big_endian(checkpoint: Checkpoint, name: str, what: str, findings: list[str]) -> Diagnosis:
    found = mixed_endian.mixed_endian(checkpoint)
    quoted = shlex.quote(name)
    if found.unclear and not found.stray:
        findings.append(f"the byte order of {len(found.unclear)} tensors cannot be told from their values")
    if not found.stray:
        remedy = Remedy(
            "make it little-endian, which nearly every machine wants",
            f"ggferry convert {quoted} -o {shlex.quote(_beside(name))}",
        )
        return Diagnosis(name, f"{what}, big-endian", True, 0, tuple(findings), (remedy,))
    kinds = ", ".join(dict.fromkeys(checkpoint.tensors[each].type.name for each in found.stray))
    findings.append(
        f"{len(found.stray)} of {len(checkpoint.tensors)} tensors ({kinds}) stayed little-endian in a big-endian file: "
        "convert_hf_to_gguf.py --bigendian does not swap them"
    )
    remedy = Remedy(
        "swap the bytes of these tensors, prove it, and write another file",
        f"ggferry doctor {quoted} --repair -o {shlex.quote(_beside(name).replace('-v3', '-repaired'))}",
    )
    what = f"{what}, big-endian, with tensors of the other byte order"
    return Diagnosis(name, what, False, CORRUPT, tuple(findings), (remedy,), found.stray)


# --- a folder ------------------------------------------------------------------------------------------------------


def _folder(path: str, name: str) -> Diagnosis:
    try:
        checkpoint = open_checkpoint(path)
    except GgferryError as error:
        return _no_checkpoint(path, name, error)
    try:
        return _checkpoint(checkpoint, path, name)
    finally:
        checkpoint.close()


def _no_checkpoint(path: str, name: str, error: GgferryError) -> Diagnosis:
    """Return what a folder is that no reader opens: by its configuration, its names, and the files in it."""
    scheme = _unread_scheme(path)
    if scheme:
        return Diagnosis(
            name,
            f"a checkpoint, quantized already: {scheme}",
            None,
            UNSUPPORTED,
            (str(error),),
            (Remedy(foreign.CONVERTED),),
        )
    culprit = error.path if error.path and os.path.isfile(error.path) else None
    if culprit is not None:
        inner = examine(culprit)
        words = f"a folder with {os.path.basename(culprit)}: {inner.what}"
        return Diagnosis(name, words, inner.whole, inner.exit_code or error.exit_code, inner.findings, inner.remedies)
    try:
        names = names_in(path)
    except NotFoundError as unlisted:
        return Diagnosis(name, "a folder that cannot be listed", None, unlisted.exit_code, (str(unlisted),))
    other = foreign.of_folder(names)
    if other is not None and not isinstance(error, CorruptError):
        return _foreign(name, other)
    if isinstance(error, NotFoundError | CorruptError):
        again = Remedy("fetch the files that are missing", "hf download OWNER/NAME --local-dir " + shlex.quote(name))
        return Diagnosis(name, "a checkpoint that is not whole", False, error.exit_code, (str(error),), (again,))
    models = sorted(each for each in names if each.endswith((".gguf", ".bin", ".safetensors", ".pth")))
    if models:
        hint = Remedy(
            "examine them one by one, or plan the folder as an archive",
            f"ggferry plan {shlex.quote(name)} -o plan.jsonl --dest OUT",
        )
        return Diagnosis(name, f"a folder of {len(models)} models", None, error.exit_code, (str(error),), (hint,))
    return Diagnosis(name, "a folder without a model", None, error.exit_code, (str(error),))


def _unread_scheme(path: str) -> str:
    """Return in words which scheme the configuration in a folder states, if it is one that is not read."""
    try:
        return _unread(load_object(os.path.join(path, "config.json")))
    except GgferryError:
        return ""


def _unread(config: Mapping[str, Any]) -> str:
    return foreign.SCHEMES.get(_method(config), "")


def _why(checkpoint: Checkpoint) -> str:
    return WHY.get(_method(checkpoint.metadata), UNWRITTEN)


def _method(config: Mapping[str, Any]) -> str:
    declared = config.get("quantization_config")
    return method_of(dict(declared)) if isinstance(declared, Mapping) else ""
