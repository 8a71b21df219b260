"""The command that compares the quality of two models on a text: compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, access_of, offers, print_json, tell

commands = typer.Typer(rich_markup_mode=None)
MODEL = "A model of any container and any dialect; a path or a URL."


@commands.command(cls=HeadedCommand)
@offers("compare")
def compare(
    first: Annotated[str, typer.Argument(parser=Named, metavar="A", help=f"The base. {MODEL}")],
    second: Annotated[str, typer.Argument(parser=Named, metavar="B", help=f"What is judged. {MODEL}")],
    text: Annotated[str, typer.Option("--text", "-f", metavar="FILE", help="The text.")],
    ctx: Annotated[int, typer.Option("--ctx", "-c", help="Tokens of a chunk.")] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", min=1, help="The most chunks (default: all).")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with the curves.")] = None,
    **given: Any,
) -> None:
    """Compare two models of one vocabulary on a text: perplexity, KL divergence, agreement, as llama-perplexity.

    Files need not be GGUF: a checkpoint's folder or a GGML-era file may be either of them.
    """
    from ggferry.converters.forward.device import computing_on
    from ggferry.formats.files.partial_files import write_text
    from ggferry.service.cli.progress_bar import progress
    from ggferry.service.library.comparing import quality_of
    from ggferry.service.records.quality_html import quality_page
    from ggferry.support.allocator import tune_malloc

    tune_malloc()
    quiet = given["as_json"]
    with access_of(first, given) as a, access_of(second, given) as b, computing_on(given["device"]):
        stage = b.staged(a.staged(lambda title, total: progress(title, total, wanted=not quiet)))
        found = quality_of(a, b, text, context=ctx, chunks=chunks, jobs=given["jobs"], stage=stage)
    if html is not None:
        write_text(html, [quality_page(found, first, second)], overwrite=given["force"])
    if quiet:
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


def _shown(figure: Any, digits: int, scale: float = 1.0) -> str:
    unit = " %" if scale != 1 else ""
    return f"{scale * figure.value:.{digits}f} ± {scale * figure.error:.{digits}f}{unit}".rjust(26)
