"""The command that compares the quality of models on a text: compare."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import HeadedCommand, print_json, takes, tell
from ggferry.service.operations.compare import CompareCommand, run

if TYPE_CHECKING:
    from ggferry.converters.analysis.quality.figures import Perplexity

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(CompareCommand)
def compare(request: CompareCommand) -> None:
    """Compare, and print a line for each chunk of one model, or the table of several."""
    from ggferry.formats.files.partial_files import check_target, write_text
    from ggferry.service.records.quality.page import quality_page
    from ggferry.service.records.quality.table import lines, markdown
    from ggferry.support.allocator import tune_malloc

    tune_malloc()
    page, card = (None if path is None else os.fspath(path) for path in (request.html, request.markdown))
    if card == "-" and request.as_json:
        raise UsageError("--markdown - and --json both print", hint="--markdown FILE")
    for target in {page, card} - {None, "-"}:
        check_target(str(target), overwrite=request.force)
    found = run(request)
    base = os.fspath((request.kl_divergence_base if request.kl_divergence else request.first) or "")
    if page is not None:
        write_text(page, [quality_page(found, base, found.model)], overwrite=request.force)
    if card is not None:
        table = markdown(found, base, os.fspath(request.text or ""))
        if card == "-":
            for line in table:
                tell(line)
            return
        write_text(card, table, overwrite=request.force)
    if request.as_json:
        print_json(found)
        return
    if not found.others:
        _by_chunk(found)
    for line in lines(found):
        tell(line)


def _by_chunk(found: Perplexity) -> None:
    """Print the figures of one model after every chunk, and what is known of the whole only."""
    from ggferry.service.records.quality.table import shown

    heads = ("PPL(B)", "ln(PPL(B)/PPL(A))", "KL divergence", "Δp RMS", "same top token")
    tell("chunk  " + "".join(f"{head:>26}" for head in heads))
    for each in found.chunks:
        cells = (
            shown(each.perplexity_b, 4),
            shown(each.log_ratio, 5),
            shown(each.kl_divergence, 5),
            shown(each.probability_rms, 3, 100) + " %",
            shown(each.same_top, 3, 100) + " %",
        )
        tell(f"{each.number:5d}  " + "".join(cell.rjust(26) for cell in cells))
    last = found.whole
    tell(f"PPL(A) {shown(last.perplexity_a, 6)}, PPL(B) {shown(last.perplexity_b, 6)}")
    tell(f"PPL(B)/PPL(A) {shown(found.ratio, 6)}, PPL(B)-PPL(A) {shown(found.difference, 6)}")
    tell(f"correlation of ln(PPL) {found.correlation:.2%}, mean Δp {shown(found.probability_mean, 3, 100)} %")
    tell("KL divergence " + ", ".join(f"{_name(at)} {value:.6f}" for at, value in found.percentiles.items()))
    tell("Δp " + ", ".join(f"{_name(at)} {100 * value:.3f}%" for at, value in found.probability_percentiles.items()))


def _name(fraction: float) -> str:
    return {1.0: "largest", 0.5: "median", 0.0: "least"}.get(fraction, f"{100 * fraction:g}%")
