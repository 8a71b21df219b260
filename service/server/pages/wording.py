"""Numbers, times and kinds in words a person reads."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

from markupsafe import Markup

from ggferry.converters.conversion_plan.grades import MEANINGS
from ggferry.converters.model_graph.open_checkpoint import architecture_named
from ggferry.service.records.report_html import size as _size
from ggferry.service.server.pages.option_form import in_words
from ggferry.support.printable import printable

_PLACES = re.compile(r"(?<=[._/-])(?=[^._/-])")
GRADES = {grade.value: words for grade, words in MEANINGS.items()}
"""What a grade says, the most exact first."""
VERDICTS = {
    "convert": "to convert",
    "skip": "left as it is",
    "duplicate": "duplicate",
    "corrupt": "damaged",
    "incomplete": "incomplete",
    "unsupported": "not supported",
    "archive": "archive",
    "other": "not a model",
}
STATES = {
    "planned": "planned",
    "queued": "waiting",
    "running": "converting",
    "verifying": "proving",
    "done": "converted",
    "failed": "failed",
    "quarantined": "set aside",
    "cancelled": "cancelled",
    "expired": "files removed",
    "skipped": "skipped",
    **{verdict: words for verdict, words in VERDICTS.items() if verdict not in ("convert", "other")},
}
"""States of jobs, and verdicts of models that nobody submitted, in words; the order in which they are shown."""
FAULTS = {
    "file": "The file itself is at fault: the same bytes will fail again.",
    "passing": "This is a temporary failure: the same may succeed later.",
}
ADVICE = {
    "file": "compare the file with its original, byte by byte or by digest, and fetch it again where they differ",
    "person": "put this right, then try again",
    "passing": "try again in a moment",
    "truncated_error": "the file was not copied whole: compare its size with the original's and fetch it again",
    "unknown_format_error": "check that these are a model's weights, unpacked and whole; README.md lists what is read",
    "not_found_error": "check the address; what was removed is no longer shown",
    "not_found": "check the address",
    "access_error": "choose something below a root of this server, or start it with --root FOLDER",
}
"""What to do where an error itself does not say so, by its code or else by where its cause lies."""


def size(count: int | float | None) -> str:
    """Return a size for people: '1.5 GiB'; '–' for one that is not known."""
    return "–" if count is None else _size(int(count))


def visible(value: object) -> object:
    """Return what a template prints: every text in plainly printable characters, and numbers with separators.

    Markup that our own code made passes as it is.
    """
    if hasattr(value, "__html__"):
        return value
    if isinstance(value, str):
        return printable(str(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value


def broken(text: str) -> Markup:
    """Return a name that may be broken after its punctuation, as a page shows it."""
    return Markup("<wbr>").join(Markup.escape(part) for part in _PLACES.split(printable(text)))


def count(number: int, one: str, many: str | None = None) -> str:
    """Return '1 model' or '2,000 models'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def segment(text: str) -> str:
    """Return a text as one segment of an address."""
    return quote(text, safe="")


def advice(code: str, fault: str, hint: str | None) -> str:
    """Return what a person can do about an error, in the words of the page's form."""
    return (in_words(hint) if hint else "") or ADVICE.get(code) or ADVICE.get(fault, "")


def rate(bytes_a_second: float) -> str:
    """Return '12.0 MiB/s'."""
    return f"{size(bytes_a_second)}/s"


def duration(seconds: float | None) -> str:
    """Return '45 s', '3 min 20 s' or '2 h 5 min'."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(seconds: float | None) -> str:
    """Return a time of the ledger as '2026-11-22 11:20 UTC'."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ago(seconds: float | None, now: float | None = None) -> str:
    """Return how long ago something was: '3 min ago'; the day, where that is more than a week."""
    if seconds is None:
        return ""
    past = (time.time() if now is None else now) - seconds
    if past < 45:
        return "just now"
    for limit, unit, word in ((3600, 60, "min"), (86400, 3600, "h"), (7 * 86400, 86400, "d")):
        if past < limit:
            return f"{max(1, int(past // unit))} {word} ago"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def small(figure: float | str | None) -> str:
    """Return a relative error: '0', '3.1e-05', '0.012'; one that is infinite is a text already."""
    if figure is None:
        return "–"
    if isinstance(figure, str):
        return figure
    return "0" if figure == 0 else f"{figure:.2g}"


def percent(share: float | None) -> str:
    """Return a share as '99.5%', never rounded up to 100%."""
    if share is None:
        return "–"
    return "100%" if share == 1 else f"{math.floor(share * 1000) / 10:.1f}%"


def shape(sizes: Sequence[int]) -> str:
    """Return '4,096 × 32,000'."""
    return " × ".join(f"{each:,}" for each in sizes) or "scalar"


def parameters(number: int) -> str:
    """Return a number of weights as '7.2 billion'."""
    for unit, word in ((10**12, " trillion"), (10**9, " billion"), (10**6, " million"), (10**3, " thousand")):
        if number >= unit:
            return f"{number / unit:.3g}{word}"
    return str(number)


@lru_cache(1024)
def family(architecture: str) -> str:
    """Return a family's name as people write it, from its table."""
    known = architecture_named(architecture)
    return (known.display_name if known else None) or architecture


def a(noun: str) -> str:
    """Return a noun with its indefinite article."""
    word = noun.partition(" ")[0]
    spelled = word[:1].isupper() and not word[1:2].islower() and word not in ("LLaMA", "BLOOM")
    vowel = word[:1] in "AEFHILMNORSX" if spelled else word[:1].lower() in "aeiou"
    return f"{'an' if vowel else 'a'} {noun}"


def sentence(architecture: str, container: str, era: str, types: str, weights: int, bytes_in: int) -> str:
    """Return what a model is, in one sentence; it says only what is known."""
    what = a(f"{family(architecture)} model") if architecture else ""
    of = f" of {parameters(weights)} weights" if weights else ""
    place = a(f"{container} file") if container else "a file"
    text = f"{what}{of} in {place} of {size(bytes_in)}" if what else f"{place} of {size(bytes_in)}"
    text = text[0].upper() + text[1:]
    if types:
        text += f", stored as {types.replace(', ', ' and ') if types.count(', ') == 1 else types}"
    if era:
        text += f"; such files were written {era}"
    return text + "."


def listed(counts: Mapping[str, int]) -> str:
    """Return '16 repacked, 5 identical', the most exact first."""
    order = {grade: place for place, grade in enumerate(GRADES)}
    return ", ".join(f"{counts[grade]:,} {grade}" for grade in sorted(counts, key=lambda g: order.get(g, 99)))
