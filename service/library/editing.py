"""`edit`: keys and names of tensors of a GGUF file changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats.files.local_files import Named
from ggferry.service.library.keywords import StrPath
from ggferry.support.progress import Stage, silent


@dataclass(frozen=True, slots=True)
class Edited:
    """A finished edit.

    Attributes:
        output: The file that holds the result; of several, the first. The source itself where nothing changed.
        in_place: Whether no tensor data was moved.
        keys: Changed key → its value before and after, as text.
        receipt_path: The receipt that goes on; None where there was none that fits.
        notes: What a user should know.
    """

    output: str
    in_place: bool
    keys: Mapping[str, Mapping[str, str]]
    receipt_path: str | None
    notes: tuple[str, ...]


def edit(
    path: StrPath,
    out: StrPath | None = None,
    *,
    set: Mapping[str, Any] | Sequence[str] = (),
    remove: Sequence[str] = (),
    set_files: Mapping[str, StrPath] | None = None,
    chat_template: StrPath | None = None,
    special_tokens: Mapping[str, int | str] | None = None,
    rename_tensors: Mapping[str, str] | None = None,
    allow_unknown_keys: bool = False,
    allow_broken: bool = False,
    force: bool = False,
    progress: Stage = silent,
) -> Edited:
    """Change keys and names of tensors of a GGUF file, as `ggferry edit` does.

    Args:
        path: A GGUF file, or a shard of one.
        out: The file to write; None: the file itself is changed, in place where its header has room.
        set: Key → value, or 'KEY=VALUE:TYPE' items. A value that is a text may end in ':TYPE'; lists are arrays.
        remove: Keys, or shell patterns of keys.
        set_files: Key → a file whose text becomes the value.
        chat_template: A file with a template, or a JSON file with one or several.
        special_tokens: Role ('eos', 'bos', 'pad', …) → id, or text of a token.
        rename_tensors: Old → new names.
        allow_unknown_keys: Whether keys that look like a misspelt standard one are set.
        allow_broken: Whether a model may come out that is no longer understood.
        force: Whether an existing output is replaced.
        progress: As for `convert`.

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
    from ggferry.converters.rewrite.changes import EditRequest
    from ggferry.converters.rewrite.editing import edit as run

    items = [f"{key}={_text(value)}" for key, value in set.items()] if isinstance(set, Mapping) else list(set)
    asked = EditRequest(
        items,
        [f"{key}={os.fspath(file)}" for key, file in (set_files or {}).items()],
        remove,
        None if chat_template is None else os.fspath(chat_template),
        [f"{role}={token}" for role, token in (special_tokens or {}).items()],
        [f"{old}={new}" for old, new in (rename_tensors or {}).items()],
        allow_unknown_keys,
    )
    given, name = Named(os.fspath(path)), None if out is None else os.fspath(out)
    done = run(given, asked, name, force=force, broken=allow_broken, stage=progress)
    where = done.paths[0] if done.paths else str(given)
    return Edited(where, done.in_place, done.edit.as_dict()["keys"], done.receipt, done.notes)


def _text(value: Any) -> str:
    """Return a Python value as the command line writes it."""
    import json

    if isinstance(value, str):
        return value
    return json.dumps(value)
