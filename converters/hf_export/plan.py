"""Write a model as a Hugging Face folder, prove it by reading it again, and publish it: the road back.

The proof is that of any conversion with the sides exchanged: the folder is opened as a source, of which the file at
hand would be the output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import ggferry
from ggferry.converters.conversion.options import OPTIONS
from ggferry.converters.conversion.request import Request, open_source_of
from ggferry.converters.conversion.run import Result, convert_together, depth_of, witnessed
from ggferry.converters.conversion_plan.output_metadata import assemble
from ggferry.converters.conversion_plan.steps import Options, count_types
from ggferry.converters.forward.device import computing_on
from ggferry.converters.hf_export.compare import compare
from ggferry.converters.hf_export.known_classes import KnownClass
from ggferry.converters.hf_export.model_card import model_card
from ggferry.converters.hf_export.plan import BackPlan, plan_back
from ggferry.converters.hf_export.shards import INDEX, Entry, Shards, ShardWriter, plan_shards
from ggferry.converters.hf_export.tokenizer_files import as_json, differences, generation, special_ids, tokenizer_files
from ggferry.converters.metadata.beside import MAX_RECEIPT
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.compare import Proof, of_texts
from ggferry.converters.proof.receipt import FORMAT, line_of, to_json, what_was_read
from ggferry.converters.proof.references.examine import chosen
from ggferry.converters.proof.vocabulary import Vocabularies, check_tokenizer
from ggferry.converters.tokenizers.files.find import NO_SPACE_PREFIX
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.converters.write.watch_weights import check_sums
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, RefusedError, UnsupportedError, UsageError, VerificationError
from ggferry.formats.files.digests import Digests, digest
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import Opened, recorded, unrecorded
from ggferry.formats.files.output_folder import OutputFolder
from ggferry.formats.files.sources import LocalFile, known_by
from ggferry.formats.json_files.text import load_object
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers

RECEIPT = "ggferry.receipt.json"
_TAKES = {
    "out", "to", "dtype", "max_shard_size", "force", "arch", "config", "hparams", "tokenizer_model", "tokenizer", "pre",
    "trim_vocab", "no_vocab", "model_name", "metadata", "verify", "witness", "text", "allow_nonfinite", "jobs",
}  # fmt: skip
"""The options of `convert` that mean something for a folder."""
_SEVERAL = "several types are for --to gguf"
Approve = Callable[[Mapping[str, Any]], None]
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """Everything that will be written.

    Attributes:
        back: Class, configuration and tensors.
        shards: Where the tensors go.
        texts: The small files, by name.
        tokenizer: The vocabulary; None where none is written.
        notes: What the user should know.
    """

    back: BackPlan
    shards: Shards
    texts: Mapping[str, bytes]
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]


def carry_out(
    requests: Sequence[Request], stage: Stage = silent, approve: Approve = lambda receipt: None
) -> list[Result]:
    """Convert to the format that is asked for: a folder, or GGUF files of one source or several types.

    Raises one of `formats.errors`.
    """
    if all(request.to == "gguf" for request in requests):
        return list(convert_together(requests, stage, approve))
    if requests[1:]:
        raise UsageError(_SEVERAL)
    return [export(requests[0], stage, approve)]


def export(request: Request, stage: Stage = silent, approve: Approve = lambda receipt: None) -> Result:
    """Write one model as a folder in Hugging Face's form, prove and publish it.

    Args:
        request: What to convert; `out` names the folder, by default one beside the source.
        stage: Opens a progress display for each phase.
        approve: Called with the receipt of the proven folder before it gets its name; what it raises ends the run.

    Raises one of `formats.errors`; then nothing is left but the source.
    """
    _check_options(request)
    chosen(request.witness, request.level)
    with recorded() as opened, computing_on(request.device), ExitStack() as stack:
        checkpoint = open_source_of(request)
        stack.callback(checkpoint.close)
        opened.add_beside(checkpoint.sidecars.values())
        digests = stack.enter_context(Digests(workers(request.jobs)))
        source = digests.begin(checkpoint.files, beside=1)
        plan = plan_folder(request, checkpoint)
        with unrecorded():
            return _written(request, plan, source, opened, stage, approve)


def described(requests: Sequence[Request]) -> dict[str, Any]:
    """Return what `carry_out` would write of one request for a folder, as plain data; no tensor data is read.

    Raises one of `formats.errors`, as writing it would before it begins.
    """
    if requests[1:]:
        raise UsageError(_SEVERAL)
    request = requests[0]
    _check_options(request)
    chosen(request.witness, request.level)
    checkpoint = open_source_of(request)
    try:
        plan = plan_folder(request, checkpoint)
    finally:
        checkpoint.close()
    sizes = {**plan.shards.sizes, **{name: len(data) for name, data in plan.texts.items()}}
    return {
        "to": request.to,
        "folder": _target(request),
        "class": plan.back.known.name,
        "architecture": plan.back.graph.architecture.name,
        "tensors": [{**_made_of(entry), "bytes": entry.nbytes} for entry in plan.shards.entries],
        "files": [{"name": name, "bytes": size} for name, size in sizes.items()],
        "bytes_written": sum(sizes.values()),
        "notes": list(plan.notes),
    }


def _check_options(request: Request) -> None:
    """Raise UsageError for an option that only GGUF has."""
    default = Request(request.source)
    for each in OPTIONS:
        if "convert" in each.commands.split() and each.target and each.name not in _TAKES:
            holder, _, key = each.target.rpartition(".")
            mine, plain = ((getattr(one, holder) if holder else one) for one in (request, default))
            if getattr(mine, key) != getattr(plain, key):
                raise UsageError(f"{each.flag} is for --to gguf")


def plan_folder(request: Request, checkpoint: Checkpoint) -> FolderPlan:
    """Return what will be written, without reading tensor data. Raises one of `formats.errors`."""
    graph = understand(checkpoint, request.hparams, rerank="no")  # a folder keeps the whole output matrix
    back = plan_back(graph)
    tokenizer = load_tokenizer(checkpoint, graph.sizes.get("n_vocab", 0), request.vocab)
    shards = plan_shards(back.tensors, request.dtype, request.max_shard_size)
    entries, _ = assemble(graph, (), tokenizer, Options(), request.model_name, request.metadata)
    general = {key.removeprefix("general."): entry.value.data for key, entry in entries.items()}
    texts = _texts(back, shards, tokenizer, general, checkpoint.path)
    none = () if tokenizer else ("no vocabulary: the folder has no tokenizer",)
    values = tuple(f"{entry.tensor.name} and all that went through {layout} cannot be undone bit for bit"
                   for layout, entry in _inexact(shards).items())  # fmt: skip
    notes = tuple(dict.fromkeys((*checkpoint.notes, *graph.notes, *back.notes, *none, *values)))
    return FolderPlan(back, shards, texts, tokenizer, notes)


def _inexact(shards: Shards) -> dict[str, Entry]:
    """Return the layouts that change values, each with the first tensor that has it."""
    found: dict[str, Entry] = {}
    for entry in shards.entries:
        if not entry.tensor.lossless:
            found.setdefault(entry.tensor.layouts[-1], entry)
    return found


def _texts(
    back: BackPlan, shards: Shards, tokenizer: Tokenizer | None, general: Mapping[str, Any], path: str
) -> dict[str, bytes]:
    config = {**back.config, "torch_dtype": _TYPES[_main_type(shards)]}
    files: dict[str, bytes] = {}
    holder = config[back.known.within[:-1]] if back.known.within else config
    holder |= _ids(back.known, tokenizer)
    if tokenizer is not None:
        _check_space(back.known, tokenizer, path)
        files = tokenizer_files(tokenizer, path)
        files["generation_config.json"] = as_json(generation(tokenizer))
    told = f"Converted by ggferry {ggferry.__version__} from `{os.path.basename(path)}`; see `{RECEIPT}`."
    index = shards.index()
    return {
        "config.json": as_json(config), **files, "README.md": model_card(general, told),
        **({INDEX: index} if index else {}),
    }  # fmt: skip


def _check_space(known: KnownClass, tokenizer: Tokenizer, path: str) -> None:
    """Raise UnsupportedError for a vocabulary with a space before the text, where the class's tokenizer puts none."""
    spaced = tokenizer.model == "llama" and tokenizer.flags.get("add_space_prefix", True)
    if spaced and tokenizer.huggingface_json is None and known.model_type.startswith(NO_SPACE_PREFIX):
        raise UnsupportedError(
            "transformers puts no space before a text for this class, this vocabulary does", path=path,
            found=known.name, hint="--no-vocab writes the tensors alone",
        )  # fmt: skip


