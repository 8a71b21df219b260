"""The chat templates of a model: keys of a GGUF file, files beside a checkpoint. None is ever rendered."""

from __future__ import annotations

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files.text import load_object


def templates(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the chat templates by name ('' is the usual one): of a GGUF file its keys, of a checkpoint its files.

    Raises a GgferryError for a file that cannot be read.
    """
    prefix = "tokenizer.chat_template"
    found = {
        key.removeprefix(prefix).removeprefix("."): str(value.data)
        for key, value in checkpoint.metadata.items()
        if key.startswith(prefix) and isinstance(value, Value) and value.type is ValueType.STRING
    }
    for role, path in checkpoint.sidecars.items():
        if role == "chat_template.jinja" or role.startswith("chat_template:"):
            found[role.partition(":")[2]] = read_text(path)
    for role in ("chat_template.json", "tokenizer_config"):
        if role in checkpoint.sidecars and not found:
            found |= _declared(checkpoint.sidecars[role])
    return found


def _declared(path: str) -> dict[str, str]:
    try:
        declared = load_object(path).get("chat_template")
    except GgferryError:
        return {}
    if isinstance(declared, str):
        return {"": declared}
    listed = declared if isinstance(declared, list) else ()
    return {
        str(each.get("name")): str(each.get("template"))
        for each in listed
        if isinstance(each, dict) and isinstance(each.get("template"), str)
    }
