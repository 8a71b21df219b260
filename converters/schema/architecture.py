"""What an architecture is: frozen tables. Nothing here computes; `graph.bind` reads them, `validate` examines them.

A *role* is a tensor's place in the GGUF model ('blk.{n}.attn_q.weight'). A *dialect* is one naming and ordering of the
same weights ('meta', 'hf', 'ggml', 'gguf'). An *hparam* has a short name for use in shapes ('n_head'), and a GGUF key,
written here without the architecture's name ('attention.head_count').
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ggferry.converters.schema.derivations import Derivation, TensorFunction
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.recipe import Conventions
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.reader import HeaderLayout
from ggferry.support.places import Place, Written, caller
from ggferry.support.records import dataclass

TARGET = "--target-model"
"""The option that names the model a draft guesses for, and the member of a draft's configuration which it fills
(`converters.conversion.draft_target`): a place in a table is '--target-model.vocab_size'."""


@dataclass(frozen=True, slots=True)
class Default(Written):
    """A value that is taken where no source states it. The first default whose conditions all hold is taken.

    Attributes:
        value: The value.
        why: Why it is the right one.
        when: A condition on the hparams ('n_head_kv < n_head').
        named: A regular expression to be found in the source's file and folder names.
        dialect: The only dialect it is for; empty for all.
    """

    value: Any
    why: str
    when: str = ""
    named: str = ""
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class HParam(Written):
    """One hyper-parameter: its short name, GGUF key and type, where each dialect keeps it, and how else to find it.

    Order of authority: `--hparam`; the value the dialect fixes (`Dialect.fixed`); the source's field; the tensors'
    shapes (always compared with the former); `derive`; `defaults`; `absent`.

    Attributes:
        name: Short name.
        key: GGUF key without the architecture; None for an hparam that is not written.
        kind: Type of the value in GGUF, or of an item of a list.
        fields: Dialect → place. 'a.b|c' is field b in a, or else c. For 'gguf' it is a key without its architecture, by
            default `key`.
        derive: An expression over other hparams, 'each CONDITION' (a truth value for every block `n`), '@NAME' of a
            function in `derivations.HPARAMS`, or the function itself where only one family has it.
        defaults: Values for where nothing else gives one.
        required: Whether a model with tensors must have a value.
        words: The source's words → what they mean here; any other word is refused.
        absent: What a GGUF file without the key means; this value is never written.
        implied: How readers derive the value where the key is absent (as `derive`); then the key is written only where
            the source states the value or it differs.
        length: How many values there are, as an expression: the value is a tuple, written as an array. One with
            'n_layer' items may be used in shapes and conditions, where it means the item of block `n`.
        allow_scalar: Whether a single value may stand for a list: the same for all.
        check: A condition that the values must not contradict.
        null: What an explicit null in the source means; by default it states nothing.
        unrepresentable: A value that a configuration may state and GGUF cannot, because its readers take it for 'not
        stated';
            refused.
        tensors: Name, with {n}, of the tensors that hold the list in a checkpoint: one number in one tensor per block.
            Without {n}, the name of the tensor that holds the number; with *, the shell pattern of the name of the one
            tensor that holds the list, as whole numbers.
        global_key: Whether the key is written without the architecture's name.
        null_default: Whether a written configuration says null where the value is that of `null`.
        scalar: Whether the tensors that hold the list have no axes, where a checkpoint is written.
        text: Whether the source may state a text in place of the number, for a derivation to read.
        flat: Whether the source states a list of lists, whose items then stand one behind another.
        repeated: Whether the source may state a list of pairs: items, and how many times they stand one behind another.
        least: The least whole number it may be.
        own_first: Whether, of several keys of families that share it, that comes first by which transformers' class
            knows the value.
        own_only: Whether only the keys that transformers' class reads are read, where there is such a class: others
            stand in configurations that were made of those of other families.
        shared: Whether another hparam has the same key: one where it holds a number, the other where it holds a list.
        nonzero: Whether it is a flag of biases that llama.cpp has no place for: false where all of them are zeros,
            which are dropped. Where no role has the flag, they must be.
        undo: What a configuration stated, where the derivation is a family's own: a function of all values that returns
            those of other hparams by short name (of derivations that several share: `schema/inverses/`).
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
    length: str = ""
    allow_scalar: bool = False
    check: str = ""
    null: Any = None
    unrepresentable: Any = None
    tensors: str = ""
    global_key: bool = False
    null_default: bool = False
    scalar: bool = False
    text: bool = False
    flat: bool = False
    repeated: bool = False
    least: int = 0
    own_first: bool = False
    own_only: bool = False
    nonzero: bool = False
    shared: bool = False
    undo: Derivation | None = None

    def key_of(self, architecture: str) -> str:
        """Return the whole key in a GGUF file of that architecture."""
        return self.key or "" if self.global_key else f"{architecture}.{self.key}"


