"""Where an output goes: `destination` makes a path of what `--outfile` names, and knows what remains to be done.

A path is what it is. `ollama://NAME:TAG` is written below Ollama's store and becomes a model of it once it is proved;
`lmstudio://PUBLISHER/MODEL` is a folder of LM Studio's, `jan://NAME` one of Jan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ggferry.formats.errors import UsageError

if TYPE_CHECKING:
    from ggferry.converters.conversion.run import Result

LM_STUDIO, JAN = "lmstudio://", "jan://"


class Destination(Protocol):
    """Where an output goes.

    Attributes:
        out: The file or folder to write; None: the command decides.
    """

    out: str | None

    def publish(self, results: Sequence[Result]) -> list[str]:
        """Hand proved outputs over to the program; return a line for people a thing that was done."""
        ...


class PlainPath:
    """A file or folder like any other."""

    def __init__(self, out: str | None) -> None:
        self.out = out

    def publish(self, results: Sequence[Result]) -> list[str]:
        """Return nothing: all is done."""
        return []


@contextmanager
def destination(
    out: str | None, *, to: str = "gguf", several: bool = False, force: bool = False
) -> Iterator[Destination]:
    """Yield where an output goes. Within the context it is written, proved, and published.

    Args:
        out: The value of --outfile.
        to: The format that is written.
        several: Whether outputs of several types are written.
        force: Whether a model of that name may be replaced.

    Raises:
        UsageError: The address is none that is known, or names no model, or is that of a program that reads GGUF alone.
        RefusedError: A model of that name exists.
    """
    from ggferry.formats.ollama.names import SCHEME

    if out is None or "://" not in out:
        yield PlainPath(out)
    elif to != "gguf":
        raise UsageError("only GGUF files are written to such a place", found=f"--to {to} -o {out}", expected="a path")
    elif out.startswith(SCHEME):
        from ggferry.service.destinations.ollama import OllamaDestination

        _check_one(out, several)
        with OllamaDestination(out, force=force) as ollama:
            yield ollama
    elif out.startswith(LM_STUDIO):
        from ggferry.service.destinations.lm_studio import folder_of

        yield PlainPath(folder_of(out.removeprefix(LM_STUDIO)))
    elif out.startswith(JAN):
        from ggferry.service.destinations.jan import JanDestination

        _check_one(out, several)
        yield JanDestination(out, force=force)
    else:
        raise UsageError(
            "not a place that outputs can be written to",
            found=out,
            expected=f"a path, {SCHEME}NAME:TAG, {LM_STUDIO}PUBLISHER/MODEL or {JAN}NAME",
        )


def _check_one(out: str, several: bool) -> None:
    if several:
        raise UsageError("several types need several names of outputs", found=out, expected="one --outtype")
