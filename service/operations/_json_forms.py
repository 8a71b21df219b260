"""What `--json` prints, where no record of its own says it; `tools/json_schemas.py` makes docs/schemas of these.

Sizes are bytes, and shapes have the outermost axis first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.converters.analysis.doctor import Remedy
from ggferry.converters.analysis.sizes import Share
from ggferry.converters.analysis.validate import Finding, Runtime
from ggferry.converters.conversion.summary import OutputSummary
from ggferry.converters.forward.imatrix_files import ExpertTokens
from ggferry.converters.metadata.receipt_fields import (
    LogitsRecord,
    OutputReceipt,
    TensorRecord,
    TokenizerRecord,
)
from ggferry.converters.proof.compare import DeltaProof
from ggferry.converters.proof.metadata import KeyProof
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.second_reader.check import SecondReading
from ggferry.converters.proof.tensors import TensorProof
from ggferry.converters.rewrite.block_check import ChangedBlock
from ggferry.converters.supported import Family, KindOfBlock, OutType
from ggferry.service.operations._rewritten import PlannedFile
from ggferry.service.operations.publish import Publication
from ggferry.service.records.fields import DifferenceFields

# --- convert, quantize ----------------------------------------------------------------------------------------------


class MmprojFile(TypedDict):
    """The mmproj file that was written beside a model."""

    path: str
    receipt: OutputReceipt


class ConvertedFile(TypedDict):
    """A file or folder that was written, with its receipt."""

    path: str
    receipt: OutputReceipt
    mmproj: NotRequired[MmprojFile]


class ConvertedFiles(TypedDict):
    """Several outputs of one source, and a table of them."""

    outputs: list[ConvertedFile]
    table: Sequence[OutputSummary]


class PublishedConversion(ConvertedFiles):
    """Outputs that were published; `kept`, `published_before`: those of an earlier run; `removed`: paths."""

    published: Sequence[Publication]
    kept: list[str]
    published_before: list[str]
    removed: list[str]


class PlannedDrop(TypedDict):
    """A tensor of the source that will not be in the output."""

    name: str
    reason: str
    loses: bool


class PlannedKey(TypedDict):
    """A key of the output: its type, and where its value is from."""

    type: str
    origin: str


class PlannedOutput(TypedDict):
    """What `--dry-run` says of a GGUF file."""

    source: str
    architecture: str
    tensors: list[TensorRecord]
    notes: list[str]
    dropped: list[PlannedDrop]
    metadata: Mapping[str, PlannedKey]
    bytes_read: int
    bytes_written: int


class SizedFile(TypedDict):
    """A file and its size."""

    name: str
    bytes: int


PlannedFolder = TypedDict(
    "PlannedFolder",
    {
        "to": str,
        "folder": str,
        "class": str,
        "architecture": str,
        "tensors": Sequence[Mapping[str, Any]],
        "files": list[SizedFile],
        "bytes_written": int,
        "notes": list[str],
    },
)
"""What `--dry-run` says of a folder."""


class PlannedOutputs(TypedDict):
    """What `--dry-run` says of several outputs; `published`: the card and the files of `--publish`."""

    plans: Sequence[PlannedOutput | PlannedFolder]
    published: NotRequired[Publication]


# --- verify ---------------------------------------------------------------------------------------------------------


class VerifiedOutput(TypedDict):
    """An output that was compared with its source."""

    verified: bool
    level: str
    tensors: Sequence[TensorProof]
    hparams: Mapping[str, Any]
    logits: LogitsRecord | None
    tokenizer: TokenizerRecord
    deltas: DeltaProof | None
    testimonies: Sequence[CrossCheck]
    second_reader: SecondReading
    keys: KeyProof
    notes: list[str]


class ExaminedFile(TypedDict):
    """A file that was judged by itself."""

    path: str
    sound: bool
    what: str
    architecture: str | None
    tensors: int
    findings: Sequence[Finding]
    runtimes: Sequence[Runtime]


class SignedFile(TypedDict):
    """A file whose signature was checked, and is by the key."""

    path: str
    signed: bool


class CheckedBlocks(TypedDict):
    """A file whose blocks were held against its receipt (`rewrite.block_check.BlockCheck`)."""

    path: str
    same: bool
    files: Sequence[str]
    blocks: int
    checked: int
    bytes: int
    bytes_read: int
    changed: Sequence[ChangedBlock]
    chance: float


# --- inspect --------------------------------------------------------------------------------------------------------


class FileSize(TypedDict):
    """A file of a model."""

    path: str
    bytes: int


class InspectedSpan(TypedDict):
    """A run of a tensor's bytes: in which file, from which byte, and the shape of what lies there."""

    file: int
    offset: int
    shape: list[int]


