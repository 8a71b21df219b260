"""A verb is declared once: its command, its function of `import ggferry` and its HTTP body follow its request.

What is declared is found by scanning `service/operations/` and `service/archive_operations/`: an option is one line
there, and stands in no list here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import KW_ONLY, MISSING, fields, is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

import ggferry
from ggferry.converters.conversion.options import Heading, Kind, Option, options_of
from ggferry.service.cli.app import COMMANDS
from ggferry.service.cli.options import HeadedCommand, takes
from ggferry.service.operation import StrPath, argument, declare, library_function, options_declared
from ggferry.service.server.api import archive, jobs, request_models
from ggferry.support.records import dataclass
from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

ROOMS = ("operations", "archive_operations")
MODULES = sorted(f"{room}.{path.stem}" for room in ROOMS for path in (ROOT / "service" / room).glob("[!_]*.py"))
CONVERSIONS_AND_MORE = {
    "convert",
    "quantize",
    "verify",  # their options are the table of converters/conversion/options.py
    "serve",
    "remote",  # they start a server, or speak to one, and do nothing with a model themselves
}
"""Commands that take no record of these."""
ALSO_OF_THE_TABLE = ("plan",)
"""Commands whose record is not all: they pass on the options of a conversion, too."""

COMPLETION = ("install_completion", "show_completion")


def operation(name: str) -> ModuleType:
    return import_module(f"ggferry.service.{name}")


def records(module: ModuleType, suffix: str) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.endswith(suffix) and is_dataclass(value) and value.__module__ == module.__name__
    }


def registered() -> Iterator[tuple[str, Any, typer.Typer]]:
    """Yield name, function and application of each command; the name of one of a group begins with the group's."""
    for module in COMMANDS:
        commands = import_module(f"ggferry.service.cli.{module}").commands
        groups = [("", commands), *((f"{each.name} ", each.typer_instance) for each in commands.registered_groups)]
        for group, application in groups:
            for each in application.registered_commands:
                yield group + (each.name or each.callback.__name__), each.callback, application


def requests() -> dict[str, type]:
    """Return the record of each command that takes one."""
    return {name: function.request for name, function, _ in registered() if hasattr(function, "request")}


def parameters(name: str) -> dict[str, Any]:
    application = next(each for command, _, each in registered() if command == name)
    made, own = get_command(application), name.rpartition(" ")[2]
    return {param.name: param for param in getattr(made, "commands", {own: made})[own].params}


def test_every_command_takes_a_record() -> None:
    names = {name for group in COMMANDS.values() for name in group}
    assert names - CONVERSIONS_AND_MORE == {name.partition(" ")[0] for name in requests()}
    groups = {name.partition(" ")[0] for name, _, _ in registered() if " " in name} - CONVERSIONS_AND_MORE
    assert "ledger" in groups
    assert all(hasattr(function, "request") for name, function, _ in registered() if name.partition(" ")[0] in groups)


def test_every_record_of_a_command_is_taken_by_one() -> None:
    declared = {record for name in MODULES for record in records(operation(name), "Command").values()}
    assert declared and declared == {*requests().values()}


@pytest.mark.parametrize("command", requests())
def test_the_command_line_has_what_the_record_declares(command: str) -> None:
    record, offered = requests()[command], parameters(command)
    table = {option.name for option in options_of(command)} if command in ALSO_OF_THE_TABLE else set()
    assert {option.name for option in options_declared(record)} == {*offered} - {"help", *COMPLETION, *table}
    for option in options_declared(record):
        check_parameter(option, offered[option.name])
    assert record.__doc__ and not record.__doc__.startswith(f"{record.__name__}(")


def check_parameter(option: Option, param: Any) -> None:
    assert option.help and option.help in (param.help or ""), option.name
    assert param.required == (option.default is MISSING), option.name
    if option.argument:
        assert param.param_type_name == "argument", option.name
    else:
        assert {*option.all_flags} == {*param.opts, *param.secondary_opts}, option.name
        assert param.rich_help_panel == option.heading


@pytest.mark.parametrize("module", MODULES)
def test_flags_and_names_are_unique(module: str) -> None:
    for record in records(operation(module), "Command").values():
        flags = [flag for option in options_declared(record) if not option.argument for flag in option.all_flags]
        assert len({*flags}) == len(flags)


