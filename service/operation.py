"""The request of a verb as a record that is declared once, and what is derived from it.

A field of a request is annotated with an `Option`: `declare`, `argument`, or `option` for one that several verbs have.
The command line (`cli.options.takes`), the functions of `import ggferry` (`library_function`), the bodies of the HTTP
API (`server.api.request_models`) and the tables of the documentation (`tools/generated_docs.py`) are made of these
fields. A field annotated with a text is an argument of the Python function only; the text describes it.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_type_hints

from ggferry.converters.conversion.options import Kind, Option, option
from ggferry.formats.errors import UsageError
from ggferry.support.progress import Stage
from ggferry.support.sizes import parse_size

if TYPE_CHECKING:
    from ggferry.formats.json_files.kinds import JSONObject
    from ggferry.service.sources.local_source import LocalSource

StrPath = str | os.PathLike[str]
Arguments = ParamSpec("Arguments")
Request = TypeVar("Request")
Result = TypeVar("Result")


def declare(
    kind: Kind,
    help: str,
    *flags: str,
    metavar: str | None = None,
    python: str = "",
    least: int | None = None,
    most: int | None = None,
    choices: tuple[str, ...] = (),
    longest: int = 1000,
    negated: bool = False,
) -> Option:
    """Return an option that one verb has; its name and its default are those of the field it annotates."""
    return Option(
        "",
        kind,
        help=help,
        flags=flags,
        metavar=metavar,
        python=python,
        least=least,
        most=most,
        choices=choices,
        longest=longest,
        negated=negated,
    )


def argument(help: str, kind: Kind = Kind.FILE, *, metavar: str = "FILE", python: str = "") -> Option:
    """Return an option that stands on a command line without a flag."""
    shown = f"{metavar}…" if kind is Kind.FILES and not metavar.endswith("…") else metavar
    return Option("", kind, help=help, metavar=shown, python=python, argument=True)


AsJson = Annotated[bool, option("as_json")]
Cache = Annotated[int | str | None, option("cache")]
Device = Annotated[str, option("device")]
DryRun = Annotated[bool, option("dry_run")]
FollowRedirects = Annotated[bool, option("follow_redirects")]
Force = Annotated[bool, option("force")]
Jobs = Annotated[int | None, option("jobs")]
ReportProgress = Annotated[Stage, "As for `convert`."]


def open_source(
    path: StrPath, cache: int | str | None = None, *, tensors: bool = True
) -> AbstractContextManager[LocalSource]:
    """Return the context in which a source, a path or a URL, is a path. Raises as `local_source`."""
    from ggferry.service.sources.local_source import CACHE, local_source

    nbytes = CACHE if cache is None else size_of(cache, "cache")
    return local_source(os.fspath(path), tensors=tensors, cache=nbytes)


def size_of(size: int | str, name: str) -> int:
    """Return the bytes of a size, a number or a text such as '4GiB'. Raises UsageError, which names the option."""
    try:
        return parse_size(size) if isinstance(size, str) else size
    except ValueError as error:
        raise UsageError(name, found=str(size), expected=str(error)) from None


def options_declared(record: type) -> tuple[Option, ...]:
    """Return the options of a request, in the order of its fields, with their names and defaults.

    The default of a required one is `dataclasses.MISSING`.
    """
    return tuple(
        replace(mark, name=name, default=default)
        for name, default, mark in _annotated(record)
        if isinstance(mark, Option)
    )


def _annotated(record: type) -> list[tuple[str, Any, Option | str]]:
    """Return name, default and annotation of each field; arguments by position come first."""
    hints = get_type_hints(record, include_extras=True)
    ordered = sorted(fields(record), key=lambda field: bool(field.kw_only))
    return [(field.name, field.default, hints[field.name].__metadata__[0]) for field in ordered]


def changed_options(request: Any) -> JSONObject:
    """Return the options of a request that differ from their defaults, by name."""
    values = {each.name: (getattr(request, each.name), each.default) for each in options_declared(type(request))}
    return {name: value for name, (value, default) in values.items() if value != default}


def library_function(
    name: str, record: Callable[Arguments, Request], run: Callable[[Request], Result]
) -> Callable[Arguments, Result]:
    """Return `run` as a function of the fields of its request: with their names, defaults, types and help.

    The docstring of `run` has what the function returns and raises, and an example; the arguments are put before that.
    """
    # The request must be a class of fields; a type checker takes its arguments from the class itself.
    kind: type = record  # type: ignore[assignment]
    signature = _signature(kind)

    def function(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        signature.bind(*values, **named)  # its errors name the argument
        return run(record(*values, **named))

    function.__name__ = function.__qualname__ = name
    function.__module__ = run.__module__
    function.__doc__ = _documented(inspect.getdoc(run) or "", kind)
    function.__signature__ = signature.replace(return_annotation=run.__annotations__.get("return"))  # type: ignore[attr-defined]
    function.request = record  # type: ignore[attr-defined]
    return function


def _signature(record: type) -> inspect.Signature:
    """Return the parameters of a record's `__init__`, which its decorator does not state."""
    parameters, hints = [], get_type_hints(record)
    for field in sorted(fields(record), key=lambda field: bool(field.kw_only)):
        kind = inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name]))
    return inspect.Signature(parameters)


def _documented(text: str, record: type) -> str:
    """Return a docstring with a section of the arguments before that of what is returned."""
    before, mark, after = text.partition("Returns:\n")
    return f"{before}Args:\n{arguments_documented(_annotated(record))}\n\n{mark}{after}"


def arguments_documented(annotated: Sequence[tuple[str, Any, Option | str]]) -> str:
    """Return the lines of a docstring that say what each argument is."""
    lines = []
    for name, _, mark in annotated:
        text = mark if isinstance(mark, str) else mark.python or mark.help.replace("; repeatable", "")
        lines.append(textwrap.fill(f"{name}: {text}", 118, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(lines)
