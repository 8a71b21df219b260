"""ggferry: carries language-model weights out of legacy and training formats into GGUF v3, and proves it.

`import ggferry` costs nothing: what is named here is loaded when it is first used. docs/python.md has examples.
"""

from __future__ import annotations

__version__ = "0.1.0"

# `typing` may be a file of the folder that `python -m ggferry` runs in, until __main__.py leaves that folder.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ggferry.converters.analysis.doctor import Diagnosis
    from ggferry.converters.conversion_plan.grades import Grade, Route
    from ggferry.formats.errors import (
        AccessError,
        AmbiguousError,
        BadValueError,
        BusyError,
        ChangedError,
        ChecksumError,
        CorruptError,
        DuplicateError,
        EncodingError,
        Fault,
        GgferryError,
        InconsistentError,
        MissingError,
        NotFoundError,
        OutOfMemoryError,
        OutOfRangeError,
        OutsideLinkError,
        OverlapError,
        RefusedError,
        ShapeError,
        TableError,
        TrailingBytesError,
        TransientError,
        TransportError,
        TruncatedError,
        UnexpectedTensorError,
        UnknownFormatError,
        UnreachableError,
        UnsafePickleError,
        UnsupportedError,
        UnsupportedTypeError,
        UnsupportedVersionError,
        UsageError,
        VerificationError,
    )
    from ggferry.service.client.client import Client, Fetched
    from ggferry.service.library.answers import (
        Assumption,
        Conversion,
        ConversionPlan,
        DroppedTensor,
        Inspection,
        Model,
        PlannedKey,
        PlannedTensor,
        TensorFacts,
        Verification,
    )
    from ggferry.service.library.conversions import convert, convert_many, plan, quantize, verify
    from ggferry.service.library.models import open_model
    from ggferry.service.operations._rewritten import Rewritten
    from ggferry.service.operations.check_blocks import check_blocks
    from ggferry.service.operations.check_shards import check_shards
    from ggferry.service.operations.compare import compare
    from ggferry.service.operations.diff import diff
    from ggferry.service.operations.doctor import doctor, repair
    from ggferry.service.operations.edit import Edited, edit
    from ggferry.service.operations.examine import examine
    from ggferry.service.operations.forward import forward
    from ggferry.service.operations.hashes import hashes
    from ggferry.service.operations.inspect import inspect
    from ggferry.service.operations.merge import merge
    from ggferry.service.operations.publish import Publication, PublishedFile, publish
    from ggferry.service.operations.sign import Signatures, sign
    from ggferry.service.operations.split import split
    from ggferry.service.operations.tokenize import tokenize
    from ggferry.support.progress import Phase

_HOMES = {
    "ggferry.service.library.conversions": "convert convert_many plan quantize verify",
    "ggferry.service.operations.compare": "compare",
    "ggferry.service.library.models": "open_model",
    "ggferry.service.operations.forward": "forward",
    "ggferry.service.operations.inspect": "inspect",
    "ggferry.service.operations.tokenize": "tokenize",
    "ggferry.service.operations.edit": "Edited edit",
    "ggferry.service.client.client": "Client Fetched",
    "ggferry.converters.analysis.doctor": "Diagnosis",
    "ggferry.service.operations.doctor": "doctor repair",
    "ggferry.service.operations.diff": "diff",
    "ggferry.service.operations.examine": "examine",
    "ggferry.service.operations.hashes": "hashes",
    "ggferry.service.operations.check_blocks": "check_blocks",
    "ggferry.service.operations.check_shards": "check_shards",
    "ggferry.service.operations.merge": "merge",
    "ggferry.service.operations.publish": "Publication PublishedFile publish",
    "ggferry.service.operations.sign": "Signatures sign",
    "ggferry.service.operations.split": "split",
    "ggferry.service.operations._rewritten": "Rewritten",
    "ggferry.service.library.answers": """
        Assumption Conversion ConversionPlan DroppedTensor Inspection Model
        PlannedKey PlannedTensor TensorFacts Verification
    """,
    "ggferry.converters.conversion_plan.grades": "Grade Route",
    "ggferry.support.progress": "Phase",
    "ggferry.formats.errors": """
        AccessError AmbiguousError BadValueError BusyError ChangedError ChecksumError CorruptError
        DuplicateError EncodingError Fault GgferryError InconsistentError MissingError NotFoundError
        OutOfMemoryError OutOfRangeError OutsideLinkError OverlapError TransientError RefusedError ShapeError TableError
        TrailingBytesError TransportError TruncatedError UnexpectedTensorError UnknownFormatError
        UnreachableError UnsafePickleError UnsupportedError UnsupportedTypeError UnsupportedVersionError
        UsageError VerificationError
    """,
}
"""Module → what of it is offered."""

_FORMER = {"PassingError": "TransientError", "ladder": "convert_many"}
"""What a name was called in the version before."""

__all__ = [
    "AccessError",
    "AmbiguousError",
    "Assumption",
    "BadValueError",
    "BusyError",
    "ChangedError",
    "ChecksumError",
    "Client",
    "Conversion",
    "ConversionPlan",
    "CorruptError",
    "Diagnosis",
    "DroppedTensor",
    "DuplicateError",
    "Edited",
    "EncodingError",
    "Fault",
    "Fetched",
    "GgferryError",
    "Grade",
    "InconsistentError",
    "Inspection",
    "MissingError",
    "Model",
    "NotFoundError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "OutsideLinkError",
    "OverlapError",
    "Phase",
    "PlannedKey",
    "PlannedTensor",
    "Publication",
    "PublishedFile",
    "RefusedError",
    "Rewritten",
    "Route",
    "ShapeError",
    "Signatures",
    "TableError",
    "TensorFacts",
    "TrailingBytesError",
    "TransientError",
    "TransportError",
    "TruncatedError",
    "UnexpectedTensorError",
    "UnknownFormatError",
    "UnreachableError",
    "UnsafePickleError",
    "UnsupportedError",
    "UnsupportedTypeError",
    "UnsupportedVersionError",
    "UsageError",
    "Verification",
    "VerificationError",
    "__version__",
    "check_blocks",
    "check_shards",
    "compare",
    "convert",
    "convert_many",
    "diff",
    "doctor",
    "edit",
    "examine",
    "forward",
    "hashes",
    "inspect",
    "merge",
    "open_model",
    "plan",
    "publish",
    "quantize",
    "repair",
    "sign",
    "split",
    "tokenize",
    "verify",
]


if not TYPE_CHECKING:  # a name that is not offered is an error to a type checker

    def __getattr__(name: str) -> Any:
        """Load what is asked for by name, once."""
        if name in _FORMER:
            import warnings

            words = f"ggferry.{name} is now ggferry.{_FORMER[name]}; the old name goes in the next minor version"
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            return __getattr__(_FORMER[name])
        for home, names in _HOMES.items():
            if name in names.split():
                from importlib import import_module

                value = getattr(import_module(home), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
