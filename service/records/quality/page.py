"""A comparison of models as one self-contained HTML page: no script, no font, no address. All text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from ggferry.converters.analysis.quality.figures import Chunk, Perplexity
from ggferry.service.records.quality.pareto import pareto
from ggferry.service.records.quality.table import HEADS, models_of, names_of, rows
from ggferry.service.records.report_html import STYLE
from ggferry.support.printable import printable

WIDTH, HEIGHT, LEFT = 860, 220, 70  # pixels


def quality_page(found: Perplexity, a: str, b: str) -> str:
    """Return the page. `a`, `b`: the names of the base and of what is judged."""
    several = bool(found.others)
    judged = f"{len(found.others) + 1} models" if several else f"B: {_text(b)}"
    body = [
        f"<h1>Models on a text</h1><p class=sub>A: {_text(a)} · {judged} · {len(found.chunks)} chunks of "
        f"{found.context} tokens, {found.count:,} predictions</p>",
        _cards(found) if not several else "",
        _table(found),
        f"<h2>KL divergence by size</h2>{pareto(models_of(found))}" if several else "",
    ]
    for name, each in zip(names_of(models_of(found)), models_of(found), strict=True):
        body.append(f"<h2>{_text(name)}</h2>" if several else "")
        body += _sections(each)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Models on a text</title>'
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>"


def _cards(found: Perplexity) -> str:
    last = found.whole
    cards = (
        ("perplexity of A", f"{last.perplexity_a.value:.4f} ± {last.perplexity_a.error:.4f}"),
        ("perplexity of B", f"{last.perplexity_b.value:.4f} ± {last.perplexity_b.error:.4f}"),
        ("KL divergence", f"{last.kl_divergence.value:.6f} ± {last.kl_divergence.error:.6f}"),
        ("same top token", f"{last.same_top.value:.3%} ± {last.same_top.error:.3%}"),
    )
    return (
        "<div class=cards>" + "".join(f"<div class=card><b>{v}</b><span>{k}</span></div>" for k, v in cards) + "</div>"
    )


def _table(found: Perplexity) -> str:
    head = "".join(f"<th{' class=n' if at else ''}>{_text(each)}</th>" for at, each in enumerate(HEADS))
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if at else ''}>{_text(each)}</td>" for at, each in enumerate(row)) + "</tr>"
        for row in rows(found)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _sections(found: Perplexity) -> Iterator[str]:
    yield "<h3>Perplexity so far</h3>"
    yield _curves(found.chunks, (("before", lambda c: c.perplexity_a.value), ("after", lambda c: c.perplexity_b.value)))
    yield "<h3>KL divergence of each chunk</h3>"
    yield _curves(found.chunks, (("after", lambda c: c.own_kl_divergence),))
    yield "<h3>Same top token so far</h3>"
    yield _curves(found.chunks, (("after", lambda c: c.same_top.value),))


def _text(value: str) -> str:
    return escape(printable(value))


def _curves(chunks: Sequence[Chunk], curves: Sequence[tuple[str, Callable[[Chunk], float]]]) -> str:
    """Return the curves over the chunks as SVG; A is the paler one."""
    values = [take(chunk) for _, take in curves for chunk in chunks]
    low, high = min(values), max(values)
    high = high if high > low else low + (abs(low) or 1.0)
    step = (WIDTH - LEFT - 10) / max(1, len(chunks) - 1)

    def point(number: int, value: float) -> str:
        return f"{LEFT + number * step:.1f},{10 + (high - value) / (high - low) * (HEIGHT - 40):.1f}"

    marks = []
    for name, take in curves:
        places = [point(number, take(chunk)) for number, chunk in enumerate(chunks)]
        color = {"before": "#9fb3c8", "after": "#2f6f9f"}[name]
        marks.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(places)}"/>')
        marks += [f'<circle class={name} cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2.5"/>' for p in places]
    labels = [
        f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{value:.4g}</text>'
        for y, value in ((14, high), (HEIGHT - 26, low))
    ]
    axis = f'<text x="{LEFT}" y="{HEIGHT - 6}">chunk 1</text><text x="{WIDTH - 10}" y="{HEIGHT - 6}" '
    axis += f'text-anchor="end">chunk {len(chunks)}</text>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img">{"".join(marks)}{"".join(labels)}{axis}</svg>'
