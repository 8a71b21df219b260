"""Make docs/chat-templates.md: which chat templates llama.cpp renders as transformers' Jinja does.

Run: python tools/chat_templates.py FOLDER > docs/chat-templates.md, where FOLDER is models/templates of the
sources in the sdist of xllamacpp (of the pinned version).
"""

from __future__ import annotations

import sys
from pathlib import Path

from ggferry.converters.proof.references.conversations import CONVERSATIONS, Rendered, rendered

HEAD = """# Chat templates: transformers' Jinja and llama.cpp

GGUF keeps a model's chat template as text, and the proof compares it with the source's file, letter by letter. Two
programs render it in every proof, while the output is written, in a process with little memory and time (5 seconds of
CPU each): Jinja, as transformers sets it up, and where xllamacpp is installed llama.cpp's own engine, on a model of a
hundred kilobytes, which takes 0.2 seconds. They do it over {count} conversations: {names}.

What differs is a note of the conversion, as is a template that one of them does not render; the receipt names the
programs that did, and `--verify none` asks none. This table is what they make of the templates that llama.cpp's sources
carry (`models/templates`); `tools/chat_templates.py` makes it, with Jinja {jinja} and llama.cpp {build}.

*alike*: conversations of which both make one text. *neither*: those that both refuse. llama.cpp states two variables to
a template that transformers does not: `enable_thinking`, true unless a request says otherwise, and `date_string`, the
day's. Where that alone makes the difference, it is named. Jinja's sandbox refuses `append` of a list, llama.cpp not.

| template | alike | neither | what differs |
|---|---|---|---|
"""


def row(name: str, found: Rendered) -> str:
    """Return the line of the table for a template."""
    why = next((said for said in (found.jinja, found.runtime) if "rendered nothing" in said), None)
    if why is not None:
        return f"| {name} | 0 | 0 | {escaped(why)} |"
    grouped: dict[str, list[str]] = {}
    for conversation, difference in found.apart.items():
        kind = difference if "Jinja '" not in difference and 'Jinja "' not in difference else "another text"
        grouped.setdefault(kind, []).append(conversation)
    every = len(CONVERSATIONS)
    apart = "; ".join(
        f"{'all' if len(names) == every else ', '.join(names)}: {kind}" for kind, names in grouped.items()
    )
    return f"| {name} | {len(found.alike)} | {len(found.refused)} | {escaped(apart)} |"


def escaped(text: str) -> str:
    """Return text as it may stand in a cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


def row_of(path: Path) -> tuple[str, Rendered]:
    """Return the line of a template's file, and what both programs made of it."""
    found = rendered(path.read_text(encoding="utf-8"), "<s>", "</s>")
    return row(path.stem, found), found


def main(folder: str) -> None:
    """Print the page."""
    made = [row_of(path) for path in sorted(Path(folder).glob("*.jinja"), key=lambda path: path.name.lower())]
    one = next(found for _, found in made if found.runtime.startswith("b"))
    names = ", ".join(CONVERSATIONS)
    print(HEAD.format(count=len(CONVERSATIONS), names=names, jinja=one.jinja, build=one.runtime), end="")
    print("\n".join(line for line, _ in made))


if __name__ == "__main__":
    main(*sys.argv[1:])
