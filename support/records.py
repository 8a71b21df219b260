"""Frozen dataclasses that do not slow a start down (docs/decisions/records.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a dataclass as the standard library does; with `frozen=True, slots=True` in a tenth of the time.

        The library writes and compiles six functions for every such class, 0.3 ms, and a command has a hundred. Here
        they share the functions of `_Frozen`, which make an instance in a microsecond instead of half of one: what
        exists in millions takes the library's own decorator. Fields, `replace`, `asdict` and `match` are the library's.
        A class and its bases take the same decorator.
        """
        return _frozen if options == {"frozen": True, "slots": True} else dataclasses.dataclass(cls, **options)

    def _frozen(cls: type) -> type:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the library writes one, by `inspect`
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
        made._record = _Record(made)
        for name, function in _SHARED:
            if vars(cls).get(name) is None:  # Python itself puts `__hash__ = None` where there is an `__eq__`
                setattr(made, name, function)
        return made

    class _Record:
        """What the shared functions know of a class.

        Attributes:
            steps: Name, setter and default of each field that has a place among the arguments, in order.
            named: The same of those that are passed by name only.
            preset: The same of those that are not passed.
            compared: The names that tell instances apart.
            shown: The names that `repr` shows.
            then: Whether the class goes on after `__init__`, in `__post_init__`.
        """

        __slots__ = ("compared", "named", "preset", "shown", "steps", "then")

        def __init__(self, made: Any) -> None:
            fields = dataclasses.fields(made)
            steps = {each: (each.name, getattr(made, each.name).__set__, each) for each in fields}
            self.steps = tuple(steps[each] for each in fields if each.init and not each.kw_only)
            self.named = tuple(steps[each] for each in fields if each.init and each.kw_only)
            self.preset = tuple(steps[each] for each in fields if not each.init)
            self.compared = tuple(each.name for each in fields if each.compare)
            self.shown = tuple(each.name for each in fields if each.repr)
            self.then = hasattr(made, "__post_init__")

    class _Frozen:
        """The functions that all these classes share."""

        def __init__(self, *values: Any, **given: Any) -> None:
            record = self._record
            steps, count = record.steps, len(values)
            if count > len(steps):
                raise TypeError(f"{type(self).__qualname__}() takes {len(steps)} arguments, not {count}")
            for (_, put, _), value in zip(steps, values, strict=False):
                put(self, value)
            for name, put, field in steps[count:] + record.named:
                put(self, given.pop(name) if name in given else _default(self, field))
            if given:
                raise TypeError(f"{type(self).__qualname__}() takes no (or no second) {', '.join(given)}")
            for _, put, field in record.preset:
                if field.default is not MISSING or field.default_factory is not MISSING:
                    put(self, _default(self, field))
            if record.then:
                self.__post_init__()

        def __setattr__(self, name: str, value: Any) -> None:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise FrozenInstanceError(f"cannot delete field {name!r}")

        def __eq__(self, other: object) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            compared = self._record.compared
            return [getattr(self, name) for name in compared] == [getattr(other, name) for name in compared]

        def __hash__(self) -> int:
            return hash(tuple([getattr(self, name) for name in self._record.compared]))

        def __repr__(self) -> str:
            shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._record.shown)
            return f"{type(self).__qualname__}({shown})"

        def __getstate__(self) -> list[Any]:
            return [getattr(self, each.name) for each in dataclasses.fields(self)]

        def __setstate__(self, state: list[Any]) -> None:
            for field, value in zip(dataclasses.fields(self), state, strict=True):
                object.__setattr__(self, field.name, value)

    def _default(made: Any, field: Any) -> Any:
        if field.default is not MISSING:
            return field.default
        if field.default_factory is not MISSING:
            return field.default_factory()
        raise TypeError(f"{type(made).__qualname__}() needs {field.name}")

    _SHARED = [(name, function) for name, function in vars(_Frozen).items() if callable(function)]
