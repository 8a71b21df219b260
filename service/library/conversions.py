"""`convert`, `plan`, `quantize` and `verify`, like the commands of these names (`plan`: like `convert --dry-run`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from ggferry.converters.conversion.kinds.gguf import plan_in
from ggferry.converters.conversion.kinds.kind import PlannedOutput
from ggferry.converters.conversion.options import types_of
from ggferry.converters.conversion.plan import plan_source
from ggferry.converters.conversion.request import split_mmproj
from ggferry.converters.conversion.run import Result, quantize_request
from ggferry.converters.conversion.run import convert as run
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.grades import Route
from ggferry.converters.conversion_plan.steps import Plan, Step
from ggferry.converters.hf_export.plan import FolderPlan
from ggferry.converters.hf_export.shards import Entry
from ggferry.converters.model_graph.hparams import Known, Param
from ggferry.formats.checkpoint import Dropped
from ggferry.formats.errors import UsageError
from ggferry.formats.files.opened_files import recorded
from ggferry.formats.files.sources import known_by
from ggferry.service.destinations.destination import destination
from ggferry.service.library.answers import (
    Assumption,
    Conversion,
    ConversionPlan,
    DroppedTensor,
    PlannedKey,
    PlannedTensor,
    Verification,
    plain,
)
from ggferry.service.library.keywords import (
    Converting,
    Planning,
    Quantizing,
    StrPath,
    Verifying,
    by_name,
    request,
    request_from,
    signed,
)
from ggferry.service.sources.local_source import local_source
from ggferry.support.progress import Stage, silent


@signed("convert")
def convert(
    source: StrPath, out: StrPath | None = None, *, progress: Stage = silent, **options: Unpack[Converting]
) -> Conversion:
    """Convert a model to GGUF v3 and prove it, as `ggferry convert` does.

    Args:
        source: A model file, the first part of one, or a folder; a path or a URL.
        out: File or folder; None: in the folder of the source (of a URL: in the current one), named by the GGUF
            convention.
        progress: Called with a `Phase` and a number of bytes; returns a context that yields a function to call with the
            bytes just done.
        options: Those of the command line, by the names above; `ggferry convert --help` and docs/python.md say what
            each means.

    Returns:
        The output, its receipt and the proof. Both files appear together, or an error is raised and nothing is left.

    Raises:
        GgferryError: One of its subclasses; its `exit_code` is that of the command line.
        TypeError: There is no such option.

    Example:
        >>> done = ggferry.convert("old.bin", "new.gguf")
        >>> done.output
        'new.gguf'
    """
    with local_source(os.fspath(source)) as path, recorded():
        conversion = request("convert", path, options)
        out = os.getcwd() if out is None and path.url else out
        if len(types_of(conversion.options.outtype)) > 1:
            raise UsageError(
                "outtype", found=conversion.options.outtype, expected="one type", hint="ggferry.convert_many"
            )
        with destination(None if out is None else os.fspath(out), to=conversion.to, force=conversion.force) as place:
            conversion = replace(conversion, out=place.out)
            results = run(conversion, path.staged(progress), lambda receipt: path.check_unchanged())
            stored = place.publish(results)
        found = _conversions(results)[0]
        return replace(found, output=str(out), outputs=(str(out),)) if stored else found


@signed("convert")
def convert_many(
    source: StrPath, out: StrPath | None = None, *, progress: Stage = silent, **options: Unpack[Converting]
) -> tuple[Conversion, ...]:
    """Convert a model to several types at once: it is read and decoded once, and every output is proved.

    Every output has the bytes and the receipt that `convert` would have given it. None gets its name before all are
    proved.

    Args:
        source: As for `convert`.
        out: A name in which '{outtype}' stands for the type, or a folder; None: in the folder of the source.
        progress: As for `convert`.
        options: As for `convert`, with the types in `outtype`, separated by commas.

    Returns:
        The outputs, in the order of the types.

    Raises:
        UsageError: One name is given for several outputs, or a type stands there twice.
        GgferryError: As `convert` raises.
        TypeError: There is no such option.

    Example:
        >>> [done.output for done in ggferry.convert_many("llama", "a-{outtype}.gguf", outtype="q8_0,q4_0")]
        ['a-q8_0.gguf', 'a-q4_0.gguf']
    """
    with local_source(os.fspath(source)) as path, recorded():
        name = os.getcwd() if out is None and path.url else out
        conversion = replace(request("convert", path, options), out=None if name is None else os.fspath(name))
        return _conversions(run(conversion, path.staged(progress), lambda receipt: path.check_unchanged()))


@signed("plan")
def plan(source: StrPath, **options: Unpack[Planning]) -> ConversionPlan:
    """Return what `convert` with the same options would do, without reading tensor data.

    Args:
        source: As for `convert`.
        options: As for `convert`.

    Returns:
        The type, route and grade of every tensor, every key with its origin, what is dropped, and how many bytes are
        read and written; of several types, which `ladder` writes, the first, with the others in `further`.

    Raises:
        GgferryError: As `convert` raises before it writes.
        TypeError: There is no such option.

    Example:
        >>> sorted({tensor.type for tensor in ggferry.plan("llama", outtype="q8_0").tensors})
        ['F32', 'Q8_0']
    """
    measured = options.get("target_size") is not None or options.get("target_bpw") is not None
    with local_source(os.fspath(source), tensors=measured) as path, recorded():
        made = plan_source(request("plan", path, options))
        first, *further = map(_planned, made.main)
        mmproj = _plan(plan_in(made.mmproj)) if made.mmproj else None
        return replace(first, mmproj=mmproj, further=tuple(further))


@signed("quantize")
def quantize(
    source: StrPath,
    out: StrPath,
    outtype: str | None = None,
    *,
    progress: Stage = silent,
    **options: Unpack[Quantizing],
) -> Conversion:
    """Quantize a GGUF model of any architecture, as `ggferry quantize` does.

    Args:
        source: A GGUF file, or a shard of one. Byte order and alignment stay as they are.
        out: The file to write, or a folder.
        outtype: Any type of llama-quantize, or 'copy'; None where `recipe`, `like` or a target size says.
        progress: As for `convert`.
        options: Those of the command line, by the names above.

    Returns:
        As `convert`.

    Raises:
        RefusedError: The model is quantized already (without `allow_requantize`), or the type needs an importance
            matrix.
        GgferryError: As `convert`.
        TypeError: There is no such option.

    Example:
        >>> ggferry.quantize("model.gguf", "small.gguf", "q8_0").proof.worst.relative_rms < 0.01
        True
    """
    with local_source(os.fspath(source)) as path, recorded():
        conversion = quantize_request(
            path, os.fspath(out), outtype or "keep", request_from("quantize", options), by_name
        )
        return _conversions(run(conversion, path.staged(progress), lambda receipt: path.check_unchanged()))[0]


@signed("verify")
def verify(source: StrPath, output: StrPath, *, progress: Stage = silent, **options: Unpack[Verifying]) -> Verification:
    """Compare a source with its conversion: accounting, every key, every tensor, the vocabulary, logits.

    Args:
        source: What was converted.
        output: The GGUF file made from it. The options of the conversion are taken from its receipt; options given here
            take precedence.
        progress: As for `convert`.
        options: `level`, `allow_keys`, and those of `convert` that say what the source lacks.

    Returns:
        The proof.

    Raises:
        VerificationError: The output is not what the source gives; the message names the first difference.
        GgferryError: As `convert`.
        TypeError: There is no such option.

    Example:
        >>> ggferry.verify("old.bin", "new.gguf", level="fast").proof.level
        'fast'
    """
    with local_source(os.fspath(source)) as left, local_source(os.fspath(output)) as right, recorded():
        conversion = request("verify", left, options)
        report = reverify(conversion, right, right.staged(left.staged(progress)), options.get("allow_keys") or ())
        left.check_unchanged()
        right.check_unchanged()
    return Verification(report.proof, report.keys, tuple(report.notes), report.line)


def _conversions(results: Sequence[Result]) -> tuple[Conversion, ...]:
    """Return the outputs, each text model with the mmproj file that was written with it."""
    main, beside = split_mmproj(results, lambda result: result.kind)
    mmproj = None if beside is None else _conversion(beside, None)
    return tuple(_conversion(result, mmproj) for result in main)


def _conversion(result: Result, mmproj: Conversion | None) -> Conversion:
    return Conversion(
        result.path,
        result.paths,
        result.receipt,
        result.receipt_path,
        result.proof,
        _assumed(result.assumed),
        tuple(result.receipt["notes"]),
        result.lines,
        mmproj,
    )


def _planned(output: PlannedOutput) -> ConversionPlan:
    return _plan_of_folder(output.plan) if isinstance(output.plan, FolderPlan) else _plan(output.plan)


def _plan_of_folder(made: FolderPlan) -> ConversionPlan:
    """Return what a folder will be, whose keys are those of its config.json."""
    graph, config = made.graph, made.back.config
    return ConversionPlan(
        source=known_by(graph.checkpoint.path),
        architecture=graph.architecture.name,
        tensors=tuple(map(_tensor_of_folder, made.shards.entries)),
        keys={key: PlannedKey(value, type(value).__name__, "config.json") for key, value in config.items()},
        dropped=dropped(graph.dropped),
        assumed=_assumed({name: param for name, param in graph.hparams.items() if param.known is Known.ASSUMED}),
        notes=tuple(dict.fromkeys((*graph.checkpoint.notes, *graph.notes, *made.notes))),
        bytes_read=graph.checkpoint.nbytes,
        bytes_written=made.bytes_of_files,
    )


def _tensor_of_folder(entry: Entry) -> PlannedTensor:
    refs = tuple(ref for node in entry.tensor.nodes for ref in node.inputs)
    return PlannedTensor(
        entry.tensor.name,
        tuple(ref.name for ref in refs),
        entry.tensor.shape,
        ", ".join(dict.fromkeys(ref.type.name for ref in refs)),
        entry.type.name,
        Route.REPACK if entry.packing is not None and not entry.encoded else Route.TRANSCODE,
        entry.grade,
        entry.nbytes,
        entry.packing.form if entry.packing is not None else "",
    )


def _plan(made: Plan) -> ConversionPlan:
    graph = made.graph
    return ConversionPlan(
        source=known_by(graph.checkpoint.path),
        architecture=graph.architecture.name,
        tensors=tuple(map(_tensor, made.steps)),
        keys={
            key: PlannedKey(plain(entry.value), entry.value.type.name.lower(), entry.origin)
            for key, entry in made.metadata.items()
        },
        dropped=dropped(graph.dropped),
        assumed=_assumed({name: param for name, param in graph.hparams.items() if param.known is Known.ASSUMED}),
        notes=tuple(dict.fromkeys((*graph.checkpoint.notes, *graph.notes, *made.notes))),
        bytes_read=made.bytes_read,
        bytes_written=made.bytes_written,
    )


def _tensor(step: Step) -> PlannedTensor:
    return PlannedTensor(
        step.name,
        tuple(ref.name for ref in step.node.inputs),
        step.node.shape,
        step.source_type.name,
        step.type.name,
        step.route,
        step.grade,
        step.nbytes,
        step.why,
    )


def _assumed(params: Mapping[str, Param]) -> tuple[Assumption, ...]:
    return tuple(Assumption(name, param.value, param.reason) for name, param in params.items())


def dropped(found: Iterable[Dropped]) -> tuple[DroppedTensor, ...]:
    """Return what is not copied, as the library's records describe it."""
    return tuple(DroppedTensor(drop.ref.name, drop.reason, drop.loses) for drop in found)
