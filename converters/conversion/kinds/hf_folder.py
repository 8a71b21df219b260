"""A folder in Hugging Face's form: export of a model to what transformers loads.

The proof is that of any conversion with the sides exchanged: the folder is opened as a source, of which the given file
would be the output.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import cast

import ggferry
from ggferry.converters.conversion.kinds.kind import PlannedOutput, check_options, check_with_references, depth_of
from ggferry.converters.conversion.request import HF_FOLDER, OutputSpec, Request
from ggferry.converters.conversion_plan.steps import count_types
from ggferry.converters.hf_export.compare import Rounded, compare
from ggferry.converters.hf_export.plan import FolderOptions, FolderPlan, Form, plan_folder
from ggferry.converters.hf_export.shards import Entry, ShardWriter
from ggferry.converters.hf_export.tokenizer_files import differences
from ggferry.converters.metadata.beside import FOLDER_RECEIPT, MAX_RECEIPT
from ggferry.converters.metadata.receipt_fields import (
    CrossCheckRecord,
    FolderReceipt,
    FolderTensor,
    OutputReceipt,
    PartRecord,
    TokenizerRecord,
)
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.compare import Proof, of_texts
from ggferry.converters.proof.receipt import FORMAT, dropped_records, line_of
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.vocabulary import Vocabularies, check_tokenizer
from ggferry.converters.schema.fused_attention import is_joined
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, VerificationError
from ggferry.formats.files.digests import Record, digest
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.output_folder import OutputFolder
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.support.progress import Progress, Stage

TAKES = {
    "out",
    "to",
    "dtype",
    "max_shard_size",
    "force",
    "arch",
    "config",
    "hparams",
    "tokenizer_model",
    "tokenizer",
    "pre",
    "trim_vocab",
    "no_vocab",
    "model_name",
    "metadata",
    "verify",
    "witness",
    "text",
    "allow_nonfinite",
    "jobs",
}
"""The options of `convert` that mean something for a folder."""


class FolderTarget:
    """A folder until it gets its name."""

    def __init__(self, folder: OutputFolder) -> None:
        """`folder`: entered."""
        self.folder = folder

    @property
    def partials(self) -> tuple[str, ...]:
        """Where the folder grows."""
        return (self.folder.path,)

    def finish(self) -> None:
        """Every file is finished as it is written."""

    def flush(self) -> None:
        """Every file is flushed as it is written."""


class HfFolderKind:
    """A Hugging Face folder: safetensors shards, config.json, tokenizer files, a model card."""

    name = HF_FOLDER
    takes: Collection[str] = TAKES

    @property
    def outtypes(self) -> Sequence[str]:
        """None but what the source has; `dtype` says of what plain type the weights are."""
        return ("keep",)

    def check(self, request: Request) -> None:
        """Raise UsageError for an option that only GGUF has."""
        check_options(request, self.takes)

    def form(self, request: Request) -> Form:
        """Return for which library the folder is written."""
        return Form()

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Return the folder."""
        found = []
        for one in map(request.of_output, specs):
            options = FolderOptions(one.hparams, one.vocab, one.dtype, one.max_shard_size, one.model_name, one.metadata)
            plan = plan_folder(options, checkpoint, self.form(one))
            found.append(PlannedOutput(self, one, plan, plan.tokenizer, (_folder(one),)))
        return found

    def describe(self, output: PlannedOutput) -> JSONObject:
        """Return the tensors, the files and their sizes."""
        plan = plan_in(output)
        sizes = {**plan.shards.sizes, **{name: len(data) for name, data in plan.texts.items()}}
        return {
            "to": output.request.to,
            "folder": output.paths[0],
            "class": plan.back.known.name,
            "architecture": plan.graph.architecture.name,
            "tensors": [{**_made_of(entry), "bytes": entry.nbytes} for entry in plan.shards.entries],
            "files": [{"name": name, "bytes": size} for name, size in sizes.items()],
            "bytes_written": sum(sizes.values()),
            "notes": list(plan.notes),
        }

    # --- writing ---------------------------------------------------------------------------------------------------

    def recover(self, output: PlannedOutput) -> bool:
        """Return False: a folder gets its name in one step."""
        return False

    @contextmanager
    def target(self, output: PlannedOutput, sources: Mapping[Identity, str], same: bool) -> Iterator[FolderTarget]:
        """Claim the name of the folder."""
        with OutputFolder(output.paths[0], overwrite=output.request.force, ours=is_ours, sources=sources) as folder:
            yield FolderTarget(folder)

    def writer(self, output: PlannedOutput, target: FolderTarget) -> ShardWriter:
        """Write the small files, and return what writes the shards."""
        plan = plan_in(output)
        for name, data in plan.texts.items():
            target.folder.write(name, data)
        allow = output.request.options.allow_nonfinite
        return ShardWriter(plan.shards, target.folder.path, plan.graph.checkpoint.path, allow)

    def write(self, writers: Sequence[ShardWriter], threads: int, progress: Progress) -> None:
        """Write the shards."""
        for writer in writers:
            writer.run(threads, progress)

    def written(self, output: PlannedOutput, writer: ShardWriter, notes: Sequence[str]) -> PlannedOutput:
        """Return the output with the notes of writing."""
        plan, request = plan_in(output), output.request
        bad = [f"{name} holds {count} values that are not finite" for name, count in writer.not_finite.items()]
        if bad and request.level == "full":  # a forward pass with NaN proves nothing
            request = replace(request, level="fast")
        return replace(output, plan=replace(plan, notes=(*plan.notes, *notes, *bad)), request=request)

    def prefetch(self, outputs: Sequence[PlannedOutput], writers: Sequence[ShardWriter]) -> None:
        """Nothing is loaded in advance."""

    # --- proof -----------------------------------------------------------------------------------------------------

    def reopen(self, output: PlannedOutput, path: str) -> Checkpoint:
        """Open the folder as a source."""
        return open_checkpoint(Named(path))

    def prove(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], stage: Stage, beside: Beside | None
    ) -> list[Proof]:
        """Compare the model in the folder with the source, as if that had been made from it."""
        return [_proof(output, again, stage) for output, again in zip(outputs, opened, strict=True)]

    def records(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], threads: int
    ) -> list[list[Record]]:
        """Return the digests of the shards and the small files."""
        folders = [os.path.dirname(again.path) for again in opened]
        return [
            [_record(os.path.join(folder, name), name) for name in (*plan.shards.names, *plan.texts)]
            for folder, plan in zip(folders, map(plan_in, outputs), strict=True)
        ]

    def receipt(
        self, output: PlannedOutput, proof: Proof, files: Sequence[Record], source: Sequence[Record]
    ) -> FolderReceipt:
        """Return what every tensor was made of, and what was proved."""
        plan, request = plan_in(output), output.request
        back, checkpoint = plan.back, plan.graph.checkpoint
        values = back.graph.hparams.items()
        return {
            "ggferry": ggferry.__version__,
            "format": FORMAT,
            "to": request.to,
            "source": {
                "files": list(source),
                "container": checkpoint.container,
                "version": checkpoint.version,
                "era": checkpoint.era,
                "types": count_types(list(checkpoint.tensors.values())),
            },
            "output": {"files": list(files), "class": back.known.name, "model_type": back.known.model_type},
            "options": self.declared(request),
            "architecture": back.graph.architecture.name,
            "hparams": {name: {"value": param.value, "origin": param.origin} for name, param in values},
            "tensors": [_tensor(entry) for entry in plan.shards.entries],
            "dropped": dropped_records(plan.graph),
            "verified": proof.level,
            "tokenizer": {**proof.tokenizer},
            "logits": proof.logits.as_dict() if proof.logits else None,
            "testimonies": [cast("CrossCheckRecord", asdict(found)) for found in proof.testimonies],
            "notes": list(dict.fromkeys((*plan.notes, *proof.notes))),
        }

    def declared(self, request: Request) -> JSONObject:
        """Return the options as a receipt states them."""
        return {
            **self.own_options(request),
            "dtype": request.dtype,
            "max_shard_size": request.max_shard_size,
            "verify": request.level,
            "hparams": dict(request.hparams),
        }

    def own_options(self, request: Request) -> JSONObject:
        """Return the options that a receipt states, of those that the kind alone has."""
        return {}

    def receipt_path(self, output: PlannedOutput) -> str:
        """Return the receipt's place in the folder."""
        return os.path.join(output.paths[0], FOLDER_RECEIPT)

    def paths(self, output: PlannedOutput) -> tuple[str, ...]:
        """Return the files of the folder, without the receipt."""
        plan = plan_in(output)
        return tuple(os.path.join(output.paths[0], name) for name in (*plan.shards.names, *plan.texts))

    def wrote_line(self, output: PlannedOutput) -> str:
        """Name the folder, the class, the tensors and their types."""
        plan = plan_in(output)
        kinds = ", ".join(dict.fromkeys(entry.type.name for entry in plan.shards.entries))
        count = f"{len(plan.shards.names)} files" if plan.shards.names[1:] else "1 file"
        return (
            f"wrote    {output.paths[0]}: {plan.back.known.name}, {len(plan.shards.entries)} tensors ({kinds}) in "
            f"{count}, {plan.bytes_written:,} bytes"
        )

    def proved_line(self, output: PlannedOutput, proof: Proof, receipt: OutputReceipt) -> str:
        """Say what was compared."""
        return line_of(proof)

    def publish(self, targets: Sequence[FolderTarget], receipts: Sequence[bytes]) -> None:
        """Put the receipt into the folder and give it its name."""
        for target, text in zip(targets, receipts, strict=True):
            target.folder.write(FOLDER_RECEIPT, text)
            target.folder.publish()