def functions() -> list[tuple[str, Any, type]]:
    """Return name, function and record of what `import ggferry` has of each module."""
    found = []
    for name in MODULES:
        for each, value in vars(operation(name)).items():
            if getattr(value, "request", None) is not None:
                found.append((each, value, value.request))
    return found


def test_the_library_offers_each_function() -> None:
    assert functions() and all(getattr(ggferry, name) is function for name, function, _ in functions())


@pytest.mark.parametrize(("name", "function", "record"), functions(), ids=[each[0] for each in functions()])
def test_the_library_has_what_the_record_declares(name: str, function: Any, record: type) -> None:
    signature, text = inspect.signature(function), inspect.getdoc(function) or ""
    for field in fields(record):
        parameter = signature.parameters[field.name]
        assert parameter.default == (inspect.Parameter.empty if field.default is MISSING else field.default)
        assert (parameter.kind is parameter.KEYWORD_ONLY) == field.kw_only
        assert re.search(rf"^ +{field.name}: \S", text, re.M), field.name
    assert {*signature.parameters} == {field.name for field in fields(record)}
    assert "repeatable" not in text.partition("Returns:")[0]


def bodies() -> list[tuple[str, type]]:
    found = [(name, value) for module in (archive, jobs) for name, value in vars(module).items()]
    return [(name, value) for name, value in found if getattr(value, "declared", None)]


@pytest.mark.parametrize(("name", "body"), bodies())
def test_the_api_has_what_the_record_declares(name: str, body: Any) -> None:
    schema = body.model_json_schema()
    assert {option.name for option in body.declared} <= {*schema["properties"]}
    for option in body.declared:
        assert schema["properties"][option.name]["description"] == request_models.documented(option)
        assert (option.name in schema.get("required", ())) == (option.default is MISSING)


@dataclass(frozen=True, slots=True)
class PaintChanges:
    """What a program asks for."""

    _: KW_ONLY
    colors: Annotated[tuple[str, ...], declare(Kind.TEXTS, "A color; repeatable.", "--color", metavar="NAME")] = ()


@dataclass(frozen=True, slots=True)
class PaintRequest(PaintChanges):
    """Paint a file."""

    path: Annotated[StrPath, argument("What is painted.")]


def test_an_option_is_one_line() -> None:
    """Everything has the option of a made-up verb that one line declares."""

    def run(request: PaintRequest) -> list[str]:
        """Paint.

        Returns:
            Colors.
        """
        return [str(request.path), *request.colors]

    application, seen = typer.Typer(), []
    application.command("paint", cls=HeadedCommand)(takes(PaintRequest)(lambda request: seen.append(request)))
    get_command(application)(["x", "--color", "red", "--color", "blue"], standalone_mode=False)
    assert seen == [PaintRequest("x", colors=["red", "blue"])]  # type: ignore[arg-type]
    paint = library_function("paint", PaintRequest, run)
    assert paint("x", colors=("red",)) == ["x", "red"] and "colors: A color.\n" in str(paint.__doc__)
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        paint("x", color="red")  # type: ignore[call-arg]

    @request_models.takes(PaintChanges)
    class Painting(request_models.RequestBody):
        """What to paint."""

    assert Painting(colors=["red"]).as_request(PaintChanges) == PaintChanges(colors=["red"])  # type: ignore
    assert options_declared(PaintRequest)[-1].heading is Heading.OPTIONS


JSON_OF = {"FurtherRecord": "Further", "FoundRecord": "Found", "PlannedDrop": "DroppedTensor"}
"""TypedDict → the dataclass that it is the JSON form of."""


def test_a_record_of_the_service_is_declared_once() -> None:
    """No two classes below service/ have the same fields: the second user imports the first's."""
    found: dict[frozenset[str], set[str]] = {}
    for path in sorted((ROOT / "service").rglob("*.py")):
        for each in ast.walk(parsed(path)):
            if isinstance(each, ast.ClassDef) and each.name not in JSON_OF:
                names = [part.target.id for part in each.body if isinstance(part, ast.AnnAssign)]  # type: ignore[union-attr]
                own = frozenset(names) - {"_"}
                if len(own) > 2 and own != {"check", "dry_run", "as_json"}:  # of split and merge: `check` differs
                    found.setdefault(own, set()).add(f"{each.name} of {path.relative_to(ROOT)}")
    twins = [sorted(each) for each in found.values() if len(each) > 1]
    assert not twins, twins
