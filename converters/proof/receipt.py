"""Make the receipt of an output: a JSON file next to it that states in numbers what happened.

The same inputs and options give the same receipt: it holds no time, no machine and no absolute path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import ggferry
from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.conversion_plan.steps import Plan, count_types, step_record
from ggferry.converters.forward.model import as_stored
from ggferry.converters.metadata.receipt_fields import DroppedRecord, FileRecord, Receipt
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.references.cross_check import CONVERSATIONS, cross_check_line
from ggferry.converters.proof.runtime_notes import computed_differently, loads
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import strict
from ggferry.formats.reader import Kind, kind_of, label_of
from ggferry.quant.types import FEEDBACK, SEARCH
from ggferry.support.printable import printable_json

FORMAT = 1
LLAMA_CPP = "llama.cpp"
LOSS = 0.1
"""Relative RMS of logits, and share of rows with another top-1, beyond which the line for people says so first."""


def make_receipt(
    plan: Plan,
    proof: Proof,
    output: Sequence[FileRecord],
    source: Sequence[FileRecord],
    options: Mapping[str, Any],
) -> Receipt:
    """Return the receipt as plain data. `output`, `source`: records of files (`digests.Digests`)."""
    graph, checkpoint = plan.graph, plan.graph.checkpoint
    refused = {each.witness for each in proof.testimonies if each.refused}
    runtimes = [name for name in _runtimes(plan) if name not in refused]
    apart = _otherwise(plan) if LLAMA_CPP in runtimes else []
    measured = {tensor.name: tensor for tensor in proof.tensors}
    tensors = []
    for step in plan.steps:
        record = step_record(step)
        if found := measured.get(step.name):  # --verify none measures nothing: the grade stays a promise
            record |= {"grade": found.grade, "max_error": found.max_error, "relative_rms": found.relative_rms}
            if found.encoded_again is not None:
                record["encoded_again"] = found.encoded_again
                record["encoded_again_share"] = round(found.sampled, 4)
            if found.corrected:
                record["rounding"] = FEEDBACK if found.encoded_again is None else SEARCH
            if found.band:
                record |= {"band": found.band, "outlier": found.outlier}
        tensors.append(record)
    receipt = {
        "ggferry": ggferry.__version__,
        "format": FORMAT,
        "source": {
            "files": list(source),
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "header": strict(dict(checkpoint.header)),
            "types": count_types(list(checkpoint.tensors.values())),
        },
        "output": {"files": list(output), "types": _output_types(plan)},
        "options": dict(options),
        "architecture": graph.architecture.name,
        "runtimes": {"run_it": runtimes, "none": not runtimes, **({"otherwise": {LLAMA_CPP: apart}} if apart else {})},
        "hparams": {
            name: {"value": param.value, "origin": param.origin, **_rounding(param.value)}
            for name, param in graph.hparams.items()
        },
        "metadata": {**{key: entry.origin for key, entry in plan.metadata.items()}, **_of_shards(plan)},
        "tensors": tensors,
        "dropped": dropped_records(graph),
        "tokenizer": dict(proof.tokenizer),
        "logits": proof.logits.as_dict() if proof.logits else None,
        **({"deltas": asdict(proof.deltas)} if proof.deltas else {}),
        **({"second_reader": asdict(proof.second_reader)} if proof.second_reader.requested else {}),
        "testimonies": [asdict(check) for check in proof.testimonies],
        "verified": proof.level,
        "notes": list(dict.fromkeys((*checkpoint.notes, *graph.notes, *plan.notes, *proof.notes))),
    }
    return cast("Receipt", receipt)


def dropped_records(graph: ModelGraph) -> list[DroppedRecord]:
    """Return the tensors of the source that are not in the output, as a receipt lists them."""
    return [
        {"name": each.ref.name, "file": each.ref.spans[0].file, "reason": each.reason, "loses": each.loses}
        for each in graph.dropped
    ]


def _of_shards(plan: Plan) -> dict[str, str]:
    """Return the origin of the key that ties shards together; empty for one file."""
    tied = len(plan.layouts) > 1 and plan.set_digest
    return {SET_DIGEST: "BLAKE3 of the BLAKE3 digests of all tensors' data in the shards"} if tied else {}


def _rounding(value: Any) -> dict[str, float]:
    """Return what the float32 of GGUF changes of an hparam, relative, where it does: both sides compute with that."""
    values = value if isinstance(value, tuple) else (value,)
    changed = [abs(as_stored(one) / one - 1) for one in values if isinstance(one, float) and one]
    return {"rounded_to_float32": most} if (most := max(changed, default=0.0)) > 0 else {}


def _runtimes(plan: Plan) -> list[str]:
    """Return the present-day programs that run the output.

    They are the architecture's, with llama.cpp only if its loader takes the file and its vocabulary.
    """
    named = list(plan.graph.runtimes)
    if LLAMA_CPP in named and plan.steps and (plan.objections or not loads(*_file(plan))):
        named.remove(LLAMA_CPP)
    return named


def _otherwise(plan: Plan) -> list[str]:
    """Return in what respects llama.cpp is known to compute something else from the output."""
    known = plan.graph.known_differences(LLAMA_CPP, plan.graph.sizes.get("n_ctx") or 0)
    return list(dict.fromkeys((*known, *(computed_differently(*_file(plan)) if plan.steps else ()))))


def _file(plan: Plan) -> tuple[str, dict[str, Value], list[str]]:
    """Return the output's architecture, its keys and the names of its tensors."""
    metadata = {key: entry.value for key, entry in plan.metadata.items()}
    return plan.graph.architecture.name, metadata, [step.name for step in plan.steps]


