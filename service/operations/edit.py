"""Edit keys and names of tensors of GGUF files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any

from ggferry.converters.conversion.options import Kind
from ggferry.formats.files.local_files import Named
from ggferry.service.operation import (
    AsJson,
    DryRun,
    Force,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
)
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.rewrite.changes import RequestedChanges

Items = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True, slots=True)
class EditChanges:
    """The changes of an edit that name no file: what the HTTP API takes."""

    _: KW_ONLY
    set: Annotated[
        Items,
        declare(
            Kind.TEXTS, "Set a key, or one item of an array: KEY[3]=VALUE; repeatable.", "--set",
            metavar="KEY=VALUE[:TYPE]", longest=100_000,
            python="Key → value, or 'KEY=VALUE:TYPE' items. A value that is a text may end in ':TYPE'; lists are "
            "arrays.",
        ),
    ] = ()
    remove: Annotated[
        Sequence[str],
        declare(Kind.TEXTS, "Remove a key, or all that match a pattern; repeatable.", "--remove", metavar="KEY",
                python="Keys, or shell patterns of keys."),
    ] = ()
    special_tokens: Annotated[
        Mapping[str, int | str] | Sequence[str] | None,
        declare(Kind.IDS, "Set a special token: eos=2, eos='</s>'; repeatable.", "--special-token",
                metavar="ROLE=ID|TEXT", python="Role ('eos', 'bos', 'pad', …) → id, or text of a token."),
    ] = None
    rename_tensors: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        declare(Kind.PAIRS, "Rename a tensor; repeatable.", "--rename-tensor", metavar="OLD=NEW",
                python="Old → new names of tensors."),
    ] = None
    strip_mtp: Annotated[
        bool, declare(Kind.FLAG, "Take off the blocks that predict further tokens (MTP), as --no-mtp leaves them out.")
    ] = False
    allow_unknown_keys: Annotated[
        bool, declare(Kind.FLAG, "Set keys that look like a misspelled standard one.")
    ] = False


@dataclass(frozen=True, slots=True)
class EditRequest(EditChanges):
    """An edit of one GGUF file."""

    path: Annotated[StrPath, argument("A GGUF file, or a shard of one.")]
    out: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "The file to write.", "--outfile", "-o", metavar="FILE",
                python="The file to write; None: the file itself is changed, in place where its header has room."),
    ] = None
    _: KW_ONLY
    set_files: Annotated[
        Mapping[str, StrPath] | Sequence[str] | None,
        declare(Kind.PAIRS, "Set a key to the text of a file; repeatable.", "--set-file", metavar="KEY=PATH[:TYPE]",
                python="Key → a file whose text becomes the value."),
    ] = None
    chat_template: Annotated[
        StrPath | None, declare(Kind.TEXT,
                "Set the chat template: a template, or a JSON file with one or several.",
                metavar="FILE")
    ] = None
    allow_broken: Annotated[
        bool, declare(Kind.FLAG, "Write the file although ggferry no longer understands its model.")
    ] = False
    force: Force = False
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class EditCommand(EditRequest):
    """Change keys and names of tensors: no tensor data moves where the header has room for it."""

    _: KW_ONLY
    in_place: Annotated[bool, declare(Kind.FLAG, "Change FILE itself.")] = False
    recover: Annotated[
        bool, declare(Kind.FLAG, "Finish an edit in place that was interrupted, and do nothing else.")
    ] = False
    dry_run: DryRun = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class Edited:
    """A finished edit.

    Attributes:
        output: The file that holds the result; of several, the first. The source itself where nothing changed.
        in_place: Whether no tensor data was moved.
        keys: Changed key → its value before and after, as text.
        receipt_path: The receipt that goes on; None where there was none that fits.
        notes: What a user should know.
        paths: All files that hold the result; () where nothing changed.
        tensors: Old → new names of tensors.
        lines: The changes as a diff.
        proof: What was compared, in one line.
    """

    output: str
    in_place: bool
    keys: Mapping[str, Mapping[str, str]]
    receipt_path: str | None
    notes: tuple[str, ...]
    paths: tuple[str, ...]
    tensors: Mapping[str, str]
    lines: tuple[str, ...]
    proof: str


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What an edit would do.

    Attributes:
        keys: Changed key → its value before and after, as text.
        tensors: Old → new names of tensors.
        notes: What a user should know.
        lines: The changes as a diff.
        changes_anything: Whether the result differs from the file.
        fits_in_place: Whether no tensor data would be moved.
    """

    keys: Mapping[str, Mapping[str, str]]
    tensors: Mapping[str, str]
    notes: tuple[str, ...]
    lines: tuple[str, ...]
    changes_anything: bool
    fits_in_place: bool


def run(request: EditRequest) -> Edited:
    """Change keys and names of tensors of a GGUF file, as `ggferry edit` does.

    Returns:
        What was changed, and where it is.

    Raises:
        UsageError: A key, a value or a type that does not fit.
        RefusedError: A key that says how the file is laid out, or a model that would no longer be understood.
        GgferryError: As `convert`. The file is as it was.

    Example:
        >>> ggferry.edit("model.gguf", set={"general.name": "Mine"}).in_place
        True
    """
    from ggferry.converters.rewrite.editing import edit as carry_out

    path, out = Named(os.fspath(request.path)), None if request.out is None else os.fspath(request.out)
    done = carry_out(
        path, _changes(request), out, force=request.force, broken=request.allow_broken, stage=request.progress
    )
    found = done.edit.as_dict()
    return Edited(
        done.paths[0] if done.paths else str(path), done.in_place, found["keys"], done.receipt, done.notes, done.paths,
        found["tensors"], tuple(done.edit.changes.lines), done.proof,
    )


def plan(request: EditRequest) -> EditPlan:
    """Return what an edit would do. Nothing is written. Raises as `run`."""
    from ggferry.converters.rewrite.editing import plan_edit
    from ggferry.converters.rewrite.parts import close, parse_parts

    parts = parse_parts(Named(os.fspath(request.path)))
    try:
        made = plan_edit(parts, _changes(request), broken=request.allow_broken)
    finally:
        close(parts)
    fits = all(made.headers[number] is not None for number in made.changed) and len(made.changed) < 2
    found = made.as_dict()
    return EditPlan(found["keys"], found["tensors"], made.notes, tuple(made.changes.lines), bool(made.changed), fits)


def recover(path: StrPath) -> str | None:
    """Finish an edit in place that was broken off: 'finished' or 'undone'; None where there is none."""
    from ggferry.converters.rewrite.editing import finish

    return finish(Named(os.fspath(path)))


def changes_nothing(request: EditRequest) -> bool:
    """Return whether a request asks for no change."""
    return not any((request.set, request.set_files, request.remove, request.special_tokens, request.rename_tensors,
                    request.chat_template, request.strip_mtp))


def _changes(request: EditRequest) -> RequestedChanges:
    from ggferry.converters.rewrite import changes

    return changes.RequestedChanges(
        _items(request.set), _items(request.set_files), request.remove,
        None if request.chat_template is None else os.fspath(request.chat_template),
        _items(request.special_tokens), _items(request.rename_tensors), request.allow_unknown_keys,
        request.strip_mtp,
    )


def _items(values: Items | None) -> list[str]:
    """Return what a mapping states as KEY=VALUE items, as a command line has them."""
    if isinstance(values, Mapping):
        return [f"{key}={_text(value)}" for key, value in values.items()]
    return list(values or ())


def _text(value: Any) -> str:
    """Return a Python value as a command line writes it."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return json.dumps(value)


edit = library_function("edit", EditRequest, run)
