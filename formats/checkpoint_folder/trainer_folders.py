"""Find the folder of a checkpoint below the one that a trainer keeps it in."""

from __future__ import annotations

import os
import re

from ggferry.formats.errors import EncodingError, InconsistentError, NotFoundError
from ggferry.formats.files.sources import open_source
from ggferry.formats.reader import names_in

TRACKER = "latest_checkpointed_iteration.txt"
"""The file in which Megatron-LM names the latest iteration."""
_ITERATION = re.compile(r"\d{1,12}|release", re.ASCII)


def iteration_folder(folder: str) -> str:
    """Return the folder that the tracker in `folder` names; `folder` where it has none.

    Raises EncodingError, InconsistentError for another content, NotFoundError.
    """
    if TRACKER not in names_in(folder):
        return folder
    source = open_source(os.path.join(folder, TRACKER), folder)
    try:
        text = source.read(0, min(source.size, 64)).decode().strip()
    except UnicodeDecodeError:
        raise EncodingError("the latest iteration", path=source.path) from None
    finally:
        source.close()
    if not _ITERATION.fullmatch(text):
        raise InconsistentError("the latest iteration", path=source.path, found=text[:64], expected="a number")
    inner = os.path.join(folder, text if text == "release" else f"iter_{int(text):07d}")
    if not os.path.isdir(inner):
        raise NotFoundError("the latest checkpoint is missing", path=inner)
    return inner
