"""The command that compares the quality of two models on a text: compare."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ggferry.service.cli.options import HeadedCommand, print_json, takes, tell
from ggferry.service.operations.compare import CompareCommand, run

if TYPE_CHECKING:
    from ggferry.converters.analysis.perplexity import Figure

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(CompareCommand)
def compare(request: CompareCommand) -> None:
    """Compare, and print a line for each chunk."""
    from ggferry.formats.files.partial_files import write_text
    from ggferry.service.records.quality_html import quality_page
    from ggferry.support.allocator import tune_malloc

    tune_malloc()
    found = run(request)
    if request.html is not None:
        page = quality_page(found, os.fspath(request.first), os.fspath(request.second))
        write_text(os.fspath(request.html), [page], overwrite=request.force)
    if request.as_json:
        print_json(asdict(found))
        return
    heads = ("PPL(B)", "ln(PPL(B)/PPL(A))", "KL divergence", "Δp RMS", "same top token")
    tell("chunk  " + "".join(f"{head:>26}" for head in heads))
    for each in found.chunks:
        tell(
            f"{each.number:5d}  {_shown(each.perplexity_b, 4)}{_shown(each.log_ratio, 5)}"
            f"{_shown(each.kl_divergence, 5)}{_shown(each.probability_rms, 3, 100)}{_shown(each.same_top, 3, 100)}"
        )
    a_whole, b_whole, parts = found.chunks[-1].perplexity_a, found.chunks[-1].perplexity_b, found.percentiles
    tell(f"PPL(A) {a_whole.value:.6f} ± {a_whole.error:.6f}, PPL(B) {b_whole.value:.6f} ± {b_whole.error:.6f}")
    tell(f"correlation of ln(PPL) {found.correlation:.2%}")
    tell(f"KL divergence: median {parts[0.5]:.6f}, 99% {parts[0.99]:.6f}, largest {parts[1.0]:.6f}")


def _shown(figure: Figure, digits: int, scale: float = 1.0) -> str:
    unit = " %" if scale != 1 else ""
    return f"{scale * figure.value:.{digits}f} ± {scale * figure.error:.{digits}f}{unit}".rjust(26)