@dataclass(frozen=True, slots=True)
class From:
    """Where a dialect keeps a role. One source tensor may fill several roles (the parts of a fused one).

    Attributes:
        patterns: Names, with {n} for the block and {e} for the expert. Several patterns, and the items of {e}, are the
            layout's inputs in order.
        layout: How the tensor of GGUF is made of them.
        computed: A function that computes the float32 values from the hparams, where no tensor holds them; it returns
            None where the model has no such tensor.
    """

    patterns: tuple[str, ...]
    layout: Layout = SAME
    computed: TensorFunction | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """A tensor of the GGUF model.

    Attributes:
        name: Name, with {n} for the block.
        shape: Expressions over hparams, outermost axis first.
        sources: Dialect → where it keeps the tensor.
        optional: Whether the tensor may be absent.
        always_f32: Whether it is float32 whatever type the model is converted to.
        plain: Whether it is float16 in a file of float16 and else float32, because runtimes compute with nothing else.
        half: Whether it is bfloat16 in a file of bfloat16 and else float16, because runtimes compute with nothing else.
        when: The condition on hparams (and `n`, the block) under which the model has the tensor. Where it holds, the
            tensor must be present; where it does not, the tensor must be absent; where it cannot be decided, both are
            allowed.
        place: Where its line is written.
    """

    name: str
    shape: tuple[str, ...]
    sources: Mapping[str, From]
    optional: bool = False
    always_f32: bool = False
    when: str = ""
    plain: bool = False
    half: bool = False
    place: Place | None = field(default=None, repr=False, compare=False)

    @property
    def pinned(self) -> bool:
        """Whether runtimes decide its type, and not what the model is converted to."""
        return self.always_f32 or self.plain or self.half

    @property
    def per_block(self) -> bool:
        """Whether every block may have one."""
        return "{n}" in self.name

    @property
    def series(self) -> str:
        """How the names of its blocks begin: 'blk.', 'enc.blk.', 'dec.blk.'; '' for roles of the whole model."""
        return self.name.partition("{n}")[0] if self.per_block else ""


@dataclass(frozen=True, slots=True)
class Drop(Written):
    """Source tensors that are not copied, and why.

    A drop with neither `same_as` nor `follows` loses what the tensors held: the user is informed, and the source is not
    deleted.

    Attributes:
        pattern: A shell pattern, in which {n} is a block number.
        reason: Why they are dropped.
        when: A condition on stated hparams and `n`. A drop with a condition takes precedence over roles; one without
            takes only tensors that have no role.
        same_as: The role whose bytes the tensor must repeat.
        follows: Whether its values follow from the hparams (a buffer).
    """

    pattern: str
    reason: str
    when: str = ""
    same_as: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class IgnoredKey(Written):
    """Keys of config.json that no hparam reads, and why that changes nothing.

    Attributes:
        keys: Shell patterns, separated by blanks; 'a.b' is member b of the object a.
        reason: Why they may be ignored.
        values: Where given, the key is harmless only with one of these values, or with a list of nothing else.
        follows: Where given, the key is harmless only if it has the value of this derivation (as `HParam.derive`).
    """

    keys: str
    reason: str
    values: tuple[Any, ...] = ()
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Caveat(Written):
    """Something the user should know about a model.

    Attributes:
        when: The condition under which it applies: `expressions.holds` over hparams by short name and header fields as
            `header_NAME`.
        text: The remark; it may name hparams and header fields in braces.
        unsupported_by: The runtime that does not run such a model, or runs another one in its place.
        differs_in: The program that runs it, but computes something else, beyond rounding.
    """

    when: str
    text: str
    unsupported_by: str = ""
    differs_in: str = ""