def plan_in(output: PlannedOutput) -> FolderPlan:
    """Return the plan of a folder."""
    assert isinstance(output.plan, FolderPlan)
    return output.plan


def _folder(request: Request) -> str:
    """Return the folder to write: as named, or of the source's name without its ending, beside it or where we run.

    The latter is asked for by naming the folder we run in, as for a source that is a URL.
    """
    out = request.out
    here = out is not None and os.path.isdir(out) and os.path.samefile(out, os.curdir)
    if out is not None and not here:
        return os.path.normpath(out)
    stem, ending = os.path.splitext(os.path.basename(os.path.normpath(request.source)))
    name = stem if ending and not os.path.isdir(request.source) else f"{stem}{ending}-{request.to}"
    return os.path.join(out if out is not None else os.path.dirname(os.path.abspath(request.source)), name)


def _proof(output: PlannedOutput, again: Checkpoint, stage: Stage) -> Proof:
    """Compare a folder that was opened again with the source. Raises VerificationError where they differ."""
    plan, request = plan_in(output), output.request
    graph = understand(again, fuse_qkv=is_joined(plan.graph.architecture))
    tokens = _tokens(request, plan, again, graph.sizes.get("n_vocab", 0))
    if request.level == "none":
        return Proof("none", (), {}, None, tokens, testimonies=of_texts(tokens))
    rounded = {
        node.name: Rounded(entry.type, entry.encoded)
        for entry in plan.shards.entries
        if entry.narrowed or entry.encoded
        for node in entry.tensor.nodes
    }
    proof = compare(graph, plan.graph, rounded, level=request.level, tokenizer=tokens, jobs=request.jobs, stage=stage)
    _check_exact(plan, proof, again.path)
    return check_with_references(proof, graph, plan.graph, request, stage)