class InspectedTensor(TypedDict):
    """A tensor as its header states it."""

    name: str
    type: str
    shape: list[int]
    offset: int
    bytes: int
    spans: list[InspectedSpan]


class InspectedToken(TypedDict):
    """A token of the vocabulary."""

    id: int
    text: str
    type: str | None
    score: float | None


class Sizes(TypedDict):
    """How the bytes are spent."""

    parameters: int
    bits_per_weight: float
    by_type: Sequence[Share]
    by_use: Sequence[Share]


class SizedCache(TypedDict):
    """The cache of one sequence (`analysis.kv_cache.Cache`); `bytes`: of all of it."""

    context: int
    type: str
    attention: int
    states: int
    bytes: int


class Memory(TypedDict):
    """What the weights take, and the cache of each context and type; `unknown`: why no cache is known."""

    weights: int
    caches: Sequence[SizedCache] | None
    unknown: NotRequired[str]


class OtherHalf(TypedDict):
    """The other half of a multimodal model: 'text' or 'mmproj', and where it is."""

    kind: str
    architecture: str
    tensors: int
    bytes: int
    file: str | None


class RecognizedModel(TypedDict):
    """The architecture, the programs that run it, and what they do otherwise."""

    architecture: str
    runtimes: list[str]
    reservations: list[str]
    other_half: NotRequired[OtherHalf]


class InspectedFile(TypedDict, total=False):
    """What a file holds. Options that show parts leave the others out."""

    container: str
    version: int | None
    era: str | None
    layout: str | None
    big_endian: bool
    alignment: int
    files: list[FileSize]
    model: RecognizedModel | None
    header: Mapping[str, Any]
    metadata: Mapping[str, Any]
    vocabulary: Mapping[str, Any] | None
    tensors: list[InspectedTensor]
    dropped: list[PlannedDrop]
    sidecars: Mapping[str, str]
    notes: list[str]
    sizes: Sizes
    memory: Memory | None
    tokens: list[InspectedToken]
    templates: Mapping[str, str]
    hex: list[str]


# --- forward, imatrix -----------------------------------------------------------------------------------------------


class WrittenRows(TypedDict):
    """An array that was written: its shape, its dtype, what its rows are; `top1`: the likeliest token of each."""

    path: str
    shape: list[int]
    dtype: str
    what: str
    top1: NotRequired[list[int]]


class ScoredText(TypedDict):
    """A document and its score; `index`: its line in the file."""

    index: int
    score: float
    document: str


class WrittenImatrix(TypedDict):
    """An importance matrix that was written."""

    path: str
    entries: int
    chunks: int
    chunk_size: int
    experts: Sequence[ExpertTokens]


Number = float | str
"""A number, or the text of what JSON has none for: 'nan', 'inf'."""


class SumsOfTensor(TypedDict):
    """What the figures of a block are added up from (`analysis.imatrix_statistics.Sums`)."""

    dot: Number
    own: Number
    other: Number
    apart: Number
    covariance: Number
    own_variance: Number
    other_variance: Number
    columns: int
    energy: list[Number]
    elements: list[int]


class StatisticsOfTensor(TypedDict):
    """The figures of a tensor (`analysis.imatrix_statistics.Statistics`)."""

    name: str
    block: int
    energy: Number
    elements: int
    mean: Number
    deviation: Number
    skewness: Number
    kurtosis: Number
    entropy: Number
    gain: Number
    distance: Number
    correlation: Number
    covariance: Number
    sums: SumsOfTensor | None


class StatisticsOfBlock(TypedDict):
    """The figures of a block (`analysis.imatrix_statistics.Block`)."""

    block: int
    energy: Number
    gain: Number
    distance: Number
    cosine: Number
    correlation: Number
    covariance: Number


class ImatrixStatistics(TypedDict):
    """The figures of an importance matrix (`analysis.imatrix_statistics.Described`)."""

    path: str
    tensors: list[StatisticsOfTensor]
    blocks: list[StatisticsOfBlock]
    activations: bool
    predicting: int
    layers: int
    gap: str


