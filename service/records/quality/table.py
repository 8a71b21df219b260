"""What was compared as a table, a line for each model: for a terminal, a page and a model card."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ggferry.converters.analysis.quality.figures import Figure, Perplexity
from ggferry.service.records.report_html import size
from ggferry.support.printable import printable

HEADS = (
    "model", "size", "bpw", "PPL", "PPL ratio", "mean KLD", "median KLD", "90% KLD", "99% KLD", "99.9% KLD", "max KLD",
    "RMS Δp %", "same top p %",
)  # fmt: skip


def models_of(found: Perplexity) -> tuple[Perplexity, ...]:
    """Return the figures of all models that were judged, as they were named."""
    return (found, *found.others)


def names_of(models: Sequence[Perplexity]) -> list[str]:
    """Return the names of models: those of their files, where these differ, else as they were named."""
    short = [os.path.basename(os.path.normpath(each.model)) or each.model for each in models]
    return short if len({*short}) == len(short) else [each.model for each in models]


def rows(found: Perplexity) -> list[tuple[str, ...]]:
    """Return the cells of each model, in the order of HEADS; errors are standard errors."""
    models = models_of(found)
    return [(name, *_cells(each)) for name, each in zip(names_of(models), models, strict=True)]


def _cells(each: Perplexity) -> Iterator[str]:
    last = each.whole
    yield size(each.bytes)
    yield f"{each.bits_per_weight:.2f}"
    yield shown(last.perplexity_b, 4)
    yield shown(each.ratio, 4)
    yield shown(last.kl_divergence, 6)
    for fraction in (0.5, 0.9, 0.99, 0.999, 1.0):
        yield f"{each.percentiles[fraction]:.6f}"
    yield shown(last.probability_rms, 3, 100)
    yield shown(last.same_top, 3, 100)


def shown(figure: Figure, digits: int, scale: float = 1.0) -> str:
    """Return a figure with its error."""
    return f"{scale * figure.value:.{digits}f} ± {scale * figure.error:.{digits}f}"


def lines(found: Perplexity) -> Iterator[str]:
    """Yield the lines for a terminal, in columns."""
    table = [HEADS, *rows(found)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADS))]
    for row in table:
        cells = [each.rjust(wide) for each, wide in zip(row, widths, strict=True)]
        yield "  ".join((row[0].ljust(widths[0]), *cells[1:]))


def markdown(found: Perplexity, base: str, text: str) -> Iterator[str]:
    """Yield the table for a model card, and what was measured; `base`, `text`: their names, "" where not known."""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|---|{'---:|' * (len(HEADS) - 1)}"
    for row in rows(found):
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""
    of = f" `{_code(base)}`" if base else ""
    on = f" of `{_code(text)}`" if text else ""
    yield (
        f"Against the base{of} (PPL {shown(found.whole.perplexity_a, 4)}) on {len(found.chunks)} chunks of "
        f"{found.context} tokens{on}, {found.count:,} predictions; KL divergence (KLD) in nats. Definitions: "
        "llama-perplexity's; computed by `ggferry compare`."
    )


def _cell(text: str) -> str:
    return "".join(f"\\{each}" if each in "\\|`*_[]<>#!~" else each for each in printable(text))


def _code(text: str) -> str:
    return printable(os.path.basename(os.path.normpath(text))).replace("`", "'")
