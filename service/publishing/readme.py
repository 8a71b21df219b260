"""Put a card's front matter and table into a README.md; what a person wrote there stays."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ggferry.converters.metadata.model_card import front_matter
from ggferry.formats.errors import InconsistentError
from ggferry.service.publishing.card import HEAD, markdown
from ggferry.support.records import dataclass

BEGIN = "<!-- ggferry: begin of files -->"
END = "<!-- ggferry: end of files -->"
"""What stands between the two is replaced by the next commit; a card keeps them, so they never change."""
_ROW = re.compile(r"\| \[.*?\]\((?P<target>[^\s()]+)\) \|")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/+-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
"""Words that a reader of YAML 1.1 or 1.2 takes for something other than text."""


@dataclass(frozen=True, slots=True)
class CardParts:
    """What is put into a README.md.

    Attributes:
        front: Keys of the front matter.
        rows: Lines of the table by the address of the file.
        below: Lines below the table.
        title: Heading of a new card.
    """

    front: Mapping[str, Any]
    rows: Mapping[str, str]
    below: Sequence[str]
    title: str


def with_card(existing: str | None, parts: CardParts, present: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Return a README.md with the card's parts, and notes.

    Args:
        existing: The text of the repository; None for a new card.
        parts: What is put there.
        present: Addresses of the files in the repository: rows of the earlier table stay for these.

    Raises:
        InconsistentError: The comments around the table are there more than once, or one of them alone.
    """
    if existing is None:
        text = f"---\n{_yaml(parts.front)}---\n\n# {markdown(parts.title)}\n\n{_block(parts.rows, parts)}\n"
        return text, ()
    newline = "\r\n" if "\r\n" in existing else "\n"
    text = existing.replace("\r\n", "\n")
    before, old, after = _cut(text)
    rows = {target: row for target, row in _rows_of(old).items() if target in present} | dict(parts.rows)
    block = _block(dict(sorted(rows.items())), parts)
    text, notes = _with_front_matter(f"{before}{block}{after}", parts.front)
    return text.replace("\n", newline), notes


def _block(rows: Mapping[str, str], parts: CardParts) -> str:
    lines = ["## Files", "", f"| {' | '.join(HEAD)} |", "|---|---|--:|--:|--:|--:|---|", *rows.values(), ""]
    return "\n".join([BEGIN, "", *lines, *parts.below, "", END])


def _cut(text: str) -> tuple[str, str, str]:
    """Return what stands before the block, the block, and what stands after it."""
    begins, ends = ([*re.finditer(rf"^{mark}[ \t]*$", text, re.MULTILINE)] for mark in (BEGIN, END))
    if not begins and not ends:
        return f"{text.rstrip()}\n\n" if text.strip() else "", "", "\n"
    if len(begins) != 1 or len(ends) != 1 or ends[0].start() < begins[0].start():
        raise InconsistentError(
            "the comments around the table of files do not stand there once each, in order",
            path="README.md",
            found=f"{len(begins)} of the first, {len(ends)} of the second",
            hint="correct or remove them in the repository",
        )
    start, stop = begins[0].start(), ends[0].end()
    return text[:start], text[start:stop], text[stop:]


def _rows_of(block: str) -> dict[str, str]:
    """Return the rows of an earlier table by the address of the file."""
    return {found["target"]: line for line in block.split("\n") if (found := _ROW.match(line))}


def _with_front_matter(text: str, front: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return a text with the keys that its front matter lacks; it is left as it is where that cannot be done."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines = text.removeprefix(mark).split("\n")
    if lines[0].rstrip() != "---":
        return f"{mark}---\n{_yaml(front)}---\n\n{text.removeprefix(mark)}", ()
    have, notes = front_matter(text)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() in {"---", "..."}), None)
    more = {key: value for key, value in front.items() if key not in have}
    if "base_model" in have:
        more.pop("base_model_relation", None)  # of a model that a person named
    if not more:
        return text, ()
    made = mark + "\n".join([*lines[:end], *_yaml(more).rstrip("\n").split("\n"), *lines[end:]])
    if end is None or any("not read" in note for note in notes) or front_matter(made)[0] != {**have, **more}:
        return text, ("README.md: its front matter cannot be added to, and was left as it is",)
    return made, ()


def _yaml(front: Mapping[str, Any]) -> str:
    """Return keys as YAML that every version reads as the same texts."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(dict(front), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 20) if front else ""
