"""The members of a receipt as its JSON has them (`converters/proof/receipt.py` makes receipts)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.formats.files.digests import Record
from ggferry.formats.json_files.kinds import JSONObject

FileRecord = Record


class SourceRecord(TypedDict):
    """The files that were read, and what their container states."""

    files: list[FileRecord]
    container: str
    version: int | None
    era: str | None
    header: JSONObject
    types: str


class OutputRecord(TypedDict):
    """The files of one output; `types` counts its tensors by type, as text."""

    files: list[FileRecord]
    types: str


TensorRecord = TypedDict(
    "TensorRecord",
    {
        "name": str,
        "from": list[str],
        "shape": list[int],
        "source_type": str,
        "type": str,
        "route": str,
        "grade": str,
        "file": int,
        "offset": int,
        "bytes": int,
        "why": NotRequired[str],
        "relative_rms": NotRequired[float | None],
        "max_error": NotRequired[float | None],
        "outlier": NotRequired[bool],
        "band": NotRequired[tuple[float, float]],
        "encoded_again": NotRequired[bool],
        "encoded_again_share": NotRequired[float],
        "rounding": NotRequired[str],
        "repacked_from": NotRequired[str],
        "dequantized_from": NotRequired[str],
        "merged_from": NotRequired[str],
        "computed_as": NotRequired[str],
    },
)
"""A tensor of the output: what it was made of, how, and how exact it is."""


class HparamRecord(TypedDict):
    """A hyper-parameter and where its value came from; how much float32 changes it, relative, where it does."""

    value: Any
    origin: str
    rounded_to_float32: NotRequired[float]


class DroppedRecord(TypedDict):
    """A tensor of the source that is not in the output."""

    name: str
    file: NotRequired[int]
    reason: str
    loses: bool


class RuntimesRecord(TypedDict):
    """The programs that run the output."""

    run_it: list[str]
    none: bool
    otherwise: NotRequired[dict[str, list[str]]]


class PromptRecord(TypedDict):
    """A prompt whose logits were compared; `rows` where not every token's; the shape of a picture or of a spectrum."""

    name: str
    tokens: list[int]
    positions: NotRequired[list[int]]
    context: NotRequired[int]
    rows: NotRequired[list[int]]
    picture: NotRequired[list[int]]
    spectrum: NotRequired[list[int]]


class LogitsRecord(TypedDict, total=False):
    """The logits of source and output compared."""

    what: str
    prompts: list[PromptRecord]
    max_error: float
    relative_rms: float
    structure: float | None
    limit: float
    top1_agreement: float | None
    kl_divergence: float | None
    reached: list[str]
    not_reached: list[str]
    embedding: float | None
    device: str
    rounding: float | None
    in_float64: float | None


class DeltasRecord(TypedDict):
    """The products of an adapter's pairs compared."""

    pairs: int
    vectors: int
    worst: str
    relative_rms: float
    limit: float


class TokenizerRecord(TypedDict, total=False):
    """The texts that both tokenizers encoded, and how many equally.

    Attributes:
        model: The tokenizer's, as GGUF names it.
        why: Why nothing was compared.
        by: The library that encoded the texts on the source's side.
        excused: Reason → number of texts that GGUF cannot express otherwise.
        reached: How many ids came out at least once.
        tokens: How many ids the equal ones had.
        restored: How many of the fixed texts decode back byte for byte.
        first: The first difference.
        passed: Whether there was none.
        held_against_source: What the library's own reading of the vocabulary was compared with.
        legacy_runtime: The comparison with the algorithm of the file's own runtime.
        merges: The tokens that the merges make.
    """

    model: str
    vocabulary: int
    texts: int
    equal: int
    why: str
    by: str
    excused: Mapping[str, int]
    reached: int
    tokens: int
    restored: int
    first: Any
    passed: bool
    held_against_source: Any
    legacy_runtime: Mapping[str, Any]
    merges: Any


class CrossCheckRecord(TypedDict):
    """What another program computed of the source or of the output."""

    witness: str
    version: str
    side: str
    what: str
    count: int
    worst: float | None
    limit: float | None
    place: str | None
    why: str | None
    missed: NotRequired[list[str]]
    refused: NotRequired[bool]


class Receipt(TypedDict):
    """The receipt of an output.

    `edits` has what was done to the file since: the command, the files before it, and what it changed. `mmproj` lists
    the files of the vision or audio encoder beside a text model, `text` those of the models beside such an encoder.
    `to` names the format of an output that is not GGUF.
    """

    ggferry: str
    format: int
    source: SourceRecord
    output: OutputRecord
    options: JSONObject
    architecture: str
    runtimes: RuntimesRecord
    hparams: dict[str, HparamRecord]
    metadata: dict[str, str]
    tensors: list[TensorRecord]
    dropped: list[DroppedRecord]
    tokenizer: TokenizerRecord
    logits: LogitsRecord | None
    deltas: NotRequired[DeltasRecord]
    second_reader: NotRequired[Mapping[str, Any]]
    testimonies: list[CrossCheckRecord]
    verified: str
    notes: list[str]
    edits: NotRequired[list[JSONObject]]
    mmproj: NotRequired[list[FileRecord]]
    text: NotRequired[list[FileRecord]]
    to: NotRequired[str]


class FolderSource(TypedDict):
    """The files that a folder in Hugging Face's form was made of."""

    files: list[FileRecord]
    container: str
    version: int | None
    era: str | None
    types: str


FolderOutput = TypedDict("FolderOutput", {"files": list[FileRecord], "class": str, "model_type": str})
"""The files of a folder in Hugging Face's form, and the class that its config.json names."""


class PartRecord(TypedDict):
    """A tensor of the model that a folder's tensor holds, and its types in the source."""

    name: str
    types: list[str]


class FolderTensor(TypedDict):
    """A tensor of a folder: what it holds, and the layouts that were undone for it."""

    name: str
    shape: list[int]
    type: str
    of: list[PartRecord]
    packed: NotRequired[str]
    undone: NotRequired[list[str]]
    exact: NotRequired[bool]
    max_error: NotRequired[float]


class FolderReceipt(TypedDict):
    """The receipt of a folder in Hugging Face's form; those before November 2026 lack `dropped` and `verified`."""

    ggferry: str
    format: int
    to: str
    source: FolderSource
    output: FolderOutput
    options: JSONObject
    architecture: str
    hparams: dict[str, HparamRecord]
    tensors: list[FolderTensor]
    dropped: NotRequired[list[DroppedRecord]]
    verified: NotRequired[str]
    tokenizer: TokenizerRecord
    logits: LogitsRecord | None
    testimonies: list[CrossCheckRecord]
    notes: list[str]


OutputReceipt = Receipt | FolderReceipt
"""The receipt of an output of any kind."""


class KeptReceipt(Receipt):
    """What the ledger keeps of a job: the receipt of its first output, with those of the others in `further`."""

    further: NotRequired[list[Receipt]]


class KeptFolderReceipt(FolderReceipt):
    """What the ledger keeps of a job whose output is a folder: its receipt, and the record of that receipt's file."""

    receipt_file: FileRecord


KeptReceipts = KeptReceipt | KeptFolderReceipt
"""What the ledger keeps of a job of any kind."""
