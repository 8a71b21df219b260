"""What the commands share: options built from `converters.conversion.options`, headings, and what is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from ggferry.converters.conversion.options import Heading, Kind, Option, options_of
from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.terminal import print_json as print_json
from ggferry.service.cli.terminal import say as say
from ggferry.service.cli.terminal import tell as tell
from ggferry.support.sizes import parse_size

if TYPE_CHECKING:
    from ggferry.service.sources.local_source import LocalSource

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


def _parameter(option: Option, defaults: bool) -> inspect.Parameter:
    kinds: dict[Kind, Any] = {Kind.FLAG: bool, Kind.NUMBER: int | None}
    kind = list[str] | None if option.kind.is_list else kinds.get(option.kind, str | None)
    default = option.default if defaults and not option.kind.is_list else False if option.kind is Kind.FLAG else None
    numbers: dict[str, Any] = {"min": option.least, "max": option.most} if option.kind is Kind.NUMBER else {}
    declared = typer.Option(
        *option.all_flags,
        help=option.help,
        metavar=option.metavar,
        parser=Named if option.kind is Kind.FILE else None,
        rich_help_panel=option.heading,
        autocompletion=completing(option),
        **numbers,
    )
    value = not default if option.negated else default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[kind, declared]
    )


def completing(option: Option) -> Callable[[str], list[str]] | None:
    """Return what a shell offers for the values of an option; None leaves it to the shell."""
    if not option.choices:
        return None

    def offer(incomplete: str) -> list[str]:
        values = option.choices() if callable(option.choices) else option.choices
        return [value for value in values if value.startswith(incomplete.lower())]

    return offer


class HeadedCommand(TyperCommand):
    """A command whose help groups its options under the table's headings, the rest under Options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group."""
        groups: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            **{heading: [] for heading in Heading},
            "Options": [],
        }
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                options = getattr(param, "rich_help_panel", None) or "Options"
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
        from ggferry.service.storage.urls import Access, configure_access

        configure_access(Access(redirects=True))
    cache = given.get("cache")
    with local_source(source, tensors=tensors, cache=CACHE if cache is None else size_of(cache, "--cache")) as path:
        yield path


def size_of(text: str, option: str) -> int:
    """Return the bytes of an option's value. Raises UsageError."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(option, found=text, expected=str(error)) from None
