"""Make and check signatures of files by the library `model-signing` (OMS)."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from ggferry.formats.errors import AccessError, NotFoundError, UsageError, VerificationError
from ggferry.formats.files.local_files import Named, read_bytes

if TYPE_CHECKING:
    from types import ModuleType

SIGNATURE = ".sig"
"""Ends the name of a signature beside what it signs."""


def check_signature(path: str, key: str) -> None:
    """Check the signature beside a file with a public key.

    Raises:
        NotFoundError: There is no signature.
        VerificationError: It is not by this key, or of other bytes.
        UsageError: model-signing is not installed.
    """
    place = path + SIGNATURE
    if not os.path.lexists(place):
        raise NotFoundError("no signature beside the file", path=path, hint=f"ggferry sign makes {place}")
    read_bytes(Named(key))  # says what is wrong with it, in our words
    verifying = _library().verifying
    try:
        verifying.Config().use_elliptic_key_verifier(public_key=key).verify(path, place)
    except ValueError as error:
        raise VerificationError("not signed by this key, or changed since", path=path, found=str(error)) from None
    except OSError as error:
        raise AccessError("the signature cannot be checked", path=path, found=str(error)) from None


def signature_of(path: str, key: bytes) -> bytes:
    """Return the signature of a file, as model-signing writes it."""
    signing = _library().signing
    with tempfile.TemporaryDirectory(prefix="ggferry-") as folder:
        private, made = os.path.join(folder, "key"), os.path.join(folder, "signature")
        with open(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        try:
            password = os.environ.get("GGFERRY_KEY_PASSWORD")
            signing.Config().use_elliptic_key_signer(private_key=private, password=password).sign(path, made)
        except (ValueError, TypeError) as error:
            raise UsageError("--key: not a private key that model-signing takes", found=str(error)) from None
        return read_bytes(Named(made))


def _library() -> ModuleType:
    try:
        import model_signing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        words, hint = "signatures need a package that is not here: model-signing", "pip install 'ggferry[sign]'"
        raise UsageError(words, found=str(error), hint=hint) from None
    return model_signing
