"""What the commands share: options built from `converters.conversion.options`, headings, and what is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from ggferry.converters.conversion.options import Heading, Kind, Option, options_of
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.terminal import manner, set_manner
from ggferry.service.cli.terminal import print_json as print_json
from ggferry.service.cli.terminal import say as say
from ggferry.service.cli.terminal import tell as tell
from ggferry.service.operation import options_declared
from ggferry.service.operation import size_of as size_of

if TYPE_CHECKING:
    from ggferry.service.sources.local_source import LocalSource
    from ggferry.support.progress import Phase, Progress, Stage

Function = TypeVar("Function", bound=Callable[..., Any])


def offers(command: str, *, defaults: bool = True) -> Callable[[Function], Function]:
    """Give a command that takes `**given` the table's options for `command`; their values arrive in it by name.

    `defaults`: whether an option that is not given has its default there, or None.
    """

    def wrap(function: Function) -> Function:
        def run(**values: Any) -> Any:
            for option in offered:
                if option.negated:
                    values[option.name] = not values[option.name]
            return function(**values)

        offered = list(options_of(command))
        own = [
            each
            for each in inspect.signature(function, eval_str=True).parameters.values()
            if each.kind is not each.VAR_KEYWORD
        ]
        parameters = [each for each in own if each.kind is not each.VAR_KEYWORD]
        parameters += [_parameter(option, defaults) for option in offered]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run  # type: ignore[return-value]

    return wrap


def takes(record: type, table: str | None = None) -> Callable[[Function], Function]:
    """Make a command of a function of a request: its arguments, options and help are those that the record declares.

    `table`: the command also has the table's options for this name, and passes them by name; one that is not given is
    None.
    """

    def wrap(function: Function) -> Function:
        def run(**values: Any) -> Any:
            given = {option.name: _plain(option, values[option.name]) for option in declared}
            if given.get("follow_redirects"):
                follow_redirects()
            _show_unpacking(visible=not given.get("as_json"))
            if "progress" in reported:
                given["progress"] = stage_of(visible=not given.get("as_json"))
            more = {option.name: values[option.name] for option in shared}
            return function(record(**{name: value for name, value in given.items() if value is not None}), **more)

        declared, reported = options_declared(record), {each.name for each in fields(record)}
        shared = () if table is None else tuple(options_of(table))
        parameters = [_parameter(option, defaults=True) for option in declared]
        parameters += [_parameter(option, defaults=False) for option in shared]
        run.__name__, run.__doc__ = function.__name__, record.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.request = record  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return wrap


def _plain(option: Option, value: Any) -> Any:
    """Return the value of an option as its request takes it; None where it is not given."""
    if option.negated:
        return not value
    if option.kind is Kind.SIZE and value is not None:
        return size_of(value, option.flag)
    return value if value != [] else None


def stage_of(*, visible: bool) -> Stage:
    """Return a stage that displays a bar on a terminal where it is `visible`."""

    def stage(title: Phase, total: int) -> AbstractContextManager[Progress]:
        from ggferry.service.cli.progress_bar import progress

        return progress(title, total, enabled=visible)

    return stage


_TYPES: dict[Kind, Any] = {
    Kind.FLAG: bool,
    Kind.NUMBER: int,
    Kind.NUMBERS: list[int],
    Kind.SECONDS: float,
    Kind.DECIMAL: float,
}


def _parameter(option: Option, defaults: bool) -> inspect.Parameter:
    kind = _TYPES.get(option.kind, list[str] if option.kind.is_list else str)
    default = None if option.kind.is_list or not defaults else option.default
    if option.default is MISSING:
        default = inspect.Parameter.empty
    elif option.either_way:
        kind |= None
    elif option.kind is Kind.FLAG:
        default = bool(default) is not option.negated
    else:
        kind |= None
    facts: dict[str, Any] = {
        "help": option.help,
        "metavar": option.metavar,
        "parser": Named if option.kind in (Kind.FILE, Kind.FILES) else None,
        "rich_help_panel": option.heading,
        "autocompletion": completing(option),
    }
    if option.kind in (Kind.NUMBER, Kind.NUMBERS, Kind.SECONDS):
        facts |= {"min": option.least, "max": option.most}
    flags = option.all_flags
    if option.either_way:
        flags = ("/".join(flags[:2]), *(f" /{also}" for also in flags[2:]))  # click's form of a flag that means no
    declared = typer.Argument(**facts) if option.argument else typer.Option(*flags, **facts)
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def completing(option: Option) -> Callable[[str], list[str]] | None:
    """Return what a shell offers for the values of an option; None leaves it to the shell."""
    if not option.choices:
        return None

    def offer(incomplete: str) -> list[str]:
        values = option.choices() if callable(option.choices) else option.choices
        return [value for value in values if value.startswith(incomplete.lower())]

    return offer


def _manner_options() -> list[TyperOption]:
    """Return the options that every command has."""
    helps = {
        ("--quiet", "-q"): "Nothing on stderr but errors.",
        ("--verbose", "-v"): "How long each phase took, and where an internal error came from.",
        ("--log-json",): "What is printed on stderr as JSON, one object a line.",
    }

    def choose(context: Any, param: Any, value: bool) -> None:
        if value:
            set_manner(replace(manner(), **{str(param.name): True}))

    return [
        TyperOption(
            param_decls=list(flags),
            is_flag=True,
            default=False,
            expose_value=False,
            is_eager=True,
            callback=choose,
            help=text,
        )
        for flags, text in helps.items()
    ]


VALUES = {"<str>": "TEXT", "<int>": "N", "<int range>": "N", "<float>": "N", "<float range>": "N"}
"""What stands in `--help` for the value of an option, instead of the name of its type in Python."""


def _with_metavars(params: list[Any], context: Any) -> list[Any]:
    """Return parameters, those that name no value of their own with the field's word for it."""
    for param in params:
        if param.param_type_name == "option" and param.metavar is None:
            param.metavar = VALUES.get(param.make_metavar(context))
    return params


