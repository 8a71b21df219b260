"""Checksums that stores state for whole files, computed from the bytes that were read: changes on the way are found.

Where each is stated: `s3.declared_checksum`, `web.declared_checksum`, `other_filesystems.declared_checksum`.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class _State(Protocol):
    def update(self, data: bytes, /) -> object: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DeclaredChecksum:
    """A checksum that a store states.

    Attributes:
        by: Name of the store.
        algorithm: Name of the algorithm.
        value: The checksum.
        part: Bytes of each part, for an MD5 of the parts' MD5s (an ETag of S3 with a number after a hyphen); 0: it is
            of the file itself.
    """

    by: str
    algorithm: str
    value: bytes
    part: int = 0

    def __str__(self) -> str:
        return f"{self.algorithm}{' of parts' if self.part else ''} stated by {self.by}"


def from_base64(by: str, algorithm: str, text: str) -> DeclaredChecksum | None:
    """Return a checksum given in base64; None for what cannot be one."""
    try:
        value = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        return None
    return _sized(DeclaredChecksum(by, algorithm, value))


def from_hex(by: str, algorithm: str, text: str) -> DeclaredChecksum | None:
    """Return a checksum given in hexadecimal digits; None for what cannot be one."""
    try:
        value = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return _sized(DeclaredChecksum(by, algorithm, value))


def surest(known: Iterable[DeclaredChecksum | None]) -> DeclaredChecksum | None:
    order = list(SIZES)
    return min((each for each in known if each), key=lambda each: order.index(each.algorithm), default=None)


def _sized(declared: DeclaredChecksum) -> DeclaredChecksum | None:
    return declared if declared.algorithm in SIZES and len(declared.value) == SIZES[declared.algorithm] else None


class Running:
    """The checksum of a file whose bytes come in order."""

    def __init__(self, declared: DeclaredChecksum) -> None:
        self.declared = declared
        self._state = _ALGORITHMS[declared.algorithm]()
        self._parts, self._left = hashlib.md5(usedforsecurity=False), declared.part

    def update(self, data: bytes) -> None:
        if not self.declared.part:
            self._state.update(data)
            return
        view = memoryview(data)
        while view:
            piece = view[: self._left]
            self._state.update(piece)  # type: ignore[arg-type]
            self._left -= len(piece)
            view = view[len(piece) :]
            if not self._left:
                self._end_part()

    def agrees(self) -> bool:
        """Return whether all the bytes have the stated checksum. To be called once, at the end."""
        if self.declared.part:
            if self._left < self.declared.part:
                self._end_part()
            return self._parts.digest() == self.declared.value
        return self._state.digest() == self.declared.value

    def _end_part(self) -> None:
        self._parts.update(self._state.digest())
        self._state, self._left = _ALGORITHMS["MD5"](), self.declared.part


class _Crc:
    """A CRC as the running state of a checksum; big-endian bytes, as S3 states them."""

    def __init__(self, step: Callable[[Any, int], int], size: int) -> None:
        self._step, self._size, self._value = step, size, 0

    def update(self, data: Any) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def _reflected(name: str, size: int) -> _State:
    from ggferry.quant.kernels import crc  # numba: only where a store states nothing else

    return _Crc(crc.steps(name), size)


_ALGORITHMS: dict[str, Callable[[], _State]] = {
    "SHA-256": lambda: hashlib.sha256(usedforsecurity=False),
    "SHA-1": lambda: hashlib.sha1(usedforsecurity=False),
    "MD5": lambda: hashlib.md5(usedforsecurity=False),
    "CRC-64/NVME": lambda: _reflected("CRC-64/NVME", 8),
    "CRC-32C": lambda: _reflected("CRC-32C", 4),
    "CRC-32": lambda: _Crc(zlib.crc32, 4),
}
SIZES = {"SHA-256": 32, "SHA-1": 20, "MD5": 16, "CRC-64/NVME": 8, "CRC-32C": 4, "CRC-32": 4}
"""Bytes of each checksum, the strongest first."""