def in_llama_cpp(receipt: Mapping[str, Any], plan: Plan) -> str:
    """Return what the third line says of llama.cpp; empty where it runs the output as the model computes."""
    if LLAMA_CPP not in plan.graph.architecture.runtimes or not plan.steps:
        return ""
    if LLAMA_CPP not in receipt["runtimes"]["run_it"]:
        return "; llama.cpp does not run it (see the notes)"
    return "; llama.cpp computes otherwise (see the notes)" if "otherwise" in receipt["runtimes"] else ""


def _output_types(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for step in plan.steps:
        counts[step.type.name] = counts.get(step.type.name, 0) + 1
    return ", ".join(f"{name} ×{n}" for name, n in sorted(counts.items(), key=lambda item: -item[1]))


def to_json(receipt: Mapping[str, Any]) -> str:
    """Return the receipt as JSON text."""
    return printable_json(receipt, indent=1) + "\n"


def what_was_read(checkpoint: Checkpoint) -> str:
    """Return a line like 'GGJT v3, llama, 5 June – 21 August 2023 …, Q4_K ×13, F32 ×5'."""
    name = label_of(checkpoint.container)
    name += f" v{checkpoint.version}" if checkpoint.version is not None else ""
    types = count_types(list(checkpoint.tensors.values())) or "no tensors"
    family = checkpoint.layout if kind_of(checkpoint.container) is Kind.LEGACY else None
    return ", ".join(part for part in (name, family, checkpoint.era, types) if part)


def line_of(proof: Proof) -> str:
    """Return the last of the three lines for people: whether and how an output was proved, and what it lost.

    A file of which no tensor was compared though it has some is not proved, nor one of which nothing was.
    """
    if proof.tensors or (proof.level != "none" and proof.tokenizer.get("texts")):
        return f"proved   {_loss(proof)}{how_it_was_proved(proof)}"
    why = " (--verify none)" if proof.level == "none" else ""
    if proof.tokenizer.get("texts"):
        return f"not proved   no tensor was compared{why}; {_tokenized(proof.tokenizer)}"
    return f"not proved   nothing was compared{why}"


def _loss(proof: Proof) -> str:
    """Return, in words, by how much an output's results are others than the source's; empty below `LOSS`."""
    logits, worst = proof.logits, proof.worst
    if logits is not None:
        agree = 1.0 if logits.top1_agreement is None else logits.top1_agreement
        if logits.relative_rms <= LOSS and agree >= 1 - LOSS:
            return ""
        top1 = "" if logits.top1_agreement is None else f", top-1 agreement {agree:.0%}"
        return f"with loss ({logits.what.name} {logits.relative_rms:.2g} relative RMS from the source's{top1}); "
    if worst is None or worst.relative_rms <= LOSS:
        return ""
    return f"with loss ({worst.name} {worst.relative_rms:.2g} relative RMS from the source's); "


def how_it_was_proved(proof: Proof) -> str:
    """Return what was compared, then grades, worst error, logits, tokenizer."""
    grades: dict[str, int] = {}
    for tensor in proof.tensors:
        grades[tensor.grade] = grades.get(tensor.grade, 0) + 1
    parts = [", ".join(f"{count} {grade}" for grade, count in grades.items()) or "no tensors"]
    if second := proof.second_reader.line:
        parts.append(second)
    again = [tensor.encoded_again for tensor in proof.tensors if tensor.encoded_again is not None]
    if again:
        parts.append(f"{sum(again)} of {len(again)} rounded tensors encoded again to the same bytes{_sampled(proof)}")
    worst = proof.worst
    if worst is not None and worst.relative_rms:
        word = "scales rounded to f16" if worst.grade is Grade.RESCALED else "rounding"
        parts.append(f"largest relative RMS error {worst.relative_rms:.2g} ({worst.name}, {word})")
    if proof.deltas:
        deltas = proof.deltas
        parts.append(
            f"what {deltas.pairs} pairs add to their layers differs by {deltas.relative_rms:.2g} relative RMS at most"
        )
    elif proof.logits:
        logits = proof.logits
        top1 = "" if logits.top1_agreement is None else f", top-1 agreement {logits.top1_agreement:.0%}"
        parts.append(f"{logits.what.name} of both sides differ by {logits.relative_rms:.2g} relative RMS{top1}")
        if logits.embedding is not None:
            parts.append(f"what is made of a text differs by {logits.embedding:.2g}")
    elif proof.tensors:
        parts.append("no forward pass (--verify fast)" if proof.level == "fast" else "no forward pass is known")
    if proof.tokenizer.get("texts"):
        parts.append(_tokenized(proof.tokenizer))
    parts += [
        f"chat template rendered over {check.count} conversations{' alike' if ' and ' in check.witness else ''} "
        f"by {check.witness}"
        for check in proof.testimonies
        if check.what == CONVERSATIONS and check.why is None
    ]
    return "; ".join(parts if proof.level == "none" else (cross_check_line(proof.testimonies), *parts))


def _sampled(proof: Proof) -> str:
    """Return of how many tensors a sample was encoded again, in words."""
    sampled = sum(tensor.sampled < 1 for tensor in proof.tensors)
    return f" (of {sampled} a sample; the rest is, byte for byte, what the encoder gave)" if sampled else ""


def _tokenized(found: Mapping[str, Any]) -> str:
    """Return what became of the texts, and for how many GGUF cannot express the library's result."""
    line = f"{found['equal']} of {found['texts']} texts tokenize alike"
    excused = sum(found.get("excused", {}).values())
    return f"{line} ({excused} differ in what GGUF cannot say)" if excused else line
