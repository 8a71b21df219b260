"""Role tables: lines of text, and the functions that combine shared pieces of them (docs/tables.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Never

from ggferry.converters.schema.architecture import From, Role
from ggferry.converters.schema.derivations import TENSORS, TensorFunction
from ggferry.converters.schema.expressions import check_condition, check_size
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.formats.errors import TableError
from ggferry.support.places import BadWord, Place, caller

Named = Layout | TensorFunction
"""The value of a word in a role line: of '@NAME' a layout, of '=NAME' a function that computes the tensor."""
Part = str | Sequence[Role]


class Roles(Sequence[Role]):
    """A role table, parsed when it is first used: `inspect` uses only one of all tables."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], tuple[Role, ...]]) -> None:
        self._read = cache(read)

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[Role]:
        return iter(self._read())


def roles(*parts: Part, when: str = "", under: Mapping[str, str] | None = None, **named: Named) -> Roles:
    """Return a role table: text, what shared functions return (`architectures/_tensors.py`), or both, in order.

    One line of text for each role:

        NAME [f32|plain|half] [optional] [when=CONDITION] : SIZE … | DIALECT PATTERN… [@LAYOUT] | DIALECT =FUNCTION | …

    NAME is GGUF's. `f32`: kept in float32 whatever the model is converted to. `plain`: float16 where the model is
    converted to that, else float32. `half`: bfloat16 where the model is converted to that, else float16. `optional`:
    may be absent. CONDITION goes up to the colon and may hold blanks: 'when=n < n_dense and n_shared > 0'. A SIZE,
    without blanks, is an expression over hparams, the outermost axis first. DIALECT names a column, or several with the
    same origin: 'hf,blinkdl'. Several patterns are the layout's inputs in order; in names, {n} is the block and {e} the
    expert. LAYOUT and FUNCTION are arguments of this call; FUNCTION may also be one of `derivations.TENSORS`.

    Args:
        when: A condition that every role has besides its own.
        under: Dialect → prefix of the names of every role; under 'gguf', of the role's own name.
        named: The layouts and functions that the text names, each at least once.

    Returns:
        The table, parsed when it is first used. Then it raises TableError, with file, line and word, for a line that is
        not of this form, an unknown or unused name, or a repeated role.

    >>> roles("output.weight when=tied == 0 : n_vocab n_embd | hf lm_head.weight")[0].when
    'tied == 0'
    """
    return _table(parts, when, under or {}, named, caller())


def block(
    *parts: Part,
    layer: str | Mapping[str, str] = "model.layers.{n}.",
    name: str = "blk.{n}.",
    when: str = "",
    **named: Named,
) -> Roles:
    """Return the roles of every block: as `roles`, with names that begin with `name`, and in the source with `layer`.

    Args:
        layer: Hugging Face's prefix, or dialect → prefix: {"hf": "model.layers.{n}.", "openai": "blocks.{n}."}.
        name: GGUF's prefix, such as 'enc.blk.{n}.' for an encoder.
        when: The condition under which a block has these roles, where not all have: 'n < n_dense', or 'recurrent == 1',
            which means the item of block `n` where `recurrent` is a list.
        named: As for `roles`.

    >>> [role.name for role in block("ffn_up.weight : n_ff n_embd | hf mlp.up_proj.weight")]
    ['blk.{n}.ffn_up.weight']
    """
    layers = {"hf": layer} if isinstance(layer, str) else layer
    return _table(parts, when, {"gguf": name, **layers}, named, caller())


def also(table: Sequence[Role], dialect: str, text: str, **named: Named) -> Roles:
    """Return `table` with one more dialect. One line for each role: NAME PATTERN… [@LAYOUT], or NAME =FUNCTION."""
    place = caller()
    return Roles(lambda: _also(table, dialect, text, _Words(place, named)))


def varied(table: Sequence[Role], dialect: str, base: str, text: str = "", **named: Named) -> Roles:
    """Return `table` with one more dialect: as `base`, except for the roles in `text`, which is as for `also`."""
    place = caller()

    def read() -> tuple[Role, ...]:
        if not any(base in role.sources for role in table):
            raise TableError("no such dialect in this table", path=place.of(base), found=base)
        copied = tuple(
            replace(role, sources={**role.sources, dialect: role.sources[base]}) if base in role.sources else role
            for role in table
        )
        return _also(copied, dialect, text, _Words(place, named))

    return Roles(read)


def both(*conditions: str) -> str:
    """Return the condition that holds where all of these do; an empty text is no condition."""
    declared = [text.strip() for text in conditions if text.strip()]
    if len(declared) == 1:
        return declared[0]
    return " and ".join(f"({text})" if " or " in _INNER.sub("", text) else text for text in declared)


_INNER = re.compile(r"\([^()]*\)")