# --- architectures, types -------------------------------------------------------------------------------------------


class ListedFamilies(TypedDict):
    """The families that are read."""

    architectures: Sequence[Family]


class ListedTypes(TypedDict):
    """The types a model can be converted to, and the block types they are made of."""

    outtypes: Sequence[OutType]
    blocks: Sequence[KindOfBlock]


# --- edit, split, merge, doctor ---------------------------------------------------------------------------------------


class EditedFile(TypedDict):
    """A finished edit: keys before and after, renamed tensors, the files; `receipt`: the one that goes on."""

    keys: Mapping[str, Mapping[str, str]]
    tensors: Mapping[str, str]
    in_place: bool
    paths: Sequence[str]
    receipt: str | None
    notes: Sequence[str]


class PlannedEdit(TypedDict):
    """What an edit would do."""

    keys: Mapping[str, Mapping[str, str]]
    tensors: Mapping[str, str]
    fits_in_place: bool
    notes: Sequence[str]


class RecoveredEdit(TypedDict):
    """An edit that was interrupted: 'finished', 'undone', or None where there was none."""

    path: str
    recovered: str | None


class PlannedRewrite(TypedDict):
    """What split or merge would do; `pieces`: of a file that was cut at any byte, instead of `files`."""

    command: str
    files: NotRequired[Sequence[PlannedFile]]
    pieces: NotRequired[Sequence[str]]
    notes: Sequence[str]


class FinishedRewrite(PlannedRewrite):
    """What split or merge did; `tensors`: how many were compared, None of pieces that hold no GGUF file."""

    paths: Sequence[str]
    nbytes: int
    tensors: int | None
    receipt: str | None


class CheckedShards(TypedDict):
    """Shards that hold what the whole file holds."""

    verified: bool
    shards: int
    tensors: int


class DiagnosisRecord(TypedDict):
    """What is known of a file; `whole`: None where nobody can say; `stray_tensors`: of the other byte order."""

    path: str
    what: str
    whole: bool | None
    exit_code: int
    findings: list[str]
    stray_tensors: list[str]
    remedies: Sequence[Remedy]


class Diagnoses(TypedDict):
    """What is known of several files."""

    files: list[DiagnosisRecord]


class RepairedFile(TypedDict):
    """A file that was written with every tensor in its byte order, and the tensors that were swapped."""

    path: str
    swapped: list[str]


# --- hash, diff, sign -------------------------------------------------------------------------------------------------


class DigestRecord(TypedDict):
    """The digest of a tensor; of all tensors together where `tensor` is None."""

    algorithm: str
    tensor: str | None
    digest: str


class HashedModel(TypedDict):
    """The digests of a model."""

    path: str
    digests: list[DigestRecord]


class CheckedManifest(TypedDict):
    """A model compared with a manifest (`analysis.differences.hashes.Checked`)."""

    path: str
    holds: bool
    algorithm: str
    wrong: list[str | None]
    absent: list[str]
    undeclared: list[str]
    right: int


class DifferenceForm(DifferenceFields):
    """How two models differ; `first`, `second`: what they were called."""

    first: str
    second: str


# --- the server and its client ----------------------------------------------------------------------------------------


class SubmittedJobs(TypedDict):
    """The ids of the jobs of what was submitted."""

    jobs: list[str]


class DeletedJob(TypedDict):
    """The id of a job that was removed."""

    deleted: str


class NewToken(TypedDict):
    """A token, which is not shown again."""

    token: str
    id: str
    name: str
    scope: str


class NewWebhook(TypedDict):
    """A receiver, and the secret that signs its notices, which is not shown again."""

    id: str
    secret: str


class BackedUp(TypedDict):
    """How many files a backup has, and their bytes."""

    files: int
    bytes: int


class Restored(TypedDict):
    """How many files were restored; `created`: when they were backed up, in seconds since 1970; `data`: from where."""

    files: int
    created: float
    data: str


# --- errors ---------------------------------------------------------------------------------------------------------


class ErrorRecord(TypedDict):
    """An error as every command prints it; docs/cli.md has the exit codes."""

    code: str
    exit_code: int
    fault: str
    message: str
    path: str | None
    offset: int | None
    found: str | None
    expected: str | None
    hint: str | None


class ErrorForm(TypedDict):
    """What `--json` prints of an error, on stdout."""

    error: ErrorRecord
