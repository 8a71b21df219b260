"""The picture by which a size is chosen: KL divergence over the bytes of the file, and the best of each size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ggferry.converters.analysis.quality.figures import Perplexity
from ggferry.service.records.quality.table import names_of
from ggferry.service.records.report_html import size
from ggferry.support.printable import printable

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 340, 70, 20, 14, 34  # pixels
LEAST = 1e-9  # nats; less is shown there


def best_by_size(models: Sequence[Perplexity]) -> list[Perplexity]:
    """Return the models that no smaller or equal one is nearer to the base than, the smallest first."""
    found: list[Perplexity] = []
    for each in sorted(models, key=lambda each: (each.bytes, each.whole.kl_divergence.value)):
        if not found or each.whole.kl_divergence.value < found[-1].whole.kl_divergence.value:
            found.append(each)
    return found


def pareto(models: Sequence[Perplexity]) -> str:
    """Return the picture as SVG: a point with its standard error for each model, a line through the best."""
    sizes = [each.bytes for each in models]
    powers = [_power(each) for each in models]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    high = high if high > low else low + 1
    room = (max(sizes) - min(sizes)) or max(sizes) or 1
    start, end = min(sizes) - 0.05 * room, max(sizes) + 0.05 * room

    def x(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (count - start) / (end - start)

    def y(power: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - power) / (high - low)

    parts = []
    for line in range(low, high + 1):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(line):.1f}" y2="{y(line):.1f}" stroke="#9fb3c8" '
            f'stroke-opacity=".4"/><text x="{LEFT - 8}" y="{y(line) + 4:.1f}" text-anchor="end">1e{line}</text>'
        )
    best = best_by_size(models)
    places = " ".join(f"{x(each.bytes):.1f},{y(_power(each)):.1f}" for each in best)
    parts.append(
        f'<polyline fill="none" stroke="#2f6f9f" stroke-width="1.5" stroke-dasharray="4 3" points="{places}"/>'
    )
    for name, each, power in zip(names_of(models), models, powers, strict=True):
        figure, at = each.whole.kl_divergence, x(each.bytes)
        ends = [y(_log(figure.value + sign * figure.error, low)) for sign in (-1, 1)]
        kind = "after" if each in best else "before"
        side, anchor = (8, "start") if at < WIDTH / 2 else (-8, "end")
        text = escape(printable(name))
        title = (
            f"{text}: {size(each.bytes)}, {each.bits_per_weight:.2f} bpw, KLD {figure.value:.6f} ± {figure.error:.6f}"
        )
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" stroke="#2f6f9f"/>'
            f'<circle class={kind} cx="{at:.1f}" cy="{y(power):.1f}" r="4.5"><title>{title}</title></circle>'
            f'<text x="{at + side:.1f}" y="{y(power) - 6:.1f}" text-anchor="{anchor}">{text}</text>'
        )
    axis = (
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{size(min(sizes))}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{size(max(sizes))}</text>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="Mean KL divergence in nats by size">'
        f"{''.join(parts)}{axis}</svg>"
    )


def _power(each: Perplexity) -> float:
    return _log(each.whole.kl_divergence.value, -math.inf)


def _log(value: float, least: float) -> float:
    return max(least, math.log10(max(value, LEAST)))