def _tokens(request: Request, plan: FolderPlan, again: Checkpoint, rows: int) -> TokenizerRecord:
    """Prove the vocabulary: the library of the written files encodes as the source's encoder does."""
    if plan.tokenizer is None:
        return {"texts": 0, "equal": 0, "why": "no vocabulary"}
    read = load_tokenizer(again, rows)
    if read is not None and (apart := differences(plan.tokenizer, read)):
        raise VerificationError("the written tokenizer is another", path=again.path, found=", ".join(apart))
    return check_tokenizer(Vocabularies(read, plan.tokenizer, again), again.path, depth_of(request))


def _check_exact(plan: FolderPlan, proof: Proof, path: str) -> None:
    """Check that nothing differs where nothing was rounded. Raises VerificationError."""
    rounded = {
        node.name
        for entry in plan.shards.entries
        for node in entry.tensor.nodes
        if entry.narrowed or entry.encoded or not entry.tensor.lossless
    }
    for found in proof.tensors:
        if found.max_error and found.name not in rounded:
            raise VerificationError(f"{found.name} differs from the source", path=path, found=found.max_error)


def _tensor(entry: Entry) -> FolderTensor:
    return {
        **_made_of(entry),
        "exact": entry.tensor.lossless and not entry.max_error,
        "max_error": entry.max_error,
    }


def _made_of(entry: Entry) -> FolderTensor:
    nodes = entry.tensor.nodes
    made: list[PartRecord] = [
        {"name": node.name, "types": sorted({ref.type.name for ref in node.inputs})} for node in nodes
    ]
    found: FolderTensor = {
        "name": entry.tensor.name,
        "shape": list(entry.tensor.shape),
        "type": entry.type.name,
        "of": made,
    }
    if entry.packing is not None:
        found["packed"] = entry.packing.form
    if entry.tensor.layouts:
        found["undone"] = list(entry.tensor.layouts)
    return found


def _record(path: str, name: str) -> Record:
    with LocalFile(Named(path)) as file:
        return {"name": name, "bytes": file.size, "blake3": digest(file)}


def is_ours(path: str) -> bool:
    """Return whether a folder holds what its receipt lists, byte for byte, and nothing else."""
    try:
        receipt = load_object(os.path.join(path, FOLDER_RECEIPT), MAX_RECEIPT)
        listed = {str(file["name"]): file for file in receipt["output"]["files"]}
        if set(os.listdir(path)) != {*listed, FOLDER_RECEIPT}:
            return False
        return all(_record(os.path.join(path, name), name) == record for name, record in listed.items())
    except (GgferryError, KeyError, TypeError, OSError):
        return False
