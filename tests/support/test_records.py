"""`support.records.dataclass` against the standard library's decorator of that name: the same classes, made sooner."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, field, fields, is_dataclass, replace
from typing import Any

import pytest

from ggferry.support.records import dataclass


def _family(decorator: Any) -> tuple[Any, Any, Any]:
    """Return a base, a class of it and one that does its own, made by `decorator`."""

    @decorator(frozen=True, slots=True)
    class Base:
        """A base."""

        name: str
        shape: tuple[int, ...] = ()
        notes: list[str] = field(default_factory=list, compare=False, repr=False)

        @property
        def size(self) -> int:
            return len(self.shape)

    @decorator(frozen=True, slots=True)
    class Derived(Base):
        """One more, a default of a field replaced, one field that is computed, one by name only."""

        shape: tuple[int, ...] = (1,)
        double: int = field(init=False, default=0)
        late: str = field(init=False)
        kind: str = field(kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.size)

    @decorator(frozen=True, slots=True)
    class Own:
        value: Any

        def __repr__(self) -> str:
            return f"<{self.value}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and abs(self.value - other.value) < 1

    return Base, Derived, Own


OURS, THEIRS = _family(dataclass), _family(dataclasses.dataclass)

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arguments": lambda base, derived, own: (astuple(base("a")), astuple(base("a", (1, 2))), astuple(base(name="a"))),
    "by name": lambda base, derived, own: asdict(base("a", notes=["x"], shape=(3,))),
    "representation": lambda base, derived, own: repr(base("a", (1, 2))),
    "its own representation": lambda base, derived, own: repr(own(1)),
    "equal": lambda base, derived, own: (base("a") == base("a"), base("a") == base("b"), base("a") == ("a",)),
    "not compared": lambda base, derived, own: base("a", (), ["x"]) == base("a"),
    "equal by itself": lambda base, derived, own: [own(float("nan")) == own(1), own(1.5) == own(1), own(1) != own(2)],
    "no number equals": lambda base, derived, own: (lambda nan: base(nan) == base(nan))(float("nan")),
    "another class": lambda base, derived, own: base("a") == derived("a", kind="k"),
    "hashes": lambda base, derived, own: (
        len({base("a"), base("a"), base("b")}),
        hash(base("a")) == hash(("a", ())),
        hash(own(3)) == hash((3,)),
    ),
    "no hash": lambda base, derived, own: hash(base([])),
    "computed": lambda base, derived, own: [
        (one.double, one.shape, one.kind) for one in (derived("a", kind="k"), derived("a", (1, 2, 3), kind="k"))
    ],
    "unset": lambda base, derived, own: derived("a", kind="k").late,
    "representation without a value": lambda base, derived, own: repr(derived("a", kind="k")),
    "replaced": lambda base, derived, own: replace(derived("a", kind="k"), shape=(1, 2)).double,
    "replaced, computed": lambda base, derived, own: replace(derived("a", kind="k"), double=1),
    "replaced, unknown": lambda base, derived, own: replace(base("a"), other=1),
    "copied": lambda base, derived, own: [
        copy.copy(base("a", (1,))) == base("a", (1,)),
        copy.deepcopy(base("a", (), ["x"])).notes,
    ],
    "fields": lambda base, derived, own: [(f.name, f.init, f.kw_only, f.compare) for f in fields(derived)],
    "is one": lambda base, derived, own: (is_dataclass(base), base.__match_args__, derived.__match_args__),
    "slots": lambda base, derived, own: (base.__slots__, derived.__slots__, hasattr(base("a"), "__dict__")),
    "documented": lambda base, derived, own: (base.__doc__, base.__name__, derived.__mro__[1] is base),
    "own defaults": lambda base, derived, own: base("a").notes is base("a").notes,
    "too few": lambda base, derived, own: base(),
    "too few by name": lambda base, derived, own: derived("a"),
    "too many": lambda base, derived, own: base("a", (), [], 4),
    "unknown": lambda base, derived, own: base("a", other=1),
    "twice": lambda base, derived, own: base("a", name="b"),
    "not an argument": lambda base, derived, own: derived("a", kind="k", double=2),
    "not by place": lambda base, derived, own: derived("a", (), [], "k"),
    "set": lambda base, derived, own: setattr(base("a"), "name", "b"),
    "deleted": lambda base, derived, own: delattr(derived("a", kind="k"), "kind"),
}


def _outcome(call: Callable[[Any, Any, Any], Any], family: tuple[Any, Any, Any]) -> Any:
    try:
        return call(*family)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CALLS)
def test_as_the_library_makes_them(name: str) -> None:
    assert _outcome(CALLS[name], OURS) == _outcome(CALLS[name], THEIRS), name


@dataclass(frozen=True, slots=True)
class Sent:
    """What goes from one process to another."""

    name: str
    parts: tuple[Sent, ...] = ()


def test_patterns_match() -> None:
    match Sent("a", (Sent("b"),)):
        case Sent(name, (Sent(other),)):
            assert (name, other) == ("a", "b")
        case _:
            raise AssertionError


def test_sent_between_processes() -> None:
    sent = Sent("a", (Sent("b"),))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(sent, protocol)) == sent
    with pytest.raises(FrozenInstanceError):
        pickle.loads(pickle.dumps(sent)).name = "c"


@pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True, "eq": False}]
)
def test_all_others_are_the_library_s_own(options: dict[str, bool]) -> None:
    """Other options are passed on."""

    def plain() -> type:
        class Plain:
            """One of another kind."""

            name: str = ""

        return Plain

    ours: Any = dataclass(**options)(plain())  # type: ignore[call-overload]
    theirs: Any = dataclasses.dataclass(**options)(plain())  # type: ignore[call-overload]
    assert inspect.signature(ours) == inspect.signature(theirs) and ours("a").name == "a"
    assert vars(ours).keys() == vars(theirs).keys()


def test_nothing_is_compiled() -> None:
    """What makes a start slow: functions that are written as texts, one by one, for every class."""

    def compiled(made: type) -> set[str]:
        functions = {name: getattr(each, "__code__", None) for name, each in vars(made).items()}
        return {name for name, code in functions.items() if code is not None and code.co_filename == "<string>"}

    assert compiled(THEIRS[1]) and not compiled(OURS[1])
