"""Conversations of a file as the texts that a model's chat template makes of them, rendered in a process of its own.

A line of the file is a JSON object: `messages`, a list of objects with a `role`, and where there are any `tools`.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from typing import Any

from ggferry.converters.proof.references.child_process import ask
from ggferry.converters.proof.references.conversations import SECONDS, template_of
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import CorruptError, MissingError, UnsupportedError
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.json_files.kinds import as_object, items, objects, wrong_kind
from ggferry.formats.json_files.parse import parse_json

A_SECOND = 50  # conversations that a template has for each second of CPU besides SECONDS; real ones render thousands


def conversations_of(path: str) -> dict[str, dict[str, Any]]:
    """Return the conversations of a file by the numbers of their lines.

    Raises NotFoundError, EncodingError, and a CorruptError for what is no conversation.
    """
    found, offset = {}, 0
    for number, line in enumerate(lines_of(path), 1):
        data = line.encode()
        if line.strip():
            found[str(number)] = _conversation(parse_json(data, path, offset), number, path)
        offset += len(data) + 1
    if not found:
        raise CorruptError("no conversation in it", path=path)
    return found


def _conversation(value: Any, number: int, path: str) -> dict[str, Any]:
    line = as_object(value, f"line {number}", path)
    messages = objects(line, "messages", path)
    if not messages:
        raise MissingError(f"line {number} has no messages", path=path, expected='{"messages": [{"role": …}, …]}')
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise wrong_kind(f"role of a message of line {number}", message.get("role"), path, "a text")
    tools = items(line, "tools", path)
    return {"messages": messages, **({"tools": tools} if tools else {})}


def rendered_texts(path: str, tokenizer: Tokenizer, model: str) -> list[str]:
    """Return the text of every conversation of a file, in order; `model`: the path of the model, for errors.

    Raises:
        MissingError: The model has no chat template.
        UnsupportedError: Jinja is not installed, or the template has no text for a conversation.
        GgferryError: As `conversations_of`.
    """
    given, template = conversations_of(path), template_of(tokenizer)
    if template is None:
        raise MissingError(
            "the model has no chat template, by which conversations would be texts", path=model, hint="--text FILE"
        )
    if find_spec("jinja2") is None:
        raise UnsupportedError("Jinja is not installed, which renders chat templates", hint="pip install jinja2")
    job = {
        "template": template[0],
        "bos": template[1],
        "eos": template[2],
        "given": given,
        "prompting": False,
        "prompts": [],
        "seconds": SECONDS + len(given) // A_SECOND,
    }
    with tempfile.TemporaryDirectory(prefix="ggferry-chat-") as folder:
        answer = ask("jinja_chat", job, folder, 0)
    if answer.why is not None:
        raise UnsupportedError(f"the chat template cannot be rendered: {answer.why}", path=model)
    return [_text(answer.facts["rendered"].get(number) or {}, number, path) for number in given]


def _text(found: dict[str, Any], number: str, path: str) -> str:
    if not isinstance(found.get("text"), str):
        raise UnsupportedError(
            f"the chat template has no text for line {number}: {found.get('error', 'nothing')}",
            path=path,
            hint="leave the line out",
        )
    return str(found["text"])
