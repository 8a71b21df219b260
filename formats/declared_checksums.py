"""Compare the checksums that a container states with its bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import ChecksumError

CHUNK = 4 << 20


def verify_checksums(checkpoint: Checkpoint, budget: int = CHUNK, progress: Callable[[int], None] | None = None) -> int:
    """Read every range that has a checksum and compare it.

    Args:
        checkpoint: The checkpoint; without checksums nothing is read.
        budget: Bytes read at a time.
        progress: Called with the bytes of each chunk.

    Returns:
        How many bytes agreed; 0 for a checkpoint without checksums.

    Raises:
        ChecksumError: With the place of the first range that differs.
        TruncatedError: A file has shrunk.
    """
    buffer = memoryview(bytearray(max(1, budget)))
    checked = 0
    for declared in sorted(checkpoint.checksums, key=lambda sum: (sum.file, sum.offset)):
        source = checkpoint.files[declared.file]
        crc, done = 0, 0
        while done < declared.nbytes:
            chunk = buffer[: min(len(buffer), declared.nbytes - done)]
            source.read_into(declared.offset + done, chunk)
            crc = zlib.crc32(chunk, crc)
            done += len(chunk)
            if progress is not None:
                progress(len(chunk))
        if crc != declared.crc32:
            raise ChecksumError(
                f"{declared.nbytes} bytes do not have the checksum their file states",
                path=source.path,
                offset=declared.offset,
                found=f"CRC-32 {crc:08x}",
                expected=f"{declared.crc32:08x}",
                hint="the file was damaged after it was written: fetch it again",
            )
        checked += declared.nbytes
    return checked