def _ids(known: KnownClass, tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Return what config.json says of special tokens, null for what there is not: a class may have some by default."""
    named = (key for key in ("bos_token_id", "eos_token_id", "pad_token_id") if known.within + key not in known.solid)
    found: dict[str, int | None] = dict.fromkeys(named)
    found |= special_ids(tokenizer) if tokenizer is not None else {}
    if known.model_type in ("t5", "umt5"):
        found["decoder_start_token_id"] = found.get("pad_token_id") or 0
    return found


def _main_type(shards: Shards) -> str:
    """Return the type of most bytes of weights."""
    weights: dict[str, int] = {}
    for entry in shards.entries:
        weights[entry.type.name] = weights.get(entry.type.name, 0) + entry.tensor.elements
    return max(weights, key=lambda name: weights[name], default="F32")


def _written(
    request: Request, plan: FolderPlan, source: Sequence[Any], opened: Opened, stage: Stage, approve: Approve
) -> Result:
    """Write, read again, prove and publish."""
    checkpoint, threads = plan.back.graph.checkpoint, workers(request.jobs)
    target = _target(request)
    with OutputFolder(target, overwrite=request.force, ours=is_ours, sources=opened.identities) as folder:
        _check_room(target, plan)
        sums = check_sums(checkpoint, stage, threads)
        for name, data in plan.texts.items():
            folder.write(name, data)
        allow = request.options.allow_nonfinite
        writer = ShardWriter(plan.shards, folder.path, checkpoint.path, allow)
        with stage(Phase.WRITING, plan.shards.nbytes) as progress:
            writer.run(threads, progress)
        bad = [f"{name} holds {count} values that are not finite" for name, count in writer.not_finite.items()]
        notes = (*plan.notes, *sums, *bad)
        level = "fast" if bad and request.level == "full" else request.level
        proof = _prove(replace(request, level=level), plan, folder.path, stage)
        files = [_record(folder.file(name), name) for name in (*plan.shards.names, *plan.texts)]
        receipt = _receipt(replace(request, level=level), plan, proof, files, [take() for take in source], notes)
        approve(receipt)
        opened.check_unchanged()
        folder.write(RECEIPT, to_json(receipt).encode("utf-8", "backslashreplace"))
        folder.publish()
    assumed = {name: param for name, param in plan.back.graph.hparams.items() if param.known is Known.ASSUMED}
    paths = tuple(os.path.join(target, name) for name in (*plan.shards.names, *plan.texts))
    return Result(target, receipt, _lines(plan, proof, target), paths, proof, assumed, os.path.join(target, RECEIPT))


def _target(request: Request) -> str:
    """Return the folder to write: as named, or of the source's name without its ending, beside it or where we run.

    The latter is asked for by naming the folder we run in, as for a source that is a URL.
    """
    out = request.out
    here = out is not None and os.path.isdir(out) and os.path.samefile(out, os.curdir)
    if out is not None and not here:
        return os.path.normpath(out)
    stem, ending = os.path.splitext(os.path.basename(os.path.normpath(request.source)))
    name = stem if ending and not os.path.isdir(request.source) else f"{stem}{ending}-safetensors"
    return os.path.join(out if out is not None else os.path.dirname(os.path.abspath(request.source)), name)


def _check_room(target: str, plan: FolderPlan) -> None:
    parent = os.path.dirname(os.path.abspath(target))
    state = os.statvfs(parent)
    if state.f_bavail * state.f_frsize < plan.shards.nbytes:
        raise RefusedError(
            "not enough room", path=parent, found=f"{state.f_bavail * state.f_frsize:,} bytes free",
            expected=f"{plan.shards.nbytes:,} bytes",
        )  # fmt: skip


# --- the proof ------------------------------------------------------------------------------------------------


def _prove(request: Request, plan: FolderPlan, path: str, stage: Stage) -> Proof:
    """Read the folder again without knowledge of the plan, and hold the source against it.

    Raises VerificationError where they differ, and another of `formats.errors` for a folder that cannot be read.
    """
    again = open_checkpoint(Named(path))
    try:
        output = understand(again)
        tokens = _tokens(request, plan, again, output.sizes.get("n_vocab", 0))
        if request.level == "none":
            return Proof("none", (), {}, None, tokens, testimonies=of_texts(tokens))
        narrowed = {node.name: entry.type for entry in plan.shards.entries if entry.type != entry.tensor.type
                    for node in entry.tensor.nodes if entry.type.name != "F32"}  # fmt: skip
        proof = compare(
            output, plan.back.graph, narrowed, level=request.level, tokenizer=tokens, jobs=request.jobs, stage=stage
        )
        _check_exact(plan, proof, path)
        return witnessed(proof, output, plan.back.graph, request, stage)
    finally:
        again.close()


def _tokens(request: Request, plan: FolderPlan, again: Checkpoint, rows: int) -> dict[str, Any]:
    """Prove the vocabulary: the library of the written files encodes as the source's encoder does."""
    if plan.tokenizer is None:
        return {"texts": 0, "equal": 0, "why": "no vocabulary"}
    read = load_tokenizer(again, rows)
    if read is not None and (apart := differences(plan.tokenizer, read)):
        raise VerificationError("the written tokenizer is another", path=again.path, found=", ".join(apart))
    return check_tokenizer(Vocabularies(read, plan.tokenizer, again), again.path, depth_of(request))


def _check_exact(plan: FolderPlan, proof: Proof, path: str) -> None:
    """Check that nothing differs where nothing was rounded. Raises VerificationError."""
    rounded = {node.name for entry in plan.shards.entries for node in entry.tensor.nodes
               if entry.max_error or not entry.tensor.lossless}  # fmt: skip
    for found in proof.tensors:
        if found.max_error and found.name not in rounded:
            raise VerificationError(f"{found.name} differs from the source", path=path, found=found.max_error)


# --- what is said ------------------------------------------------------------------------------------------------


def _receipt(
    request: Request, plan: FolderPlan, proof: Proof, files: Sequence[Any], source: Sequence[Any], notes: Sequence[str]
) -> dict[str, Any]:
    """Return the receipt as plain data: what every tensor was made of, and what was proved."""
    back, checkpoint = plan.back, plan.back.graph.checkpoint
    return {
        "ggferry": ggferry.__version__,
        "format": FORMAT,
        "to": "safetensors",
        "source": {
            "files": list(source), "container": checkpoint.container, "version": checkpoint.version,
            "era": checkpoint.era, "types": count_types(list(checkpoint.tensors.values())),
        },
        "output": {"files": list(files), "class": back.known.name, "model_type": back.known.model_type},
        "options": {"dtype": request.dtype, "max_shard_size": request.max_shard_size, "verify": request.level,
                    "hparams": dict(request.hparams)},
        "architecture": back.graph.architecture.name,
        "hparams": {name: {"value": param.value, "origin": param.origin} for name, param in back.graph.hparams.items()},
        "tensors": [_tensor(entry) for entry in plan.shards.entries],
        "tokenizer": dict(proof.tokenizer),
        "logits": proof.logits.as_dict() if proof.logits else None,
        "testimonies": [asdict(said) for said in proof.testimonies],
        "notes": list(dict.fromkeys((*notes, *proof.notes))),
    }  # fmt: skip


def _tensor(entry: Entry) -> dict[str, Any]:
    return {
        **_made_of(entry), "exact": entry.tensor.lossless and not entry.max_error, "max_error": entry.max_error,
    }  # fmt: skip


def _made_of(entry: Entry) -> dict[str, Any]:
    made = [{"name": node.name, "types": sorted({ref.type.name for ref in node.inputs})} for node in entry.tensor.nodes]
    found = {"name": entry.tensor.name, "shape": list(entry.tensor.shape), "type": entry.type.name, "of": made}
    if entry.tensor.layouts:
        found["undone"] = list(entry.tensor.layouts)
    return found


def _lines(plan: FolderPlan, proof: Proof, target: str) -> tuple[str, str, str]:
    checkpoint, shards = plan.back.graph.checkpoint, plan.shards
    kinds = ", ".join(dict.fromkeys(entry.type.name for entry in shards.entries))
    count = f"{len(shards.names)} files" if shards.names[1:] else "1 file"
    return (
        f"read     {known_by(checkpoint.path)}: {what_was_read(checkpoint)}",
        f"wrote    {target}: {plan.back.known.name}, {len(shards.entries)} tensors ({kinds}) in {count}, "
        f"{shards.nbytes:,} bytes",
        line_of(proof),
    )


def _record(path: str, name: str) -> dict[str, Any]:
    with LocalFile(Named(path)) as file:
        return {"name": name, "bytes": file.size, "blake3": digest(file)}


def is_ours(path: str) -> bool:
    """Return whether a folder holds what its receipt lists, byte for byte, and nothing else."""
    try:
        receipt = load_object(os.path.join(path, RECEIPT), MAX_RECEIPT)
        listed = {str(file["name"]): file for file in receipt["output"]["files"]}
        if set(os.listdir(path)) != {*listed, RECEIPT}:
            return False
        return all(_record(os.path.join(path, name), name) == record for name, record in listed.items())
    except (GgferryError, KeyError, TypeError, OSError):
        return False
