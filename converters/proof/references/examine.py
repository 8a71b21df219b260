"""Ask the witnesses that a user named, and compare their results with ours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.references import ctransformers_files, llama_cpp, transformers_model
from ggferry.converters.proof.references.case import Case, ReferenceImplementation
from ggferry.converters.proof.references.cross_check import CrossCheck, short
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.threads import workers

REFERENCES: tuple[ReferenceImplementation, ...] = (
    transformers_model.WITNESS,
    llama_cpp.WITNESS,
    ctransformers_files.WITNESS,
)
AUTO, NOBODY = "auto", "none"
CHOICES = (AUTO, NOBODY, *(witness.name for witness in REFERENCES))


def chosen(requested: Sequence[str], level: str = "full") -> tuple[str, ...]:
    """Return the witnesses that the values of `--witness` name: 'auto', 'none', or names separated by commas.

    The result is empty for none. Raises UsageError, also for a `level` of proof at which no witness is asked.
    """
    names = [name.strip() for item in requested for name in item.split(",")]
    for name in names:
        if name not in CHOICES:
            raise UsageError("--witness", found=name, expected=", ".join(CHOICES))
    if NOBODY in names and len(set(names)) > 1:
        raise UsageError("--witness", found=", ".join(requested), expected="none, or the names of some")
    named = tuple(dict.fromkeys(name for name in names if name != NOBODY))
    if named and level != "full":
        raise UsageError("--witness is for a full proof", found=level, expected="full")
    return named


def examine(
    source: ModelGraph, output: ModelGraph, names: Sequence[str], jobs: int | None = None, stage: Stage = silent
) -> tuple[CrossCheck, ...]:
    """Return the comparisons with the wanted reference implementations.

    'auto' asks all that are installed, know such a model and fit into memory. Raises VerificationError for a witness
    that computes something else than we do, unless that difference from the model's definition is known. The error
    names the witness, the place, what was measured and what is allowed. So does one that was asked for by name and does
    not take the output.
    """
    found = []
    for reference in REFERENCES:
        if reference.name in names or AUTO in names:
            with stage(Phase.WITNESSES, 1), tempfile.TemporaryDirectory(prefix="ggferry-witness-") as folder:
                case = Case(source, output, folder, workers(jobs))
                check = _compared(reference, case, reference.name not in names)
            found += [check] if check else []
    return tuple(found)


def _compared(reference: ReferenceImplementation, case: Case, auto: bool) -> CrossCheck | None:
    """Return the comparison, or why there is none; None where nobody expected one."""
    refusal = reference.unsupported(case)
    if refusal is not None:
        return None if auto and refusal.quiet else CrossCheck(reference.name, side=reference.side, why=refusal.why)
    try:
        check, apart = reference.run(case)
    except OSError as error:  # no process could be started, or its files could not be written
        return CrossCheck(reference.name, side=reference.side, why=f"it cannot be asked: {error.strerror}")
    if check.refused and not auto:
        raise VerificationError(
            f"{reference.name} does not take the output",
            path=case.output.checkpoint.path,
            found=check.why,
            expected="that it runs such a model",
            hint="--witness auto warns instead",
        )
    if apart is None:
        return check
    compared = replace(check, worst=apart.worst, limit=apart.limit, place=apart.place)
    if apart.allowed:
        return compared
    if known := (*case.source.known_differences(reference.name, apart.tokens), *reference.known_differences(case)):
        return replace(
            compared, why=f"it computes otherwise, as is known: {known[0]} (differs by {short(apart.worst)})"
        )
    side = case.source if reference.side == "source" else case.output
    raise VerificationError(
        f"{reference.name} {check.version} computes other {check.what} from the {reference.side} than we do",
        path=side.checkpoint.path,
        found=f"relative RMS {apart.worst:.3g} at {apart.place}",
        expected=f"at most {apart.limit:.3g}",
    )
