"""What an architecture is: frozen tables. Nothing here computes; `graph.bind` reads them, `validate` examines them.

Names: a *role* is a tensor's place in the GGUF model ('blk.{n}.attn_q.weight'); a *dialect* is one naming and
ordering of the same weights ('meta', 'hf', 'ggml', 'gguf'); an *hparam* has a short name used in shapes ('n_head')
and a GGUF key without its architecture ('attention.head_count').
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggferry.converters.schema.derivations import Derivation, TensorFunction
from ggferry.converters.schema.layouts import SAME, Layout
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.reader import HeaderLayout
from ggferry.support.places import Place, caller


@dataclass(frozen=True, slots=True)
class Default:
    """A value no source states, and why it is the one to take.

    `when`: a condition on the hparams ('n_head_kv < n_head'), `named`: a pattern searched in the source's file and
    folder names, `dialect`: the only one it is for; all must hold where given. The first default that holds is taken.
    """

    value: Any
    why: str
    when: str = ""
    named: str = ""
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class HParam:
    """One hyper-parameter: its short name, GGUF key and type, where each dialect keeps it, how else to know it.

    Order of authority: `--hparam`; what the dialect fixes (`Dialect.given`); the source's field; the tensors' shapes
    (always compared with the former); `derive`; `defaults`; `absent`.

    `key` None: known to the source only, or used in shapes; not written. `many`: a tuple of `kind`, of as many as
    this expression says, written as an array; what there are 'n_layer' of may stand in shapes and conditions, where it
    is that of the block `n`. `or_one`: or one of `kind`, the same for all. `check`: a condition that the values must
    not contradict.
    `fields`: dialect → place. 'a.b|c' is field b in a, or else c; an explicit null means `null`, by default nothing.
    For 'gguf' it is the key without its architecture, `key` if not given. `words`: what the source's words mean here;
    a word that is not among them is refused. `derive`: an expression over other hparams, 'each CONDITION' (a truth
    for every block `n`), '@name' of a function in `derivations.HPARAMS`, or the function itself where one family alone
    has it.
    `absent`: what a GGUF file without the key means; that value is never written. `implied`: what readers derive it
    by where the key is not there (as `derive`): it is written only where the source states it or it differs.
    `unsayable`: what a configuration may say and GGUF cannot, because its readers take it for 'not stated'; refused.
    `tensors`: the name, with {n}, of tensors of one number each that hold it in a checkpoint, a block a tensor. `bare`:
    the key stands without the architecture's name.
    """

    name: str
    key: str | None = None
    kind: ValueType = ValueType.UINT32
    fields: Mapping[str, str] = field(default_factory=dict)
    derive: str | Derivation = ""
    defaults: tuple[Default, ...] = ()
    required: bool = True
    words: Mapping[Any, Any] = field(default_factory=dict)
    absent: Any = None
    implied: str | Derivation = ""
    many: str = ""
    or_one: bool = False
    check: str = ""
    null: Any = None
    unsayable: Any = None
    tensors: str = ""
    bare: bool = False

    def key_of(self, architecture: str) -> str:
        """The whole key in a GGUF file of that architecture."""
        return self.key or "" if self.bare else f"{architecture}.{self.key}"


@dataclass(frozen=True, slots=True)
class From:
    """Where a dialect keeps a role: name patterns with {n} (block) and {e} (expert), and the layout to GGUF.

    Several patterns, and the items of {e}, are the layout's inputs in order. One source tensor may fill several roles
    (the halves of a fused one). `computed`: no tensor holds it; this function makes its float32 values from the
    hparams, or None where the model has no such tensor.
    """

    patterns: tuple[str, ...]
    layout: Layout = SAME
    computed: TensorFunction | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """A tensor of the GGUF model: name, shape (outermost first, expressions over hparams), its origin per dialect.

    `when`: the condition on hparams (and `n`, the block) under which the model has it: then it must be there, and
    else it must not. Where the condition cannot be decided, and for an `optional` one, presence is free.
    """

    name: str
    shape: tuple[str, ...]
    sources: Mapping[str, From]
    optional: bool = False
    always_f32: bool = False
    when: str = ""

    @property
    def per_block(self) -> bool:
        return "{n}" in self.name

    @property
    def series(self) -> str:
        """How the names of its blocks begin: 'blk.', 'enc.blk.', 'dec.blk.'; '' for the model's own."""
        return self.name.partition("{n}")[0] if self.per_block else ""


