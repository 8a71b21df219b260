"""The bodies of requests of the HTTP API, made of the options that the verbs declare (`service/operations/`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from ggferry.converters.conversion.options import Kind, Option
from ggferry.service.operation import options_declared

Request = TypeVar("Request")
Body = TypeVar("Body", bound="RequestBody")
MOST_ITEMS = 1000


class RequestBody(BaseModel):
    """A body that holds options of a verb; what it does not hold has the verb's default.

    Attributes:
        declared: These options.
    """

    declared: ClassVar[tuple[Option, ...]] = ()
    model_config = ConfigDict(extra="forbid")

    def as_request(self, record: Callable[..., Request], **more: Any) -> Request:
        """Return the request that the body states, with `more` that a body does not."""
        names = {option.name for option in self.declared}
        return record(**more, **self.model_dump(include=names, exclude_defaults=True))


def takes(record: type, *names: str) -> Callable[[type[Body]], type[Body]]:
    """Give a body a field for each option that a request declares, or for the named ones.

    A field has the option's name, type, default and description.
    """

    def wrap(body: type[Body]) -> type[Body]:
        options = [option for option in options_declared(record) if not names or option.name in names]
        fields: dict[str, Any] = {option.name: _field(option) for option in options}
        made = create_model(body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **fields)
        made.declared = tuple(options)
        return made

    return wrap


def _field(option: Option) -> tuple[Any, Any]:
    """Return type and default of an option. An option that names files is none of a body's."""
    plain: Any = Annotated[str, Field(max_length=option.longest)]
    types: dict[Kind, tuple[Any, Any]] = {
        Kind.FLAG: (bool, False),
        Kind.NUMBER: (int, None),
        Kind.TEXT: (plain, None),
        Kind.TEXTS: (Annotated[list[plain], Field(max_length=MOST_ITEMS)], []),
        Kind.PAIRS: (dict[str, str], {}),
        Kind.IDS: (dict[str, int | str], {}),
    }
    kind, empty = types[option.kind]
    text = documented(option)
    if option.default is MISSING:
        return kind, Field(description=text)
    default = option.default or empty
    return kind if default is not None else kind | None, Field(default, description=text)


def documented(option: Option) -> str:
    """Return what the API's description says of an option."""
    text = option.help.replace("; repeatable", "")
    return f"{option.metavar}: {text}" if option.kind is Kind.TEXTS else text
