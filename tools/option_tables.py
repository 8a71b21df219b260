"""Write the tables of options in the documentation: `python tools/option_tables.py`.

A page has a line `<!-- options: NAME -->` where a table begins and `<!-- end of options -->` where it ends. NAME is a
command with a record in `service/operations/`, or `conversions` for the table of `converters/conversion/options.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from ggferry.converters.conversion.options import OPTIONS, Option
from ggferry.service.library.keywords import KEYWORDS
from ggferry.service.operation import options_declared

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


def library_functions() -> Iterator[tuple[str, type]]:
    """Yield name and record of the functions of `import ggferry` that have one."""
    for path in sorted((ROOT / "service" / "operations").glob("[!_]*.py")):
        for name, value in vars(import_module(f"ggferry.service.operations.{path.stem}")).items():
            if getattr(value, "request", None) is not None:
                yield name, value.request


def functions_with(option: Option) -> list[str]:
    """Return the functions of `import ggferry` that have an option of a conversion."""
    found = [name for name, keywords in KEYWORDS.items() if option.name in keywords.__annotations__]
    shared = {name: {each.name: each.help for each in options_declared(record)} for name, record in library_functions()}
    return found + [name for name, helps in shared.items() if found and helps.get(option.name) == option.help]


def conversions() -> list[str]:
    """Return the lines of the table of the options of conversions, in the order of their headings."""
    lines = ["| option | in | what |", "|---|---|---|"]
    for option in OPTIONS:
        where = functions_with(option)
        if where:
            flag = f" (`{option.flag}`)" if option.flag != "--" + option.name.replace("_", "-") else ""
            lines.append(f"| `{option.name}`{flag} | {', '.join(where)} | {option.help} |")
    return lines


def operation(command: str) -> list[str]:
    """Return the lines of the table of a command's options: flags, the argument of the Python function, help."""
    from ggferry.service.cli.app import COMMANDS

    module = next(module for module, names in COMMANDS.items() if command in names)
    registered = import_module(f"ggferry.service.cli.{module}").commands.registered_commands
    record = next(each.callback.request for each in registered if command in (each.name, each.callback.__name__))
    in_python = {field.name for _, request in library_functions() if issubclass(record, request)
                 for field in fields(request)}  # fmt: skip
    lines = ["| option | in Python | what |", "|---|---|---|"]
    for option in options_declared(record):
        if not option.argument:
            flags = ", ".join(f"`{flag}`" for flag in option.all_flags)
            value = f" `{option.metavar}`" if option.metavar else ""
            name = f"`{option.name}`" if option.name in in_python else ""
            lines.append(f"| {flags}{_cell(value)} | {name} | {_cell(option.help)} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def written(text: str) -> str:
    """Return a page with its tables made again."""

    def table(match: re.Match[str]) -> str:
        lines = conversions() if match[2] == "conversions" else operation(match[2])
        return match[1] + "\n".join(["", *lines, "", match[3]])

    return TABLE.sub(table, text)


def pages() -> list[Path]:
    """Return the pages that have a table."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if TABLE.search(path.read_text())]


def main() -> None:
    """Write the tables of all pages again."""
    for path in pages():
        path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()
