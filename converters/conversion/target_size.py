"""`--target-size` and `--target-bpw`: the recipe with which a model loses least in a file of a given size.

Every type that a tensor may have is measured on its values (`conversion_plan.measure_types`), and the best choice that
fits is found (`quant.recipes.allocate`). It becomes the text of a recipe, and the request goes on as if that had been
given by `--recipe`: the receipt holds it, and `verify` needs no measuring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from math import prod

from ggferry.converters.adapters.plan import is_adapter
from ggferry.converters.conversion.kinds.gguf import text_request
from ggferry.converters.conversion.kinds.gguf_plan import plan_of, tokens_of, understood
from ggferry.converters.conversion.kinds.kept_models import Understood
from ggferry.converters.conversion.like import lines_of_types, most_common
from ggferry.converters.conversion.measured_costs import measured_costs, spread
from ggferry.converters.conversion.request import MMPROJ, Request, open_source_of
from ggferry.converters.conversion_plan.measure_types import measure_types, measured_bytes, sensitivities
from ggferry.converters.conversion_plan.measurements import Measurements
from ggferry.converters.conversion_plan.steps import Plan, Step, plan_steps
from ggferry.converters.write.feedback_pass import calibration_chunks
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.files.named_texts import text_of
from ggferry.formats.files.partial_files import check_target, write_text
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.formats.memory_cap import limited
from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS
from ggferry.quant.recipes.allocate import Candidate, allocate, bounds
from ggferry.quant.recipes.mixtures import needing_imatrix
from ggferry.quant.recipes.rules import target_type
from ggferry.quant.types import FEEDBACK, SEARCH, BlockError
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers

PLAIN = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
"""The types of --among where it is not given."""
WEIGHED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Those that join them where there is an importance matrix."""
BY_FEEDBACK, BY_SKETCH, BY_MEANS = 0.6, 0.7, 0.83
"""What is left of the cost of types whose later columns correct the errors of earlier ones: with feedback 0.53 to 0.68
times of it, by a sketch of the inputs' second moments 0.58 to 0.88, by their means alone 0.75 to 0.92
(docs/quality.md). The IQ1, IQ2 and IQ3 types are rounded as ever, and would be chosen too often beside them."""
ATTEMPTS = 4
"""A choice can change the header by a few bytes; then it is made again for as many fewer."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What there is to choose.

    Attributes:
        request: The request for the text model, without its size.
        source: What is known of the model.
        types: The types to choose among.
        steps: By tensor, its step in each type that it may have, where there are several.
    """

    request: Request
    source: Understood
    types: tuple[str, ...]
    steps: Mapping[str, Sequence[Step]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a choice is made from.

    Attributes:
        request: The request for the text model, without its size.
        source: What is known of the model.
        types: The types to choose among.
        candidates: By tensor, the types that it may have.
        overhead: Bytes of the file besides these tensors: header, padding and the tensors of fixed types.
        counted: By what text their errors were found to count, in words; '' where they count as usual.
    """

    request: Request
    source: Understood
    types: tuple[str, ...]
    candidates: Mapping[str, Sequence[Candidate]]
    overhead: int
    counted: str = ""


def with_target_size(request: Request, checkpoint: Checkpoint, stage: Stage = silent) -> Request:
    """Return the request with the recipe that its size asks for, and without the size; as it is where it names none.

    The tensors are read. The recipe is written where `recipe_out` says. Raises one of `formats.errors`.
    """
    if not _names_a_size(request, checkpoint):
        return request
    if request.recipe_out is not None:
        check_target(request.recipe_out, overwrite=request.force)
    with limited(checkpoint.path):
        text = recipe_of_size(request, checkpoint, stage)
    if request.recipe_out is not None:
        write_text(request.recipe_out, text.splitlines(), overwrite=request.force)
    return _without_size(request, text)


def with_chosen_types(request: Request, stage: Stage) -> Request:
    """Return the same for a request alone: its source is opened, and closed."""
    if request.target_size is None and request.target_bpw is None:
        return request
    with closing(open_source_of(request)) as checkpoint:
        return with_target_size(request, checkpoint, stage)


def recipe_of_size(request: Request, checkpoint: Checkpoint, stage: Stage) -> str:
    """Return the text of the recipe. Raises UsageError for a size that no choice of types has."""
    with _choices(request, checkpoint) as choices:
        measured = _measured(request, choices, stage)
        return _text(measured, _limit(request, measured, bounds(measured.candidates)))


def with_planned_size(request: Request, checkpoint: Checkpoint) -> tuple[Request, int | None]:
    """Return what can be known of a size before a tensor is read: the request with the smallest types, and the size.

    It is the most bytes of the file. The request is as it is, without a size, where it names none. Raises UsageError
    for a size that no choice of types has.
    """
    if not _names_a_size(request, checkpoint):
        return request, None
    if request.options.split_max_tensors or request.options.split_max_size:
        raise UsageError("--target-size and --target-bpw write one file", found="a split")
    with limited(checkpoint.path), _choices(request, checkpoint) as choices:
        alignment = request.options.alignment
        sizes = {name: [_unmeasured(step, alignment) for step in steps] for name, steps in choices.steps.items()}
        measured = _with_overhead(choices, sizes)
        least, most = (sum(end(each).nbytes for each in sizes.values()) for end in (min, max))
        smallest = {name: min(each) for name, each in sizes.items()}
        text = _recipe(choices.request, choices.source, smallest, choices.types)
        return _without_size(request, text), _limit(request, measured, (least, most))


def _unmeasured(step: Step, alignment: int) -> Candidate:
    return Candidate(-(-step.nbytes // alignment) * alignment, 0.0, step.type.name)


def _limit(request: Request, measured: Measured, within: tuple[int, int]) -> int:
    """Return the most bytes of the file; `within`: the least and the most of its tensors. Raises UsageError."""
    limit = request.target_size if request.target_size is not None else _bytes_of_bpw(request, measured)
    least, most = (measured.overhead + each for each in within)
    if not least <= limit <= most:
        raise UsageError(
            f"no choice of types has this size: {'--target-bpw' if request.target_size is None else '--target-size'}",
            path=measured.source.graph.checkpoint.path,
            found=f"{limit:,} bytes",
            expected=f"{least:,} to {most:,} bytes among {', '.join(measured.types)}",
        )
    return limit


def without_size(request: Request) -> Request:
    """Return a request without a size, for an output whose types are known.

    Its text is left out, too, where nothing but the choice goes by it.
    """
    text = request.calibration if request.options.rounding == FEEDBACK else None
    return replace(
        request, target_size=None, target_bpw=None, among=None, recipe_out=None, measurements=None, calibration=text
    )


def _names_a_size(request: Request, checkpoint: Checkpoint) -> bool:
    """Return whether a request names a size. Raises UsageError where it cannot have one."""
    _check(request)
    sized = request.target_size is not None or request.target_bpw is not None
    if sized and is_adapter(checkpoint):
        raise UsageError("--target-size is for models, not adapters", path=checkpoint.path)
    return sized


def _check(request: Request) -> None:
    """Raise UsageError for options that do not go together."""
    sized = [name for name in ("target_size", "target_bpw") if getattr(request, name) is not None]
    if not sized:
        extra = [name for name in ("among", "recipe_out", "measurements") if getattr(request, name)]
        if extra:
            raise UsageError(f"--{extra[0].replace('_', '-')} goes with --target-size or --target-bpw")
        return
    flag = "--" + sized[0].replace("_", "-")
    options = request.options
    others = {
        "--target-bpw": len(sized) > 1,
        f"the type {options.outtype}": options.outtype.lower() != "keep",
        "--recipe or --like": options.recipe_text is not None,
        "--pure": options.pure,
        "--vocab-only": options.vocab_only,
        "--mmproj only": all(spec.kind == MMPROJ for spec in request.outputs),
    }
    for other, given in others.items():
        if given:
            raise UsageError(f"{flag} decides the types", found=other, expected=f"{flag} without it")


def _without_size(request: Request, text: str) -> Request:
    return without_size(replace(request, options=replace(request.options, recipe_text=text)))


@contextmanager
def _choices(request: Request, checkpoint: Checkpoint) -> Iterator[Choices]:
    """Yield the types that every tensor may have."""
    own = replace(text_request(_without_size(request, "")), options=replace(request.options, outtype="keep"))
    source = understood(own, checkpoint)
    try:
        types = _types(request, source)
        yield Choices(own, source, types, _steps(own, source, types))
    finally:
        if source.imatrix is not None:
            source.imatrix.close()


def _measured(request: Request, choices: Choices, stage: Stage) -> Measured:
    """Measure every tensor in every type that it may have, and how much that counts."""
    source, steps, rounding = choices.source, choices.steps, request.options.rounding
    graph, imatrix, threads = source.graph, source.imatrix, workers(request.jobs)
    kept = Measurements(request.measurements)
    with stage(Phase.MEASURING, measured_bytes(steps)) as progress:
        alignment = request.options.alignment
        errors = measure_types(graph, steps, imatrix, rounding, threads, alignment, progress, kept)
    if request.calibration is None:
        shares = sensitivities(graph, list(steps))
        usual = {
            name: [each._replace(error=each.error * shares[name]) for each in some] for name, some in errors.items()
        }
        return _with_overhead(choices, _corrected(rounding, imatrix, usual))
    text = text_of(request.calibration)
    chunks = spread(calibration_chunks(graph, source.tokenizer, text))
    costs = measured_costs(graph, steps, errors, chunks, imatrix, rounding, threads, stage, kept)
    found = _with_overhead(choices, _corrected(rounding, imatrix, costs))
    return replace(found, counted=tokens_of(request.calibration, text, chunks))


def _corrected(
    rounding: str, imatrix: Imatrix | None, costs: Mapping[str, Sequence[Candidate]]
) -> Mapping[str, Sequence[Candidate]]:
    """Return what types cost once later columns correct the errors of earlier ones.

    With feedback those of embeddings do not: rows of them are taken, or, as the output matrix, wait for the end of a
    pass. In a search those do whose inputs have means in the importance matrix.
    """
    left: dict[str, float] = {}
    if rounding == FEEDBACK:
        left = dict.fromkeys(costs.keys() - {"token_embd.weight"}, BY_FEEDBACK)
    elif rounding == SEARCH and imatrix is not None:
        entries = imatrix.entries.items()
        left = {name: BY_SKETCH if each.sketched else BY_MEANS for name, each in entries if each.plain is not None}
    return {
        name: [
            each._replace(error=each.error * left[name]) if name in left and each.type in LEVELS else each
            for each in some
        ]
        for name, some in costs.items()
    }


def _with_overhead(choices: Choices, candidates: Mapping[str, Sequence[Candidate]]) -> Measured:
    own, source, types = choices.request, choices.source, choices.types
    smallest = {name: min(each) for name, each in candidates.items()}
    plan = plan_of(_without_size(own, _recipe(own, source, smallest, types)), source)
    overhead = plan.bytes_written - sum(each.nbytes for each in smallest.values())
    return Measured(own, source, types, candidates, overhead)


def _types(request: Request, source: Understood) -> tuple[str, ...]:
    """Return the types to choose among. Raises UsageError for one that cannot be, or is not, written."""
    if request.among is None:
        return (*PLAIN, *(WEIGHED if source.imatrix is not None else ()))
    found = []
    for word in request.among.split(","):
        try:
            kind = target_type(word.strip())
        except BlockError as error:
            raise UsageError(f"--among: {error}") from None
        if codec(kind).encode is None or kind in found:
            raise UsageError("--among", found=word.strip(), expected="types with an encoder, each once")
        found.append(kind)
    needing = [kind for kind in found if kind in needing_imatrix()]
    if needing and source.imatrix is None:
        raise RefusedError(f"--among: {needing[0]} needs an importance matrix", hint="--imatrix FILE")
    return tuple(found)


def _steps(request: Request, source: Understood, types: Sequence[str]) -> dict[str, list[Step]]:
    """Return by tensor its step in each type that it may have, where there is a choice; fixed rules leave none."""
    entries = source.imatrix.entries if source.imatrix is not None else {}
    found: dict[str, dict[str, Step]] = {node.name: {} for node in source.graph.nodes}
    plain = next((kind for kind in types if kind not in needing_imatrix()), None)
    for kind in types:
        weighed = kind in needing_imatrix() and plain is not None
        rules = [f"{node.name} -> {kind}" for node in source.graph.nodes if node.name in entries] if weighed else []
        text = "\n".join([f"default {plain if weighed else kind}", *rules])
        options = replace(request.options, recipe_text=text)
        for step in plan_steps(source.graph, options, source.imatrix):
            if step.name in found and (not weighed or step.name in entries):
                found[step.name].setdefault(step.type.name, step)
    return {name: list(each.values()) for name, each in found.items() if len(each) > 1}


def _bytes_of_bpw(request: Request, measured: Measured) -> int:
    """Return the bytes of a file whose tensors have so many bits a weight together."""
    assert request.target_bpw is not None
    plan = _plan(measured, {name: min(each) for name, each in measured.candidates.items()})
    tensors = sum(step.nbytes for step in plan.steps)
    weights = sum(prod(step.node.shape) for step in plan.steps)
    return plan.bytes_written - tensors + int(request.target_bpw * weights / 8)


def _text(measured: Measured, limit: int) -> str:
    """Return the recipe of the best choice whose file has at most `limit` bytes."""
    room = limit - measured.overhead
    for _ in range(ATTEMPTS):
        chosen = allocate(measured.candidates, room)
        size = _plan(measured, chosen).bytes_written
        if size <= limit:
            break
        room -= size - limit
    error = sum(each.error for each in chosen.values())
    with_matrix = "with an importance matrix" if measured.source.imatrix is not None else "without an importance matrix"
    comments = [
        f"# Chosen for at most {limit} bytes, {with_matrix}, among {', '.join(measured.types)}.",
        f"# {size} bytes; the errors of {len(chosen)} tensors, as they count, are {error:.6g} together.",
        f"# What they cost was measured on {measured.counted}."
        if measured.counted
        else "# What they cost is taken from their errors; --calibration FILE measures it on the model's predictions.",
    ]
    return (
        "\n".join(comments) + "\n" + _recipe(measured.request, measured.source, chosen, measured.types, f"size-{limit}")
    )


def _plan(measured: Measured, chosen: Mapping[str, Candidate]) -> Plan:
    text = _recipe(measured.request, measured.source, chosen, measured.types)
    return plan_of(_without_size(measured.request, text), measured.source)


def _recipe(
    request: Request, source: Understood, chosen: Mapping[str, Candidate], types: Sequence[str], name: str = "size"
) -> str:
    """Return a recipe with the type of every matrix, those of fixed types too: it stands without the fixed rules."""
    rules = [f"{name} -> {each.type}" for name, each in chosen.items()]
    default = next((kind for kind in types if kind not in needing_imatrix()), types[0])
    options = replace(request.options, recipe_text="\n".join([f"default {default}", *rules]))
    found = {
        step.name: step.type.name
        for step in plan_steps(source.graph, options, source.imatrix)
        if len(step.node.shape) > 1 and not step.node.layout.integers and not step.node.role.always_f32
    }
    return "\n".join([f"recipe    {name}", f"default   {most_common(found)}", "", *lines_of_types(found)]) + "\n"
