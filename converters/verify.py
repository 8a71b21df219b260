"""The proof made again, of a file that stands already: `ggferry verify SOURCE OUTPUT`, and outputs that an archive's
run finds where it would write."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ggferry.converters.adapters.plan import is_adapter, understand_adapter
from ggferry.converters.adapters.prove import prove_adapter
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.convert import Request, make_plan, options_of, prove
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.proof.compare import Proof, verify
from ggferry.converters.proof.metadata_and_tokenizer import check_tokenizer
from ggferry.converters.proof.receipt import MAX_RECEIPT, SUFFIX, how_it_was_proved, make_receipt
from ggferry.converters.proof.tensors import Encoding
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.converters.write.watch_weights import check_sums
from ggferry.converters.write.write_tensors import check_replica
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    ChangedError,
    CorruptError,
    GgferryError,
    PassingError,
    UsageError,
    VerificationError,
)
from ggferry.formats.files.digests import Digests, Record, digest, file_record
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.imatrix import read_imatrix
from ggferry.support.progress import Stage
from ggferry.support.threads import workers


@dataclass(frozen=True, slots=True)
class Report:
    """The proof, what a user should know beside it, and the line that says it."""

    proof: Proof
    notes: list[str]
    line: str


def reverify(
    source: str,
    output: str,
    *,
    level: str,
    hparams: Mapping[str, str],
    vocab: VocabOptions,
    jobs: int | None,
    stage: Stage,
    base: str | None = None,
    arch: str | None = None,
    config: str | None = None,
    imatrix: str | None = None,
) -> Report:
    """Compare `output` with `source`. Where a receipt stands beside the output, its `--hparam` values are taken for
    what the source does not state, and both files must be the ones it was written for. `base`: of an adapter, its
    base model. `arch`, `config`: as given to the conversion. `imatrix`: the importance matrix the output was quantized
    with: then its bytes can be made again. Raises VerificationError."""
    if level not in ("fast", "full"):
        raise UsageError("--level", found=level, expected="fast, full")
    before, after = open_checkpoint(source, arch, config), open_checkpoint(output)
    try:
        receipt, notes = _receipt(after)
        if receipt:
            _check_digests(receipt, before, after)
            hparams = {**_stated(receipt), **hparams}
        if is_adapter(before) or is_adapter(after):
            permute = bool(receipt and receipt["options"].get("ggla_permute"))
            adapter = understand_adapter(before, base, hparams, permute)
            with stage("verifying", after.nbytes) as progress:
                proof = prove_adapter(adapter, after, level=level, jobs=jobs, progress=progress)
            return Report(proof, [*notes, *proof.notes], f"proved   {how_it_was_proved(proof)}")
        vocab_only = not after.tensors
        graph, mirror = understand(before, hparams, vocab_only), understand(after, vocab_only=vocab_only)
        if vocab == VocabOptions() and "tokenizer.ggml.tokens" not in after.metadata:
            vocab = VocabOptions(none=True)
            notes.append("the output has no vocabulary; the source's was not looked at")
        tokens = check_tokenizer(
            load_tokenizer(before, graph.sizes.get("n_vocab", 0), vocab),
            load_tokenizer(after, mirror.sizes.get("n_vocab", 0)),
            before,
            output,
        )
        encoding = Encoding(None if imatrix is None else read_imatrix(imatrix))
        proof = verify(graph, mirror, level=level, tokenizer=tokens, jobs=jobs, stage=stage, encoding=encoding)
        return Report(proof, [*notes, *proof.notes], f"proved   {how_it_was_proved(proof)}")
    finally:
        before.close()
        after.close()


def reprove(request: Request, stage: Stage) -> dict[str, Any]:
    """The receipt that converting would write of the finished output at `request.out`. A receipt beside it is not
    looked at: the source is planned, and the output read and proved, as if it had just been written.

    Raises VerificationError for a file that this conversion does not give, and what converting raises of the source.
    """
    assert request.out is not None
    before, threads = open_checkpoint(request.source, request.arch, request.config), workers(request.jobs)
    try:
        plan, tokenizer = make_plan(request, before)
        whole = plan.graph.checkpoint
        sums = check_sums(whole, stage, threads)
        with Digests(threads) as digests:
            source = digests.begin([file for file in whole.files if not isinstance(file, Dequantized)], beside=1)
            try:
                proof, written = _proved(request, plan, tokenizer, stage)
            except (PassingError, ChangedError):
                raise
            except GgferryError as error:
                raise VerificationError(f"not what this conversion gives: {error.message}", path=request.out) from None
            plan = replace(plan, notes=(*plan.notes, *sums))
            read = [take() for take in source]
        return make_receipt(plan, proof, written, read, options_of(plan, replace(request, level=proof.level)))
    finally:
        before.close()


def _proved(request: Request, plan: Plan, tokenizer: Tokenizer | None, stage: Stage) -> tuple[Proof, list[Record]]:
    """The proof of the output at `request.out`, and the records of its files."""
    assert request.out is not None
    for drop in plan.graph.dropped:
        check_replica(plan, drop)
    proof = prove(plan, tokenizer, request.out, request, stage)
    after = open_checkpoint(request.out)
    try:
        return proof, [file_record(file) for file in after.files]
    finally:
        after.close()


def _receipt(output: Checkpoint) -> tuple[dict[str, Any] | None, list[str]]:
    path = output.path + SUFFIX
    if not os.path.lexists(path):
        return None, ["no receipt beside the output: defaults stand for what the source does not state"]
    try:
        receipt = json.loads(read_bytes(path, MAX_RECEIPT))
        if not isinstance(receipt, dict) or not isinstance(receipt.get("options"), dict):
            raise ValueError("not a receipt")
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the receipt cannot be read: {error}", path=path) from None
    return receipt, []


def _stated(receipt: Mapping[str, Any]) -> dict[str, str]:
    stated = receipt["options"].get("hparams")
    return {str(key): str(value) for key, value in stated.items()} if isinstance(stated, dict) else {}


def _check_digests(receipt: Mapping[str, Any], *sides: Checkpoint) -> None:
    for name, side in zip(("source", "output"), sides, strict=True):
        records = receipt.get(name, {}).get("files", ())
        for record, file in zip(records, side.files, strict=False):
            found = digest(file)
            if record.get("blake3") != found:
                raise VerificationError(
                    f"not the {name} its receipt was written for", path=file.path, found=found,
                    expected=record.get("blake3"),
                )  # fmt: skip