@dataclass(frozen=True, slots=True)
class Drop:
    """Source tensors that are not carried over, and why.

    `pattern`: a shell pattern, in which {n} is a block number. `when`: a condition on hparams the source states, and
    `n`; a drop with one goes before the roles, one without takes only what no role wants. `same_as`: the role whose
    bytes it must repeat. `follows`: its values follow from the hparams (a buffer). A drop that is neither loses what
    it held: the user is told, and the source is not deleted.
    """

    pattern: str
    reason: str
    when: str = ""
    same_as: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Harmless:
    """Keys of config.json that no hparam reads, and why that changes nothing.

    `keys`: shell patterns, separated by blanks; 'a.b' is member b of the object a. `values`: only where such a key
    says one of these. `follows`: only where it repeats what this comes to (as `HParam.derive`).
    """

    keys: str
    reason: str
    values: tuple[Any, ...] = ()
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the user should know when `when` holds (`expression.holds` over hparams by short name and header
    fields as `header_NAME`). `text` may name them in braces. `stops`: the runtime that does not run such a model, or
    runs another in its place. `otherwise`: the program that runs it and computes something else, past what rounding
    explains."""

    when: str
    text: str
    stops: str = ""
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One naming of the weights. `names`: the column of the role table it uses (its own name if empty).
    `conventions`: what its forward pass does differently from GGUF's. `given`:
    hparams that are what they are in this dialect. `within`: the part of the configuration that describes this model,
    where there is one (the text half of a vision model). `renames`: (prefix, replacement), the first that fits; both
    may hold {n}. `marks`: shell patterns of tensor names; weights that have them all speak this dialect, also where no
    configuration names a class. Then the tensors say how many blocks there are. `classes`: those of config.json that
    speak this dialect, also of another architecture's, unless the weights have one of `lacks` (shell patterns); of
    several, the one that lacks most. `types`: of those classes only models whose text half (`within`) calls
    itself one of these.
    `fields`: the column of `HParam.fields` it uses (its own name if empty). `layouts`: the header layouts of the GGML
    era it is for (all if empty). `shaped`: a tensor and its shape in header fields that show this dialect; among
    several the first in the architecture's table that fits is taken. `header`: the part of the checkpoint's header
    that states the hparams, where it is not the configuration. `tiled`: shell patterns of the fused tensors in which
    keys and values are repeated for every head (`multi_query`). `substitutes`: (name, others…): where no tensor is
    called so, the first of the others that is there is meant. `harmless`: what of the configuration is rightly not
    read, beside what every configuration may say (`config_keys.GENERAL`); `nested`: members of it that transformers
    makes configurations in their own right, which may say that, too. `shapes`: 'PATTERN: SIZE SIZE …', shapes of
    tensors that show this dialect: their names stand for numbers that must be the same in all of them.
    """

    name: str
    names: str = ""
    conventions: Conventions = field(default_factory=Conventions)
    drops: tuple[Drop, ...] = ()
    remarks: tuple[Remark, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    within: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    marks: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    fields: str = ""
    layouts: tuple[str, ...] = ()
    shaped: tuple[str, ...] = ()
    header: str = ""
    tiled: tuple[str, ...] = ()
    substitutes: tuple[tuple[str, ...], ...] = ()
    harmless: tuple[Harmless, ...] = ()
    nested: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()

    @property
    def column(self) -> str:
        return self.names or self.name

    @property
    def source(self) -> str:
        return self.fields or self.name


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything ggferry knows of one model family.

    `name`: GGUF's `general.architecture`. `hf_classes`: the `architectures` strings of config.json. `headers`: its
    GGML-era header layouts. `recipe`: the forward pass on the GGUF side. `runtimes`:
    programs of today that run it. `blocks`: how the names of blocks begin → the hparam that counts them. `remarks`:
    what the user of any of its files should know. `place`: where it is written.
    """

    name: str
    hparams: tuple[HParam, ...]
    roles: Sequence[Role]
    dialects: Mapping[str, Dialect]
    recipe: Conventions
    hf_classes: tuple[str, ...] = ()
    headers: tuple[HeaderLayout, ...] = ()
    display_name: str = ""
    runtimes: tuple[str, ...] = ("llama.cpp",)
    blocks: Mapping[str, str] = field(default_factory=lambda: {"blk.": "n_layer"})
    remarks: tuple[Remark, ...] = ()
    place: Place = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", caller(2))

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def hparam(self, name: str) -> HParam:
        return next(hparam for hparam in self.hparams if hparam.name == name)
