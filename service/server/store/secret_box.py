"""Secrets in the database, encrypted by a key that is not in it: Fernet of the package cryptography.

Of the form `fernet:TOKEN`. The token holds the name that the secret goes with, so that it cannot be put into another
row. The first of several keys encrypts, the others still decrypt: so a key is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ggferry.formats.errors import CorruptError, UsageError
from ggferry.service.server.settings import Settings
from ggferry.support.platform import here

VARIABLE = "GGFERRY_SECRET_KEY"
FILE = "secret-key"
"""Name of the key's file in the data folder."""
SEALED = "fernet:"
LARGEST = 4096  # bytes of a file of keys
HOW = "32 random bytes in URL-safe base64, a key a line: python -c 'from cryptography.fernet import Fernet as F; " + (
    "print(F.generate_key().decode())'"
)


class SecretBox:
    """Encrypts and decrypts; `keys` came from `place`. Raises UsageError for what is no key."""

    def __init__(self, keys: Sequence[str], place: str) -> None:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            hint = "pip install 'ggferry[service]'"
            raise UsageError("secrets need a package that is not here: cryptography", hint=hint) from None
        try:
            self._first = Fernet(keys[0])
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except (ValueError, IndexError):
            raise UsageError("not a key for secrets", path=place, expected=HOW) from None
        self._place = place

    def seal(self, name: str, secret: str) -> str:
        """Return a secret as the database keeps it, bound to a name."""
        return SEALED + self._fernet.encrypt(f"{name}\n{secret}".encode()).decode()

    def renewed(self, name: str, kept: str) -> str:
        """Return a secret by the first key: what has it as it is, what is plain or by another key encrypted anew."""
        from cryptography.fernet import InvalidToken

        if not kept.startswith(SEALED):
            return self.seal(name, kept)
        secret = self.open(name, kept)
        try:
            self._first.decrypt(kept.removeprefix(SEALED))
        except InvalidToken:
            return self.seal(name, secret)
        return kept

    def open(self, name: str, sealed: str) -> str:
        """Return a secret. Raises UsageError where the key is another, CorruptError for that of another name."""
        from cryptography.fernet import InvalidToken

        try:
            whose, _, secret = self._fernet.decrypt(sealed.removeprefix(SEALED)).decode().partition("\n")
        except InvalidToken:
            hint = f"{VARIABLE} or --secret-key-file with the key that did; or serve webhook remove {name}"
            raise UsageError("a secret was encrypted by another key", path=self._place, found=name, hint=hint) from None
        if whose != name:
            raise CorruptError("a secret is another's", found=whose, expected=name)
        return secret


def open_box(settings: Settings) -> SecretBox:
    """Return the box whose key the environment, `--secret-key-file` or the data folder has, made there if need be.

    Raises UsageError for a key that is none, NotFoundError for a file that is named and not there.
    """
    if given := os.environ.get(VARIABLE):
        return SecretBox(given.split(), VARIABLE)
    path = settings.secret_key_file or key_file(settings)
    if settings.secret_key_file is None and not os.path.lexists(path):
        _make(path)
    return SecretBox(_read(path, own=settings.secret_key_file is None), path)


def key_file(settings: Settings) -> str:
    """Return where the data folder has its key."""
    return os.path.join(settings.data, FILE)


def _make(path: str) -> None:
    """Write a new key, which gets its name when it is whole; of several servers in one folder the first one's stays."""
    from cryptography.fernet import Fernet

    own = f"{path}.{os.urandom(4).hex()}"
    with open(here.open_file(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | here.NOFOLLOW, 0o600), "wb") as file:
        file.write(Fernet.generate_key() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(own, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(own)


def _read(path: str, own: bool) -> list[str]:
    try:
        with open(here.open_file(path, os.O_RDONLY | (here.NOFOLLOW if own else 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if own and status.st_mode & 0o077 and here.is_own(status):
                os.chmod(path, 0o600)
            return file.read(LARGEST).decode("ascii", "replace").split()
    except OSError as error:
        raise UsageError("the key for secrets cannot be read", path=path, found=error.strerror or "") from None
