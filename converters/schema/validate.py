"""Check that an architecture's tables are written as their grammars say (docs/tables.md): every word in them is known.

A line of roles is checked as it is read (`roles`). Here is checked what needs the whole table: the names of hparams in
sizes and conditions, dialects, derivations, drops, remarks, the conventions of the forward pass.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, Never, get_args

from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, Role
from ggferry.converters.schema.derivations import HPARAMS, Derivation
from ggferry.converters.schema.expressions import check_condition, check_size, names_in
from ggferry.converters.schema.layouts.base import Layout
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.recipe import Conventions, recipe_of
from ggferry.formats.errors import TableError
from ggferry.formats.gguf.values import KEY_PATTERN
from ggferry.formats.reader import VocabCount, VocabTexts
from ggferry.support.places import BadWord, Place

PROGRAMS = {"llama.cpp", "transformers"}
"""Programs of which a remark may speak, besides those that run the family (`Architecture.runtimes`)."""
SHARED_COLUMNS = {"hf", "meta", "ggml", "gguf"}
"""Columns of `HParam.fields` that shared pieces of tables have, whether or not each family has the dialect."""
FACTS = {"n", "hf_class"}
"""What expressions may name besides hparams: the block, and the class that the configuration names."""
_PLACE = re.compile(r"[^|\s.]+(\.[^|\s.]+)*")
_seen: dict[int, Architecture] = {}


def validate(spec: Architecture) -> None:
    """Raise TableError, with file, line and word, for the first thing in `spec` that is not as it must be."""
    if _seen.get(id(spec)) is not spec:
        _Validator(spec).run()
        _seen[id(spec)] = spec


class _Validator:
    def __init__(self, spec: Architecture) -> None:
        self.spec = spec
        self.place: Place = spec.place
        self.hparams = {hparam.name for hparam in spec.hparams}
        self.known = self.hparams | FACTS
        self.header = {f"header_{field.name}" for layout in spec.headers for field in layout.header.members}
        self.columns = {dialect.column for dialect in spec.dialects}
        self.sources = {dialect.source for dialect in spec.dialects} | SHARED_COLUMNS

    def run(self) -> None:
        hparams = self.spec.hparams
        self.once("two hparams of one name", ((hparam.name, hparam.place) for hparam in hparams))
        keyed = ((f"{h.key}[]" if h.shared and h.length else h.key, h.place) for h in hparams if h.key)
        self.once("two hparams for one key", keyed)
        for hparam in self.spec.hparams:
            self.hparam(hparam)
        self.once("two dialects of one name", ((dialect.name, dialect.place) for dialect in self.spec.dialects))
        for dialect in self.spec.dialects:
            self.place = dialect.place
            self.dialect(dialect)
        self.once("two roles of one name", ((role.name, role.place) for role in self.spec.roles))
        for role in self.spec.roles:
            self.role(role)
        self.place = self.spec.place
        self.blocks()
        self.headers()
        self.conventions(self.spec.recipe)
        self.caveats(self.spec)

    def wrong(self, problem: str, word: object, expected: object = None, text: str = "") -> Never:
        place = self.place.of(text or str(word))
        raise TableError(f"{self.spec.name}: {problem}", path=place, found=word, expected=expected)

    def one_of(self, problem: str, word: str, known: Iterable[str], text: str = "") -> None:
        if word not in known:
            self.wrong(problem, word, ", ".join(sorted(known)), text)

    def once(self, problem: str, words: Iterable[tuple[str, Place | None]]) -> None:
        seen: set[str] = set()
        for word, place in words:
            self.place = place or self.spec.place
            if word in seen:
                self.wrong(problem, word)
            seen.add(word)

    def check_text(self, check: Callable[[str], None], text: str, known: set[str]) -> None:
        """Check that `text` has the form that `check` wants, and names only what is known."""
        try:
            check(text)
        except BadWord as error:
            self.wrong(error.problem, error.word, text=text)
        for name in names_in(text) if text else ():
            if name not in known:
                self.wrong("no such hparam", name, f"one of its hparams, in {text!r}", text)

    def size(self, text: str | int) -> None:
        self.check_text(check_size, str(text), self.known)

    def condition(self, text: str, more: Iterable[str] = ()) -> None:
        self.check_text(check_condition, text, self.known | set(more))

    def rule(self, rule: str | Derivation) -> None:
        """Check a derivation: '@NAME', 'each CONDITION' or a size; a function is not checked."""
        if not isinstance(rule, str) or not rule:
            return
        if rule.startswith("@"):
            self.one_of("no such derivation", rule[1:], HPARAMS, rule)
        elif rule.startswith("each "):
            self.condition(rule[5:])
        else:
            self.size(rule)

    def hparam(self, hparam: HParam) -> None:
        self.place = hparam.place
        if not hparam.name.isidentifier():
            self.wrong("not a name for an hparam", hparam.name)
        if hparam.key is not None and not re.fullmatch(KEY_PATTERN, hparam.key):
            self.wrong("not a GGUF key", hparam.key)
        for column, places in hparam.fields.items():
            self.one_of(f"{hparam.name}: no such dialect", column, self.sources)
            for place in places.split("|"):
                if not _PLACE.fullmatch(place):
                    self.wrong(f"{hparam.name}: not a place", place, "'a.b', others behind '|'", places)
        for rule in (hparam.derive, hparam.implied):
            self.rule(rule)
        if "{n}" in hparam.tensors and hparam.length != "n_layer":
            self.wrong("tensors of one number hold a list, one a block", hparam.name, "length='n_layer'")
        if hparam.length:
            self.size(hparam.length)
        self.condition(hparam.check)
        for default in hparam.defaults:
            self.default(default)

    def default(self, default: Default) -> None:
        self.place = default.place
        self.condition(default.when)
        if default.dialect:
            self.one_of(
                "no such dialect", default.dialect, self.sources | {dialect.name for dialect in self.spec.dialects}
            )
        try:
            re.compile(default.named)
        except re.error as error:
            self.wrong(f"not a regular expression ({error})", default.named)

    def role(self, role: Role) -> None:
        self.place = role.place or self.spec.place
        for size in role.shape:
            self.size(size)
        self.condition(role.when)
        if not role.sources:
            self.wrong("a role without a source", role.name)
        for column, origin in role.sources.items():
            self.one_of(f"{role.name}: no such dialect", column, self.columns - {"gguf"}, f"| {column} ")
            for text in expressions(origin.layout):
                self.size(text)
            for rearranged in rearrangements(origin.layout):
                self.axes(rearranged)
            for pattern in origin.patterns:
                if ("{n}" in pattern) != role.per_block:
                    self.wrong("{n} stands in both names or in neither", pattern, role.name)

    def axes(self, layout: Rearrange) -> None:
        """Check that both sides of a pattern name the same axes, and all but one have a size."""
        before, after = (re.findall(r"\w+", side) for side in layout.pattern.partition("->")[::2])
        if not before or sorted(before) != sorted(after) or len(set(before)) != len(before):
            self.wrong("not the same axes on both sides", layout.pattern)
        for axis, _ in layout.sizes:
            self.one_of("no such axis", axis, before, layout.pattern)
        if len(before) - len(dict(layout.sizes)) > 1:
            self.wrong("more than one axis without a size", layout.pattern)

    def dialect(self, dialect: Dialect) -> None:
        if dialect.name != "gguf" and not any(dialect.column in role.sources for role in self.spec.roles):
            self.wrong("no role has this dialect", dialect.column)
        for name in dialect.fixed:
            self.one_of("no such hparam", name, self.hparams)
        roles = {role.name for role in self.spec.roles}
        self.conventions(dialect.conventions)
        for layout in dialect.layouts:
            self.one_of("no such header", layout, {header.name for header in self.spec.headers})
        for size in dialect.shaped[1:]:
            self.check_text(check_size, size, {name.removeprefix("header_") for name in self.header})
        for drop in dialect.drops:
            self.place = drop.place
            self.condition(drop.when)
            if drop.same_as:
                self.one_of("no such role", drop.same_as, roles)
        for ignored in dialect.ignored_keys:
            self.place = ignored.place
            self.rule(ignored.follows)
        self.caveats(dialect)

    def caveats(self, owner: Architecture | Dialect) -> None:
        for caveat in owner.caveats:
            self.place = caveat.place
            self.condition(caveat.when, self.header)
            for _, name, _, _ in string.Formatter().parse(caveat.text):
                if name is not None:
                    self.one_of("no such hparam", name, self.known | self.header, f"{{{name}}}")
            if caveat.unsupported_by:
                self.one_of("no such runtime", caveat.unsupported_by, PROGRAMS.union(self.spec.runtimes))
            if caveat.differs_in:
                self.one_of("no such program", caveat.differs_in, PROGRAMS.union(self.spec.runtimes))

    def conventions(self, conventions: Conventions) -> None:
        try:
            recipe_of(conventions)
        except BadWord as error:
            quoted = error.word in conventions.values()
            self.wrong(error.problem, error.word, text=f'"{error.word}"' if quoted else error.word)
        stems = {role.name.split(".")[-2] for role in self.spec.roles if role.name.endswith(".weight")}
        for name in conventions.get("transposed", ()):
            self.one_of("no such role", name, stems)

    def blocks(self) -> None:
        for series in {role.series for role in self.spec.roles} - {""}:
            self.one_of("blocks that nothing counts", series, self.spec.blocks)
        for counter in self.spec.blocks.values():
            self.one_of("no such hparam", counter, self.hparams)

    def headers(self) -> None:
        for layout in self.spec.headers:
            self.one_of("no such count of a vocabulary", layout.vocab.count, get_args(VocabCount))
            self.one_of("no such texts of a vocabulary", layout.vocab.texts, get_args(VocabTexts))


def expressions(layout: Layout) -> Iterator[str]:
    """Yield the sizes to which `layout` is bound."""
    for field in fields(layout):
        value: Any = getattr(layout, field.name)
        if isinstance(layout, Rearrange):
            yield from (size for _, size in layout.sizes if isinstance(size, str)) if field.name == "sizes" else ()
        elif isinstance(value, Layout):
            yield from expressions(value)
        else:
            items = value if isinstance(value, tuple) else (value,)
            yield from (item for item in items if isinstance(item, str))


def rearrangements(layout: Layout) -> Iterator[Rearrange]:
    """Yield the rearrangements in `layout`."""
    if isinstance(layout, Rearrange):
        yield layout
    for field in fields(layout):
        inner = getattr(layout, field.name)
        if isinstance(inner, Layout):
            yield from rearrangements(inner)
