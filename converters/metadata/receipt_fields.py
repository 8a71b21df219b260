"""The members of a receipt as its JSON has them (`converters/proof/receipt.py` makes receipts)."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class FileRecord(TypedDict):
    """A file: its name without a folder, its bytes, its digests in hex."""

    name: str
    bytes: int
    blake3: str
    sha256: NotRequired[str]


class SourceRecord(TypedDict):
    """The files that were read, and what their container states."""

    files: list[FileRecord]
    container: str
    version: int | None
    era: str | None
    header: dict[str, Any]
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
    },
)
"""A tensor of the output: what it was made of, how, and how exact it is."""


class HparamRecord(TypedDict):
    """A hyper-parameter and where its value came from."""

    value: Any
    origin: str


class DroppedRecord(TypedDict):
    """A tensor of the source that is not in the output."""

    name: str
    reason: str
    loses: bool


class RuntimesRecord(TypedDict):
    """The programs that run the output."""

    run_it: list[str]
    none: bool
    otherwise: NotRequired[dict[str, list[str]]]


class PromptRecord(TypedDict):
    """A prompt whose logits were compared; `rows` where not every token's."""

    tokens: list[int]
    rows: NotRequired[list[int]]


class LogitsRecord(TypedDict, total=False):
    """The logits of source and output compared."""

    what: str
    prompts: list[PromptRecord]
    relative_rms: float
    structure: float | None
    limit: float
    top1_agreement: float
    kl_divergence: float | None
    reached: list[str]
    not_reached: list[str]


class DeltasRecord(TypedDict):
    """The products of an adapter's pairs compared."""

    pairs: int
    worst: str
    relative_rms: float
    limit: float


class TokenizerRecord(TypedDict, total=False):
    """The texts that both tokenizers encoded, and how many equally."""

    vocabulary: int
    texts: int
    equal: int


class CrossCheckRecord(TypedDict):
    """What another program computed of the source or of the output."""

    witness: str
    version: str
    side: str
    what: str
    count: int
    worst: float
    limit: float | None
    place: str
    why: str


class Receipt(TypedDict):
    """The receipt of an output. `mmproj` lists the files of the vision or audio encoder beside a text model."""

    ggferry: str
    format: int
    source: SourceRecord
    output: OutputRecord
    options: dict[str, Any]
    architecture: str
    runtimes: RuntimesRecord
    hparams: dict[str, HparamRecord]
    metadata: dict[str, str]
    tensors: list[TensorRecord]
    dropped: list[DroppedRecord]
    tokenizer: TokenizerRecord
    logits: LogitsRecord | None
    deltas: NotRequired[DeltasRecord]
    testimonies: list[CrossCheckRecord]
    verified: str
    notes: list[str]
    mmproj: NotRequired[list[FileRecord]]


class KeptReceipt(Receipt):
    """What the ledger keeps of a job: the receipt of its first output, with those of the others in `further`."""

    further: NotRequired[list[Receipt]]
