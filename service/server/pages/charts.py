"""Plots as inline SVG: horizontal places in percent, so that text keeps its size at any width; colors by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ggferry.service.server.pages import wording
from ggferry.service.server.pages.model_page import Agreement, TensorRow
from ggferry.support.printable import printable

if TYPE_CHECKING:
    from ggferry.converters.conversion.summary import OutputSummary

LEFT, RIGHT = 9.0, 99.0  # percent of the width between which marks stand
LEAST, MOST = -10, 1  # powers of ten that the error axes show
TYPES = 7  # kinds of tensors with a color of their own; the rest are one
POINTS = 600  # marks in a plot; of more tensors, the worst of each run of neighbors is shown
HEIGHT, TOP, BOTTOM = 240, 12, 28  # pixels


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar: bytes of one type."""

    name: str
    bytes: int
    tensors: int
    color: int

    @property
    def swatch(self) -> str:
        """Return the class of its color."""
        return f"t{self.color}"


def _text(value: object) -> Markup:
    return Markup.escape(printable(str(value)))


def _log(value: float) -> float:
    """Return where a relative error stands on the axis, from 0 (nothing, or next to it) to 1."""
    if not value > 0:
        return 0.0
    return min(1.0, max(0.0, (math.log10(min(value, 10.0**MOST)) - LEAST) / (MOST - LEAST)))


# --- sizes by type -------------------------------------------------------------------------------------------------


def shares(tensors: Iterable[TensorRow]) -> tuple[tuple[Share, ...], tuple[Share, ...]]:
    """Return the bytes by type before and after, the largest first; a type has the same color in both."""
    before, after = _by_type(tensors, True), _by_type(tensors, False)
    rank = sorted({*before, *after}, key=lambda name: -max(before.get(name, (0,))[0], after.get(name, (0,))[0]))
    colors = {name: min(place, TYPES) for place, name in enumerate(rank)}
    return _parts(before, colors), _parts(after, colors)


def _by_type(tensors: Iterable[TensorRow], source: bool) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        name, nbytes = (tensor.source_type, tensor.bytes_in) if source else (tensor.type, tensor.bytes_out)
        if name and nbytes:
            total, number = found.get(name, (0, 0))
            found[name] = (total + nbytes, number + 1)
    return found


def _parts(found: Mapping[str, tuple[int, int]], colors: Mapping[str, int]) -> tuple[Share, ...]:
    ranked = sorted(found.items(), key=lambda item: (colors[item[0]], -item[1][0]))
    return tuple(Share(name, nbytes, number, colors[name]) for name, (nbytes, number) in ranked)


def bar(parts: Sequence[Share], most: int, label: str) -> Markup:
    """Return one bar of shares; its length is its bytes of `most`."""
    rects, at = [], 0.0
    for part in parts:
        width = 100 * part.bytes / most if most else 0
        title = _text(f"{part.name}: {wording.size(part.bytes)}, {wording.count(part.tensors, 'tensor')}")
        rects.append(
            f'<rect class="{part.swatch}" x="{at:.3f}%" width="{max(width, 0.15):.3f}%" height="28">'
            f"<title>{title}</title></rect>"
        )
        at += width
    sizes = "; ".join(f"{part.name} {wording.size(part.bytes)}" for part in parts)
    return Markup('<svg class="chart bar" width="100%" height="28" role="img" aria-label="{}">{}</svg>').format(
        _text(f"{label}: {sizes}"), Markup("".join(rects))
    )


def length(size: int, most: int, label: str) -> Markup:
    """Return one bar as long as `size` is of `most`."""
    width = 100 * size / most if most else 0
    return Markup('<svg class="chart bar" width="100%" height="12" role="img" aria-label="{}">{}</svg>').format(
        _text(f"{label}: {wording.size(size)}"),
        Markup(f'<rect class="t0" x="0" width="{width:.3f}%" height="12"/>'),
    )


def histogram(found: Mapping[str, Any]) -> Markup:
    """Return the distribution of a tensor's values as bars; their heights are the roots of the counts."""
    counts = found["counts"]
    if not counts:
        return Markup("")
    most, parts, step = max(counts), [], (RIGHT - 1) / len(counts)
    width = (found["largest"] - found["smallest"]) / len(counts)
    for number, count in enumerate(counts):
        tall = (HEIGHT - TOP - BOTTOM) * math.sqrt(count / most)
        at = found["smallest"] + number * width
        title = _text(f"{at:.4g} to {at + width:.4g}: {wording.count(count, 'value')}")
        place = f'x="{1 + number * step:.2f}%" y="{HEIGHT - BOTTOM - tall:.1f}" width="{step * 0.86:.2f}%"'
        height = max(tall, 0.5 if count else 0)
        parts.append(f'<rect class="t0" {place} height="{height:.1f}"><title>{title}</title></rect>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="rule" x1="1%" x2="{RIGHT}%" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="axis" x="1%" y="{HEIGHT - 6}">{found["smallest"]:.4g}</text>')
    parts.append(f'<text class="axis end" x="{RIGHT}%" y="{HEIGHT - 6}">{found["largest"]:.4g}</text>')
    label = _text(
        f"Distribution of {wording.count(found['elements'], 'value')} of {found['name']} from "
        f"{found['smallest']:.4g} to {found['largest']:.4g}"
    )
    return Markup('<svg class="chart" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, label, Markup("".join(parts))
    )