@dataclass(frozen=True, slots=True)
class Dialect(Written):
    """One naming and ordering of the weights.

    Attributes:
        name: Name of the dialect.
        names: The column of the role table it uses; its own name if empty.
        conventions: What its forward pass does differently from GGUF's.
        drops: Tensors that are not copied.
        caveats: What the user should know of its models.
        fixed: Hparams that always have these values in this dialect.
        config_section: The member of the configuration that describes this model, if there is one (the text part of a
            vision model).
        renames: (prefix, replacement) pairs, both possibly with {n}; the first that fits is used.
        appended_blocks: (prefix, other prefix), both with {n}: blocks of the first are numbered behind those of the
            second. A first prefix without {n} belongs to the first of them, under what a third item says. A second
            prefix without {n} takes the place of the first.
        renumbered: (prefix, list) pairs. The number behind the prefix counts the items of the list, an hparam that
            holds the numbers of blocks. A third item is the prefix that takes the place of the first.
        required_tensors: Shell patterns of tensor names. Weights that have all of them are of this dialect, also
            where no configuration names a class; the number of blocks is then found from the tensors.
        classes: Classes of config.json whose models use this dialect, also those of another architecture.
        forbidden_tensors: Shell patterns of tensors that a model found by `classes` must not have; of several dialects
            that fit, the one with the most patterns is taken.
        bundled: (class, key): a checkpoint of that class holds such a draft for itself where its configuration has the
            key, and `--mtp-only` writes it.
        types: Of `classes`, only models whose text part (`config_section`) states one of these model types.
        unless: Of `classes`, only models of which the configuration does not say that this key is true.
        fields: The column of `HParam.fields` it uses; its own name if empty.
        layouts: The GGML-era header layouts it is for; all if empty.
        shaped: A tensor and its shape in header fields, by which the dialect is recognized; the first dialect of the
            architecture that fits is taken.
        header: The part of the checkpoint's header that states the hparams, where the configuration does not.
        repeated_kv: Shell patterns of the fused tensors in which keys and values are repeated for every head
            (`model_graph.repeated_heads`).
        substitutes: (name, others…): where no tensor has the name, the first existing one of the others is used.
        ignored_keys: Keys of the configuration that are rightly not read, besides those harmless in every configuration
            (`config_keys.GENERAL`).
        nested: Members that are configurations of their own in transformers, and may have such keys, too.
        export_renames: (prefix in the role table, prefix in a written checkpoint, condition on hparams), where a
            checkpoint that is written has other names than those that `renames` leads to. What stands in braces in the
            latter is a size of hparams and of the former's {n}: 'model.mtp.layers.{n - n_layer}.'.
        shapes: 'PATTERN: SIZE SIZE …', shapes of tensors by which the dialect is recognized; a name in them stands for
            the same number everywhere.
    """

    name: str
    names: str = ""
    conventions: Conventions = field(default_factory=Conventions)
    drops: tuple[Drop, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    config_section: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    appended_blocks: tuple[tuple[str, ...], ...] = ()
    renumbered: tuple[tuple[str, ...], ...] = ()
    required_tensors: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    forbidden_tensors: tuple[str, ...] = ()
    bundled: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    unless: str = ""
    fields: str = ""
    layouts: tuple[str, ...] = ()
    shaped: tuple[str, ...] = ()
    header: str = ""
    repeated_kv: tuple[str, ...] = ()
    substitutes: tuple[tuple[str, ...], ...] = ()
    ignored_keys: tuple[IgnoredKey, ...] = ()
    nested: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    export_renames: tuple[tuple[str, str, str], ...] = ()

    @property
    def column(self) -> str:
        """The column of the role table it uses."""
        return self.names or self.name

    @property
    def source(self) -> str:
        """The column of `HParam.fields` it uses."""
        return self.fields or self.name


@dataclass(frozen=True, slots=True)
class Architecture(Written):
    """Everything ggferry knows of one model family.

    Attributes:
        name: GGUF's `general.architecture`.
        hparams: Its hyper-parameters.
        roles: Its tensors.
        dialects: Its dialects; one of name 'gguf' without anything of its own need not be written.
        recipe: The forward pass on the GGUF side.
        hf_classes: The `architectures` strings of config.json.
        headers: Its GGML-era header layouts.
        display_name: Its name for people.
        runtimes: Current programs that run it; a table claims none by saying nothing.
        blocks: How the names of blocks begin → the hparam that counts them.
        caveats: What the user of any of its models should know.
        of_decoder: Beginnings of the names of what the decoder has but once and no block that predicts further tokens
            reads: tensors of GGUF, and keys of hparams without the architecture. A file of such blocks alone has none.
        further_fused: Whether blocks that predict further tokens have queries, keys and values in one tensor, where
            those of the decoder have them apart: runtimes take nothing else.
        projector: Of the mmproj file of a multimodal model (`converters/projectors`): its projector types,
            that of pictures first, joined by '+'.
    """

    name: str
    hparams: tuple[HParam, ...]
    roles: Sequence[Role]
    dialects: tuple[Dialect, ...]
    recipe: Conventions
    hf_classes: tuple[str, ...] = ()
    headers: tuple[HeaderLayout, ...] = ()
    display_name: str = ""
    runtimes: tuple[str, ...] = ()
    blocks: Mapping[str, str] = field(default_factory=lambda: {"blk.": "n_layer"})
    caveats: tuple[Caveat, ...] = ()
    of_decoder: tuple[str, ...] = ()
    further_fused: bool = False
    projector: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", caller())
        if not any(dialect.name == "gguf" for dialect in self.dialects):
            object.__setattr__(self, "dialects", (*self.dialects, Dialect("gguf")))

    @property
    def identity(self) -> str:
        """Its name among all tables, also those of mmproj files, which GGUF calls by one name: 'clip:gemma3'."""
        return f"{self.name}:{self.projector}" if self.projector else self.name

    def dialect(self, name: str) -> Dialect:
        """Return the dialect of that name. Raises KeyError where it has none."""
        for dialect in self.dialects:
            if dialect.name == name:
                return dialect
        raise KeyError(name)

    def with_dialect(self, dialect: Dialect) -> Architecture:
        """Return the architecture with this dialect, in place of the one of its name or as a further one."""
        if not any(each.name == dialect.name for each in self.dialects):
            return replace(self, dialects=(*self.dialects, dialect))
        return replace(self, dialects=tuple(dialect if each.name == dialect.name else each for each in self.dialects))

    def role(self, name: str) -> Role:
        """Return the role of that name."""
        return next(role for role in self.roles if role.name == name)

    def hparam(self, name: str) -> HParam:
        """Return the hparam of that short name."""
        return next(hparam for hparam in self.hparams if hparam.name == name)
