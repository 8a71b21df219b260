"""Judge a model file by itself: structure, meaning, weights, vocabulary, and which programs load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from ggferry.converters.adapters.plan import is_adapter
from ggferry.converters.analysis.weight_scan import odd_tensors
from ggferry.converters.metadata.beside import MMPROJ
from ggferry.converters.model_graph.gguf_edits import projector_types
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.receipt import what_was_read
from ggferry.converters.proof.runtime_keys import check, version
from ggferry.converters.proof.runtime_notes import unexplained
from ggferry.converters.rewrite.declared_digests import check_declared_digests
from ggferry.converters.tokenizers.llama_cpp_limits import objections
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, GgferryError
from ggferry.formats.gguf.shards import shortened
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.quant.codec import types_of_forks
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass

_KEY = "tokenizer.ggml."
NONE = 0xFFFFFFFF
"""The id by which some writers say that there is no such token: llama.cpp's LLAMA_TOKEN_NULL."""


class Grade(StrEnum):
    """How much a finding weighs."""

    FAULT = "fault"
    """The file is damaged, or contradicts itself."""
    WARNING = "warning"
    """Sound files are seldom like this."""
    NOTE = "note"
    """What a user should know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found.

    Attributes:
        grade: How much it weighs.
        about: 'structure', 'integrity', 'model', 'weights', 'vocabulary' or 'template'.
        text: The finding in words.
    """

    grade: Grade
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program, and whether it loads the file.

    Attributes:
        name: The program, with the build that its list of keys is of.
        loads: Whether it does.
        why_not: Why not.
    """

    name: str
    loads: bool
    why_not: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a file.

    Attributes:
        path: The file.
        what: Container, era and types, in words.
        architecture: The architecture; None where no table describes the model.
        tensors: How many tensors were inspected.
        findings: What was found, faults first.
        runtimes: Which programs load it.
    """

    path: str
    what: str
    architecture: str | None
    tensors: int
    findings: tuple[Finding, ...]
    runtimes: tuple[Runtime, ...]

    @property
    def sound(self) -> bool:
        """Whether there is no fault."""
        return all(finding.grade is not Grade.FAULT for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {"sound": self.sound, **asdict(self)}


def examine(path: str, *, data: bool = True, stage: Stage = silent) -> Report:
    """Judge a file by itself; nothing else is needed.

    Args:
        path: A model of any container.
        data: Whether to read tensor data.
        stage: Opens a progress display for each phase.

    Raises CorruptError for a file whose structure is broken, and what else keeps it from being read.
    """
    checkpoint = open_checkpoint(path)
    try:
        found = [Finding(Grade.NOTE, "structure", note) for note in checkpoint.notes]
        graph, tokenizer = None, None
        other = _other_than_model(checkpoint)
        if other:
            found.append(Finding(Grade.NOTE, "model", f"no model: {other}"))
            found += _of_mmproj(checkpoint) if other == MMPROJ else ()
        else:
            graph, tokenizer, notes = _meaning(checkpoint)
            found += notes
        if data:
            found += _of_digests(checkpoint, stage)
            with stage(Phase.CHECKING, sum(ref.nbytes for ref in checkpoint.tensors.values())) as progress:
                found += [
                    _of_weights(odd.name, odd.not_finite, odd.constant) for odd in odd_tensors(checkpoint, progress)
                ]
        order = list(Grade)
        known = graph.architecture.name if graph is not None else None
        return Report(
            checkpoint.path,
            what_was_read(checkpoint),
            known,
            len(checkpoint.tensors) if data else 0,
            tuple(sorted(dict.fromkeys(found), key=lambda each: order.index(each.grade))),
            () if other else tuple(_runtimes(checkpoint, graph, tokenizer)),
        )
    finally:
        checkpoint.close()


def _other_than_model(checkpoint: Checkpoint) -> str | None:
    """Return what a file is that is no model, in a word; None for a model or a vocabulary."""
    if is_adapter(checkpoint):
        return "an adapter"
    declared = checkpoint.metadata.get("general.type") if checkpoint.container == "gguf" else None
    kind = str(declared.data) if isinstance(declared, Value) else "model"
    return None if kind in ("model", "vocab") else kind


def _of_mmproj(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield what is to be said of a file of a vision or audio encoder (mmproj): whether its table is met, and its
    notes."""
    try:
        graph = understand(checkpoint)
    except GgferryError as error:
        yield Finding(Grade.FAULT, "model", _words(error))
        return
    family = graph.architecture.display_name or "no table describes it"
    yield Finding(Grade.NOTE, "model", f"vision or audio encoder of a model: {projector_types(checkpoint)} ({family})")
    yield from (Finding(Grade.NOTE, "model", note) for note in graph.notes)


def _meaning(checkpoint: Checkpoint) -> tuple[ModelGraph | None, Tokenizer | None, list[Finding]]:
    """Return the model's graph and its vocabulary, where they are understood, and what is to be said of both."""
    graph, tokenizer, vocab_only = None, None, not checkpoint.tensors
    found: list[Finding] = []
    try:
        graph = understand(checkpoint, vocab_only=vocab_only)
        found += [Finding(Grade.NOTE, "model", note) for note in graph.notes]
        found += [
            Finding(Grade.WARNING, "model", f"{name} is not stated: {param.value} is assumed ({param.reason})")
            for name, param in graph.hparams.items()
            if param.known is Known.ASSUMED
        ]
    except GgferryError as error:
        found.append(Finding(Grade.FAULT, "model", _words(error)))
    if checkpoint.container == "gguf" and f"{_KEY}tokens" in checkpoint.metadata:
        found += vocabulary_findings(checkpoint.metadata)
    try:
        rows = 0 if vocab_only or graph is None else vocabulary_rows(checkpoint)
        tokenizer = load_tokenizer(checkpoint, rows)
        found += _of_tokenizer(tokenizer)
    except GgferryError as error:
        found.append(Finding(Grade.FAULT, "vocabulary", _words(error)))
    return graph, tokenizer, found


def _words(error: GgferryError) -> str:
    found = "" if error.found is None else f": found {error.found}"
    return f"{error.message}{found}{'' if error.expected is None else f', expected {error.expected}'}"


def _of_digests(checkpoint: Checkpoint, stage: Stage) -> list[Finding]:
    try:
        wrong, right = check_declared_digests(checkpoint, stage)
    except CorruptError as error:
        return [Finding(Grade.FAULT, "integrity", _words(error))]
    return [
        *(Finding(Grade.FAULT, "integrity", text) for text in wrong),
        *(Finding(Grade.NOTE, "integrity", text) for text in right),
    ]


def _of_weights(name: str, not_finite: int | None, constant: float | None) -> Finding:
    if not_finite is not None:
        return Finding(Grade.FAULT, "weights", f"{name}: element {not_finite:,} is NaN or infinite")
    what = "zero" if constant == 0 else f"{constant:g}"
    return Finding(Grade.WARNING, "weights", f"{name}: every element is {what}")


def _of_tokenizer(tokenizer: Tokenizer | None) -> Iterator[Finding]:
    if tokenizer is None:
        yield Finding(Grade.WARNING, "vocabulary", "there is none")
        return
    yield from (Finding(Grade.NOTE, "vocabulary", note) for note in tokenizer.notes)
    names = sorted(tokenizer.templates)
    if names:
        yield Finding(
            Grade.NOTE,
            "template",
            f"chat templates, not rendered: {shortened([name or 'the default' for name in names])}",
        )
    else:
        yield Finding(Grade.NOTE, "template", "there is no chat template")


def vocabulary_findings(metadata: Mapping[str, Value]) -> Iterator[Finding]:
    """Yield what contradicts itself among the `tokenizer.ggml.*` keys of a GGUF file."""
    tokens = metadata[f"{_KEY}tokens"]
    count = len(tokens) if tokens.type is ValueType.ARRAY else 0
    if not count:
        yield Finding(Grade.FAULT, "vocabulary", "there are no tokens")
        return
    for name in ("scores", "token_type"):
        other = metadata.get(_KEY + name)
        if other is not None and other.type is ValueType.ARRAY and len(other) != count:
            yield Finding(Grade.FAULT, "vocabulary", f"{len(other):,} {name} for {count:,} tokens")
    for key, value in metadata.items():
        number = value.data if key.startswith(_KEY) and key.endswith("_token_id") else None
        if isinstance(number, int) and not 0 <= number < count and number != NONE:
            yield Finding(Grade.FAULT, "vocabulary", f"{key} is {number}, and there are {count:,} tokens")
    yield from _duplicates(tokens.data)
    merges = metadata.get(f"{_KEY}merges")
    if merges is not None and merges.items is ValueType.STRING:
        yield from _merges(merges.data, set(tokens.data))


def _duplicates(tokens: Sequence[Any]) -> Iterator[Finding]:
    seen: set[Any] = set()
    twice = [token for token in tokens if token in seen or seen.add(token)]  # type: ignore[func-returns-value]
    if twice:
        yield Finding(
            Grade.WARNING,
            "vocabulary",
            f"{len(twice)} tokens are there twice: {shortened([repr(t) for t in twice], 3)}",
        )


def _merges(merges: Sequence[str], tokens: set[Any]) -> Iterator[Finding]:
    wrong = []
    for merge in merges:
        left, mark, right = merge.partition(" ")
        if not mark or not {left, right, left + right} <= tokens:
            wrong.append(repr(merge))
    if wrong:
        yield Finding(
            Grade.FAULT, "vocabulary", f"{len(wrong)} merges of pieces that are no tokens: {shortened(wrong, 3)}"
        )


def _runtimes(checkpoint: Checkpoint, graph: ModelGraph | None, tokenizer: Tokenizer | None) -> Iterator[Runtime]:
    """Yield the programs of which it is known whether they load such a file, llama.cpp first."""
    if checkpoint.container != "gguf" or "general.architecture" not in checkpoint.metadata:
        return
    why = tuple(dict.fromkeys(_against_llama_cpp(checkpoint, graph, tokenizer)))
    yield Runtime(f"llama.cpp {version()}", not why, why)
    if graph is not None:
        yield from (Runtime(name, True, ()) for name in graph.runtimes if name != "llama.cpp")


def _against_llama_cpp(checkpoint: Checkpoint, graph: ModelGraph | None, tokenizer: Tokenizer | None) -> Iterator[str]:
    if checkpoint.version == 1:
        yield "GGUF v1 is no longer read; ggferry convert writes v3"
    if checkpoint.big_endian:
        yield "big-endian: machines of that byte order only; ggferry convert turns it"
    if checkpoint.alignment & (checkpoint.alignment - 1) or checkpoint.alignment % 32:
        yield f"alignment {checkpoint.alignment} is no power of two of at least 32; ggferry convert writes 32"
    offsets = [(ref.spans[0].file, ref.spans[0].offset) for ref in checkpoint.tensors.values()]
    if offsets != sorted(offsets):
        yield "the tensor table is not in the order of the data"
    if any(value.items is ValueType.ARRAY for value in checkpoint.metadata.values()):
        yield "an array of arrays among the keys"
    for runtime, names in types_of_forks(ref.type for ref in checkpoint.tensors.values()).items():
        yield f"{', '.join(names)}: only {runtime} reads these types; ggferry convert brings them back"
    if graph is None:
        yield "not known: the model contradicts itself"
    elif graph.architecture.hparams and "llama.cpp" not in graph.runtimes:
        yield "it is not known to run this very model"
    architecture = str(checkpoint.metadata["general.architecture"].data)
    notes = graph.notes if graph is not None else ()
    found = check(architecture, checkpoint.metadata, checkpoint.tensors, vocab_only=not checkpoint.tensors)
    yield from (finding.text for finding in unexplained(found, notes) if finding.kind not in ("unread", "otherwise"))
    if tokenizer is not None:
        name = checkpoint.metadata.get("general.name")
        yield from objections(tokenizer, str(name.data) if name is not None else "")
