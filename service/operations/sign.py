"""Sign a file with a key, and check such a signature, by the library `model-signing` (OMS)."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY
from typing import Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import NotFoundError, RefusedError
from ggferry.service.operation import AsJson, Force, StrPath, argument, declare, library_function
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class SignRequest:
    """What is signed, and by which key."""

    path: Annotated[StrPath, argument("A GGUF file; its receipt is signed along with it. A path.")]
    key: Annotated[
        StrPath,
        declare(Kind.FILE, "The private key: PEM, of an elliptic curve (P-256, P-384, P-521).", metavar="FILE"),
    ]
    _: KW_ONLY
    force: Force = False


@dataclass(frozen=True, slots=True)
class SignCommand(SignRequest):
    """Sign a GGUF file and its receipt with a private key (OMS); `verify FILE --signed KEY` checks it.

    The signatures are FILE.sig and FILE.receipt.json.sig. GGFERRY_KEY_PASSWORD is the password of an encrypted key.
    """

    _: KW_ONLY
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class Signatures:
    """What was signed.

    Attributes:
        signatures: The signatures that were written, by the file that each signs.
    """

    signatures: dict[str, str]


def run(request: SignRequest) -> Signatures:
    """Sign a GGUF file and its receipt with a private key, as `ggferry sign` does.

    Returns:
        Where the signatures are.

    Raises:
        UsageError: model-signing is not installed, or the key is none that it takes.
        RefusedError: A signature is there, and `force` is not set.
        NotFoundError: There is no such file.

    Example:
        >>> [*ggferry.sign("model-Q8_0.gguf", "private.pem").signatures]
        ['model-Q8_0.gguf', 'model-Q8_0.gguf.receipt.json']
    """
    from ggferry.converters.metadata.beside import RECEIPT
    from ggferry.formats.files.local_files import Named, read_bytes
    from ggferry.formats.files.partial_files import write_file
    from ggferry.service.operations._signatures import SIGNATURE, signature_of

    path = os.fspath(request.path)
    if not os.path.isfile(path):
        raise NotFoundError("no such file to sign", path=path)
    key = read_bytes(Named(os.fspath(request.key)))
    places = [path, *([path + RECEIPT] if os.path.isfile(path + RECEIPT) else [])]
    there = [place + SIGNATURE for place in places if os.path.lexists(place + SIGNATURE)]
    if there and not request.force:
        raise RefusedError("a signature is there", path=there[0], hint="--force replaces it")
    signed = {}
    for place in places:
        data = signature_of(place, key)
        write_file(place + SIGNATURE, lambda file, data=data: file.write(data), overwrite=True)  # type: ignore[misc]
        signed[place] = place + SIGNATURE
    return Signatures(signed)


sign = library_function("sign", SignRequest, run)
