"""What an architecture is: frozen tables. Nothing here computes; `graph.bind` reads the tables.

Names: a *role* is a tensor's place in the GGUF model ('blk.{n}.attn_q.weight'); a *dialect* is one naming and
ordering of the same weights ('meta', 'hf', 'ggml', 'gguf'); an *hparam* has a short name used in shapes ('n_head')
and a GGUF key without its architecture ('attention.head_count').
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ggferry.converters.layout import SAME, Layout
from ggferry.formats.gguf_values import ValueType
from ggferry.formats.reader import HeaderLayout


@dataclass(frozen=True, slots=True)
class Default:
    """A value no source states, and why it is the one to take.

    `when`: a comparison of two size expressions ('n_head_kv < n_head'), `named`: a pattern searched in the source's
    file and folder names; both must hold where given. The first default that holds is taken.
    """

    value: Any
    why: str
    when: str = ""
    named: str = ""


@dataclass(frozen=True, slots=True)
class HParam:
    """One hyper-parameter: its short name, GGUF key and type, where each dialect keeps it, how else to know it.

    Order of authority: `--hparam`; the source's field; the tensors' shapes (always compared with the former);
    `derive` (an expression over other hparams); `defaults`. `key` None: used in shapes, not written.
    """

    name: str
    key: str | None = None
    kind: ValueType = ValueType.UINT32
    fields: Mapping[str, str] = field(default_factory=dict)
    derive: str = ""
    defaults: tuple[Default, ...] = ()
    required: bool = True


@dataclass(frozen=True, slots=True)
class From:
    """Where a dialect keeps a role: name patterns with {n} (block) and {e} (expert), and the layout to GGUF."""

    patterns: tuple[str, ...]
    layout: Layout = SAME


@dataclass(frozen=True, slots=True)
class Role:
    """A tensor of the GGUF model: name, shape (outermost first, expressions over hparams), its origin per dialect."""

    name: str
    shape: tuple[str, ...]
    sources: Mapping[str, From]
    optional: bool = False
    always_f32: bool = False

    @property
    def per_block(self) -> bool:
        return "{n}" in self.name


@dataclass(frozen=True, slots=True)
class Drop:
    """Source tensors (shell pattern) that are not carried over, and why that loses nothing."""

    pattern: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the user should know when `when` holds (`expression.holds` over hparams by short name and header
    fields as `header_NAME`). `text` may name them in braces."""

    when: str
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """One naming of the weights. `names`: the column of the role table it uses (its own name if empty).
    `conventions`: what its forward pass does differently from GGUF's (`forward.recipe.Recipe` fields)."""

    name: str
    names: str = ""
    conventions: Mapping[str, Any] = field(default_factory=dict)
    drops: tuple[Drop, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def column(self) -> str:
        return self.names or self.name


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything ggferry knows of one model family.

    `hf_classes`: the `architectures` strings of config.json. `headers`: its GGML-era header layouts. `recipe`: the
    forward pass on the GGUF side (`forward.recipe.Recipe` fields). `runtimes`: programs of today that run it.
    """

    name: str
    hparams: tuple[HParam, ...]
    roles: tuple[Role, ...]
    dialects: Mapping[str, Dialect]
    recipe: Mapping[str, Any]
    hf_classes: tuple[str, ...] = ()
    headers: tuple[HeaderLayout, ...] = ()
    display_name: str = ""
    runtimes: tuple[str, ...] = ("llama.cpp",)

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)


def roles(text: str, **layouts: Layout) -> tuple[Role, ...]:
    """Read a role table. One line a role:

        NAME [flags] : shape … | dialect pattern… [@layout] | dialect …

    Flags: `optional`, `f32`. Several patterns of one dialect are the layout's inputs in order. '-' as the shape is a
    scalar-free vector's absence and never used.
    """
    table = []
    for line in text.strip().splitlines():
        head, _, rest = line.partition(":")
        name, *flags = head.split()
        shape, *origins = (part.split() for part in rest.split("|"))
        sources = {}
        for dialect, *words in origins:
            patterns = tuple(word for word in words if not word.startswith("@"))
            named = [word[1:] for word in words if word.startswith("@")]
            sources[dialect] = From(patterns, layouts[named[0]] if named else SAME)
        table.append(Role(name, tuple(shape), sources, "optional" in flags, "f32" in flags))
    return tuple(table)
