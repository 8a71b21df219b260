"""Read the YAML front matter of a model card.

PyYAML finds the structure; every scalar stays text, because `version: 1.10` is not 1.1 and the language `no` is not
false. Anchors, aliases and tags are refused: no card needs them, and aliases make a small text a large value.
"""

from __future__ import annotations

import re
from typing import Any

from ggferry.formats.files.local_files import read_start
from ggferry.formats.json_files.kinds import JSONObject

MAX_CARD = 1 << 20  # bytes; the longest front matters (evaluation results of hundreds of tasks) are below 300 kB
_MAX_DEPTH = 16  # model-index, the deepest thing in cards, has 6
_NULLS = {"", "~", "null", "Null", "NULL"}

Card = tuple[JSONObject, tuple[str, ...]]


def read_card(path: str) -> Card:
    """Return the front matter of the README.md at `path`, and notes on what could not be read.

    Raises as `open_file`.
    """
    data = read_start(path, MAX_CARD + 1)
    if not data.removeprefix(b"\xef\xbb\xbf").startswith(b"---"):
        return {}, ()
    end = re.search(rb"\n(?:---|\.\.\.)[ \t]*\r?(?:\n|$)", data)
    if end is None:
        where = f"within {MAX_CARD} bytes" if len(data) > MAX_CARD else "before the end"
        return {}, (f"the front matter of README.md does not close {where}; it was not read",)
    try:
        text = data[: end.end()].decode("utf-8-sig")
    except UnicodeDecodeError:
        return {}, ("the front matter of README.md is not UTF-8; it was not read",)
    return front_matter(text)


def front_matter(text: str) -> Card:
    """Return the mapping between the first line, `---`, and the next `---` or `...`; ({}, ()) for a text without one.

    Values are str, None, and lists and dicts of them. The second item says what was left out and why.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    if lines[0].rstrip() != "---":
        return {}, ()
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() in {"---", "..."}), None)
    if end is None:
        return {}, ("the front matter of README.md does not close before the end; it was not read",)
    import yaml

    # Tabs indent in some cards, although YAML forbids it; every editor's second guess is two spaces.
    body = "\n".join(
        re.sub(r"^[ \t]+", lambda found: found[0].replace("\t", "  "), line) for line in [*lines[1:end], ""]
    )
    try:
        card, repeated = _built(body)
    except _UnreadError as error:
        return {}, (f"README.md {error}; its front matter was not read",)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 1
        return {}, (f"README.md line {line}: {error.problem}; its front matter was not read",)
    except yaml.YAMLError as error:
        return {}, (f"the front matter of README.md is no YAML ({error!s:.80}); it was not read",)
    if not isinstance(card, dict):
        return {}, ("the front matter of README.md is not a mapping; it was not read",) if card is not None else ()
    return card, tuple(
        f"README.md line {line}: {key[:40]!r} a second time; the first was kept" for line, key in repeated
    )


class _UnreadError(Exception):
    def __init__(self, problem: str, event: Any) -> None:
        super().__init__(f"line {event.start_mark.line + 2}: {problem}")


def _built(text: str) -> tuple[Any, list[tuple[int, str]]]:
    """Build the value of a document from its events; also return the keys that are repeated.

    Raises yaml.YAMLError, _UnreadError.
    """
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    repeated: list[tuple[int, str]] = []
    root: list[Any] = []
    parents: list[Any] = [root]
    keys: list[Any] = [None]

    def put(value: Any, event: Any) -> None:
        parent, key = parents[-1], keys[-1]
        if isinstance(parent, list):
            parent.append(value)
        elif key is None:
            if not isinstance(value, str):
                raise _UnreadError("key is not text", event)
            keys[-1] = (value, event.start_mark.line)
        else:
            name, line = key
            if name in parent:
                repeated.append((line + 2, name))
            parent.setdefault(name, value)
            keys[-1] = None

    for event in yaml.parse(text, Loader=loader):
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise _UnreadError("an anchor, alias or tag", event)
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style and event.value in _NULLS
            put(event.value if not plain or _key_is_next(parents, keys) else None, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            put(value, event)
            if len(parents) > _MAX_DEPTH:
                raise _UnreadError(f"nested deeper than {_MAX_DEPTH} levels", event)
            parents.append(value)
            keys.append(None)
        elif isinstance(event, yaml.CollectionEndEvent):
            parents.pop()
            keys.pop()
    return (root[0] if root else None), repeated[:20]


def _key_is_next(parents: list[Any], keys: list[Any]) -> bool:
    return isinstance(parents[-1], dict) and keys[-1] is None