class _Words:
    """The names that a text may use, those that it used, and where it is written, for errors."""

    def __init__(self, place: Place, named: Mapping[str, Named]) -> None:
        self.place, self.named = place, named
        self.used: set[str] = set()

    def wrong(self, line: str, problem: str, word: object, expected: object = None) -> Never:
        raise TableError(problem, path=self.place.of(line), found=word, expected=expected)

    def layout(self, name: str, line: str) -> Layout:
        found = self.named.get(name)
        self.used.add(name)
        if not isinstance(found, Layout):
            known = [f"@{other}" for other, value in self.named.items() if isinstance(value, Layout)]
            self.wrong(line, "no such layout", f"@{name}", ", ".join(known) or "an argument of this call")
        return found

    def function(self, name: str, line: str) -> TensorFunction:
        found = self.named.get(name, TENSORS.get(name))
        self.used.add(name)
        if found is None or isinstance(found, Layout):
            self.wrong(line, "no such function", f"={name}", ", ".join(f"={other}" for other in TENSORS))
        return found

    def finish(self) -> None:
        """Raise TableError for a name that no line used."""
        for name in self.named:
            if name not in self.used:
                self.wrong(f"{name}=", "no line of this table names it", name)


def _table(
    parts: Sequence[Part], when: str, under: Mapping[str, str], named: Mapping[str, Named], place: Place
) -> Roles:
    def read() -> tuple[Role, ...]:
        words, found = _Words(place, named), list[Role]()
        for part in parts:
            found += _lines(part, words) if isinstance(part, str) else part
        words.finish()
        return _once(tuple(_placed(role, when, under, words) for role in found), words)

    return Roles(read)


def _once(table: tuple[Role, ...], words: _Words) -> tuple[Role, ...]:
    seen: set[str] = set()
    for role in table:
        if role.name in seen:
            words.wrong(role.name, "a role that is there twice", role.name)
        seen.add(role.name)
    return table


def _placed(role: Role, when: str, under: Mapping[str, str], words: _Words) -> Role:
    """Return `role` with the prefixes and the condition of a call; its expressions are checked once, here."""
    sources = {
        dialect: replace(origin, patterns=tuple(under.get(dialect, "") + pattern for pattern in origin.patterns))
        for dialect, origin in role.sources.items()
    }
    _expression(check_condition, when, words)
    _expression(check_condition, role.when, words)
    for size in role.shape:
        _expression(check_size, size, words)
    return replace(role, name=under.get("gguf", "") + role.name, sources=sources, when=both(when, role.when))


def _expression(check: Callable[[str], None], text: str, words: _Words) -> None:
    try:
        check(text)
    except BadWord as error:
        words.wrong(text, error.problem, error.word, f"as in {text!r}" if error.word != text else None)


def _lines(text: str, words: _Words) -> list[Role]:
    return [_role(line, words) for line in text.splitlines() if line.strip()]


FLAGS = ("f32", "half", "optional", "plain")


def _role(line: str, words: _Words) -> Role:
    head, colon, rest = line.partition(" : ")
    if not colon:
        words.wrong(line, "a role line without ' : '", line.strip(), "NAME [FLAG…] : SIZE … | DIALECT PATTERN…")
    flagged, marker, when = head.partition(" when=")
    name, *flags = flagged.split() or [""]
    if marker and not when.strip():
        words.wrong(line, "no condition after", "when=")
    for number, flag in enumerate(flags):
        if flag not in FLAGS or flag in flags[:number]:
            words.wrong(
                line,
                "no such flag" if flag not in FLAGS else "a flag twice",
                flag,
                ", ".join((*FLAGS, "when=CONDITION")),
            )
    shape, *origins = (part.split() for part in rest.split(" |"))
    if not name or not shape or not origins or any(len(origin) < 2 for origin in origins):
        words.wrong(line, "not a role line", line.strip(), "NAME [FLAG…] : SIZE … | DIALECT PATTERN…")
    sources: dict[str, From] = {}
    for dialects, *origin in origins:
        for dialect in dialects.split(","):
            if dialect in sources:
                words.wrong(line, "a dialect twice", dialect)
            sources[dialect] = _origin(origin, line, words)
    place = words.place.at(line)
    optional, always_f32, plain, half = (flag in flags for flag in ("optional", "f32", "plain", "half"))
    return Role(name, tuple(shape), sources, optional, always_f32, when.strip(), plain, half, place)


def _also(table: Sequence[Role], dialect: str, text: str, words: _Words) -> tuple[Role, ...]:
    known, more = {role.name for role in table}, dict[str, From]()
    for line in filter(str.strip, text.splitlines()):
        name, *origin = line.split()
        if name not in known or name in more:
            words.wrong(line, "no such role" if name not in known else "a role twice", name)
        more[name] = _origin(origin, line, words)
    words.finish()
    return tuple(
        replace(role, sources={**role.sources, dialect: more[role.name]}) if role.name in more else role
        for role in table
    )


def _origin(origin: list[str], line: str, words: _Words) -> From:
    patterns = tuple(word for word in origin if word[0] not in "@=")
    layouts = [word[1:] for word in origin if word[0] == "@"]
    functions = [word[1:] for word in origin if word[0] == "="]
    if len(layouts) > 1 or len(functions) > 1 or bool(functions) == bool(patterns) or (functions and layouts):
        words.wrong(line, "not an origin", " ".join(origin), "PATTERN… [@LAYOUT], or =FUNCTION")
    if functions:
        return From((), SAME, words.function(functions[0], line))
    return From(patterns, words.layout(layouts[0], line) if layouts else SAME)
