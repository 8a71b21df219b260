"""Write docs/man/, a page for each command, from the command line itself: python tools/man_pages.py

`setup.py` puts them into share/man/man1 of the wheel.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

import ggferry
from ggferry.service.cli.app import COMMANDS
from ggferry.service.cli.options import PlainGroup

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "man"
ENVIRONMENT = {
    "NO_COLOR": "No colors.",
    "GGFERRY_TRACEBACK": "Show where an internal error came from.",
    "GGFERRY_TRACE": "Write a trace of the command to this file, for Perfetto or chrome://tracing.",
    "HF_TOKEN": "Token for the Hugging Face Hub.",
}


def exit_codes() -> dict[str, str]:
    """Return what docs/cli.md says of each exit code."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (FOLDER.parent / "cli.md").read_text(), re.MULTILINE)
    return {code: re.sub(r"[`*]|\]\([^)]*\)|\[", "", words) for code, words in rows}


def text(words: str) -> str:
    """Return words as roff that shows them as they are."""
    words = words.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"^([.'])", r"\\&\1", words, flags=re.MULTILINE)


def commands() -> dict[str, Any]:
    """Return every command by its words: 'convert', 'ledger list'."""
    app = typer.Typer(cls=PlainGroup, rich_markup_mode=None)
    for module in COMMANDS:
        app.add_typer(import_module(f"ggferry.service.cli.{module}").commands)
    found: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if words:
            found[" ".join(words)] = command
        for name, each in sorted(getattr(command, "commands", {}).items()):
            walk(each, (*words, name))

    walk(get_command(app), ())
    return found


def page(name: str, command: Any) -> str:
    """Return the page of a command."""
    context = command.context_class(command, info_name=f"ggferry {name}")
    help_text = (command.help or "").strip()
    summary = help_text.split("\n")[0].rstrip(".")
    title = f"ggferry-{name.replace(' ', '-')}"
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [*_head(title, summary), ".SH SYNOPSIS", f".B ggferry {text(name)}", text(usage), ".SH DESCRIPTION"]
    lines += [text(line) if line.strip() else ".PP" for line in help_text.split("\n")]
    lines += _parameters(command, context)
    if getattr(command, "commands", None):
        lines += [".SH COMMANDS", *_items({each: _summary(sub) for each, sub in sorted(command.commands.items())})]
    lines += [".SH SEE ALSO", ".BR ggferry (1)"]
    return "\n".join(lines) + "\n"


def _head(title: str, summary: str) -> list[str]:
    version = f"ggferry {ggferry.__version__}"
    return [
        f'.TH "{text(title.upper())}" 1 "" "{version}" "ggferry"',
        ".SH NAME",
        f"{text(title)} \\- {text(summary)}",
    ]


def _summary(command: Any) -> str:
    return str(command.get_short_help_str(limit=200))


def _parameters(command: Any, context: Any) -> Iterator[str]:
    """Yield the arguments and the options, under the headings of `--help`."""
    groups: dict[str, dict[str, str]] = {"Arguments": {}}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None:
            continue
        is_argument = param.param_type_name == "argument"
        heading = "Arguments" if is_argument else str(getattr(param, "rich_help_panel", None) or "Options")
        groups.setdefault(heading, {})[record[0]] = record[1]
    for heading, items in groups.items():
        if items:
            yield f".SH {heading.upper()}"
            yield from _items(items)


def _items(items: Mapping[str, str]) -> Iterator[str]:
    for term, words in items.items():
        yield ".TP"
        yield f".B {text(term)}"
        yield text(" ".join(words.split())) or "\\&"


def overview() -> str:
    """Return the page of ggferry itself."""
    words = {name: summary for module in COMMANDS.values() for name, summary in module.items()}
    lines = [
        *_head("ggferry", "carry language-model weights into GGUF v3, and prove the result"),
        ".SH SYNOPSIS",
        ".B ggferry",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        text("Each command has a page of its own, ggferry-COMMAND(1), and --help."),
        text("Data goes to stdout, everything else to stderr."),
        ".SH COMMANDS",
        *_items(words),
        ".SH EXIT STATUS",
        *_items(exit_codes()),
        ".SH ENVIRONMENT",
        *_items(ENVIRONMENT),
    ]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return every page by the name of its file."""
    found = {f"ggferry-{name.replace(' ', '-')}.1": page(name, command) for name, command in commands().items()}
    return {"ggferry.1": overview(), **found}


def main() -> int:
    """Write the pages, and remove those of commands that are no more."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, content in made.items():
        (FOLDER / name).write_text(content)
    print(f"wrote {len(made)} pages to {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