class PlainCommand(TyperCommand):
    """A command with the options that every command has."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its own parameters, and those."""
        return [*_with_metavars(super().get_params(ctx), ctx), *_manner_options()]


class PlainGroup(TyperGroup):
    """A group of commands with these options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its own parameters, and those."""
        return [*_with_metavars(super().get_params(ctx), ctx), *_manner_options()]


class HeadedCommand(PlainCommand):
    """A command whose help groups its options under the table's headings, the rest under Options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group."""
        groups: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            **{heading: [] for heading in Heading},
        }
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                options = getattr(param, "rich_help_panel", None) or Heading.OPTIONS
                groups["Arguments" if param.param_type_name == "argument" else options].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(str(heading)):
                    formatter.write_dl(records)


@contextmanager
def access_of(source: str, given: Mapping[str, Any], *, tensors: bool = True) -> Iterator[LocalSource]:
    """Yield a path for a source argument, which may be a URL: `local_source` with --cache and --follow-redirects.

    Args:
        source: The argument as it was given.
        given: The options of the command.
        tensors: Whether the command may read tensor data.
    """
    from ggferry.service.sources.local_source import CACHE, local_source

    if given.get("follow_redirects"):
        follow_redirects()
    _show_unpacking(visible=not given.get("as_json"))
    cache = given.get("cache")
    with local_source(source, tensors=tensors, cache=CACHE if cache is None else size_of(cache, "--cache")) as path:
        yield path


def _show_unpacking(*, visible: bool) -> None:
    from ggferry.formats.packed.holding import show_unpacking

    show_unpacking(stage_of(visible=visible))


def follow_redirects() -> None:
    """Let web servers send this process to others."""
    from ggferry.service.storage.urls import Access, configure_access

    configure_access(Access(redirects=True))