def ladder(ratings: Sequence[OutputSummary]) -> Markup:
    """Return the outputs of several types: bits per weight, and how far the logits lie from the source's."""
    rated = [each for each in ratings if each.kl_divergence is not None]
    if len(rated) < 2:
        return Markup("")
    widest = max(each.bits_per_weight for each in rated)
    apart = [each.kl_divergence or 0.0 for each in rated]
    known = [math.log10(each) for each in apart if each > 0] or [0.0]
    low, high = math.floor(min(known)) - 1, math.ceil(max(known))  # the lowest line is for what does not differ
    powers = [math.log10(each) if each > 0 else float(low) for each in apart]
    parts = []
    for line in range(low, high + 1):
        y, name = TOP + (HEIGHT - TOP - BOTTOM) * (high - line) / (high - low), "0" if line == low else f"1e{line}"
        parts.append(f'<line class="rule" x1="{LEFT - 1}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis end" x="{LEFT - 2}%" y="{y + 4:.1f}">{name}</text>')
    for each, power in zip(rated, powers, strict=True):
        x = LEFT + (RIGHT - 8 - LEFT) * each.bits_per_weight / widest
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - power) / (high - low)
        shown = _text(each.outtype)
        title = f"{shown}: {each.bits_per_weight:.2f} bits per weight, {each.kl_divergence:.2g} nats"
        parts.append(f'<circle class="mark" cx="{x:.2f}%" cy="{y:.1f}" r="5"><title>{title}</title></circle>')
        parts.append(f'<text class="axis" x="{x + 0.9:.2f}%" y="{y - 6:.1f}">{shown}</text>')
    parts.append(f'<text class="axis end" x="{RIGHT}%" y="{HEIGHT - 6}">bits per weight, up to {widest:.1f}</text>')
    points = "; ".join(
        f"{each.outtype} {each.bits_per_weight:.2f} bits, {each.kl_divergence:.2g} nats" for each in rated
    )
    label = _text(f"KL divergence of the logits by size: {points}")
    return Markup('<svg class="chart" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, label, Markup("".join(parts))
    )


# --- agreement -----------------------------------------------------------------------------------------------------


def agreement(found: Agreement) -> Markup:
    """Return a strip with the difference that was measured and the limit, on a logarithmic axis."""
    if found.worst is None:
        return Markup("")
    track = "track" if found.limit is not None else "track free"
    parts = [f'<rect class="{track}" x="0" y="13" width="100%" height="6" rx="3"/>']
    text = f"{found.who}, {found.what}: relative RMS {wording.small(found.worst)}"
    if found.limit is not None:
        at = 100 * _log(found.limit)
        parts.append(f'<rect class="beyond" x="{at:.2f}%" y="13" width="{100 - at:.2f}%" height="6" rx="3"/>')
        parts.append(f'<rect class="limit" x="{at:.2f}%" y="6" width="2" height="20"/>')
        text += f", limit {wording.small(found.limit)}"
    place = min(99.0, max(1.0, 100 * _log(found.worst)))
    kind = "over" if found.limit is not None and not found.worst <= found.limit else "mark"
    parts.append(f'<circle class="{kind}" cx="{place:.2f}%" cy="16" r="6"/>')
    label = _text(text)
    return Markup('<svg class="chart strip" width="100%" height="32" role="img" aria-label="{}">{}</svg>').format(
        label, Markup("".join(parts))
    )


# --- errors of tensors ---------------------------------------------------------------------------------------------


def errors(tensors: Sequence[TensorRow]) -> Markup:
    """Return a plot of every tensor's relative error in the order of the file, colored by grade."""
    measured = [tensor for tensor in tensors if tensor.relative_rms is not None]
    if not measured:
        return Markup("")
    parts = [*_rules(), *_marks(measured)]
    worst = max(measured, key=lambda tensor: tensor.relative_rms or 0.0)
    exact = sum(not tensor.relative_rms for tensor in measured)
    label = _text(
        f"Relative error of {wording.count(len(measured), 'tensor')}: {exact:,} without any, the largest "
        f"{wording.small(worst.relative_rms)} in {worst.name}"
    )
    return Markup('<svg class="chart errors" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, label, Markup("".join(parts))
    )


def _y(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - _log(value))


def _rules() -> list[str]:
    """Return the lines of the axis with their labels."""
    found = []
    for power in range(LEAST, MOST + 1, 2):
        y = _y(10.0**power)
        name = "0" if power == LEAST else f"1e{power}"
        found.append(f'<line class="rule" x1="{LEFT - 1}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text class="axis end" x="{LEFT - 2}%" y="{y + 4:.1f}">{name}</text>')
    found.append(f'<text class="axis" x="{LEFT}%" y="{HEIGHT - 6}">first tensor</text>')
    found.append(f'<text class="axis end" x="{RIGHT}%" y="{HEIGHT - 6}">last tensor</text>')
    return found


def _marks(measured: Sequence[TensorRow]) -> list[str]:
    run = -(-len(measured) // POINTS)
    found = []
    for start in range(0, len(measured), run):
        tensor = max(measured[start : start + run], key=lambda each: each.relative_rms or 0.0)
        error = tensor.relative_rms or 0.0
        x = LEFT + (RIGHT - LEFT) * (start + 0.5) / len(measured)
        title = _text(f"{tensor.name}: {tensor.grade}, {wording.small(error)}")
        grade = tensor.grade if tensor.grade in wording.GRADES else "unknown"
        found.append(
            f'<circle class="g-{grade}" cx="{x:.2f}%" cy="{_y(error):.1f}" r="{3.5 if run == 1 else 2.5}">'
            f"<title>{title}</title></circle>"
        )
    return found
