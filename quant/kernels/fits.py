"""The four searches of ggml-quants.c, for `LANES` blocks at once.

`x` and `w` hold values and weights as `[element][lane]`; `w` need only be written where a search takes it. Sums run
over the elements in order, as in the reference; a choice is a `where`.
"""

from __future__ import annotations

from ggferry.quant.kernels.common import LANES, MAGIC, F, inline, level_floats, load, nearest, spread
from ggferry.quant.kernels.lanes import absolute, bits, minimum, store, to_floats, where

TINY = F(1e-15)
"""`GROUP_MAX_EPS`: a block below it is all zero."""


@inline
def fit_line(x, w, level, count, top, first, step, steps, by_distance):
    """`make_qkx2_quants` and `make_qkx3_quants`: x ≈ scale · level + low, levels 0 … top, least Σ w · error.

    Each of the `steps` + 1 trials spreads the block over a range of `first` + `step` · i more levels than there are,
    and starts from the low end of the best so far. `level` is scratch. Returns scale, low, and the ratio and origin
    whose `levels(ratio · (x − origin))` are the search's own, and Σ w.
    """
    low = load(x, 0)
    high = low
    sum_w = load(w, 0)
    sum_wx = sum_w * low
    for e in range(LANES, count * LANES, LANES):
        v, weight = load(x, e), load(w, e)
        low, high = where(v < low, v, low), where(v > high, v, high)
        sum_w += weight
        sum_wx += weight * v
    low = where(low > F(0), F(0), low)
    flat, bottom = high == low, low
    ratio, origin = F(top) / (high - low), low
    scale = F(1) / ratio
    least = spread(F(0))
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        off = scale * level_floats(ratio * (v - low), 0, top) + low - v
        least += load(w, e) * (absolute(off) if by_distance else off * off)
    for i in range(steps + 1):
        trial = (first + step * F(i) + F(top)) / (high - low)
        sum_q, sum_qq, sum_qx = spread(F(0)), spread(F(0)), spread(F(0))
        for e in range(0, count * LANES, LANES):
            v = load(x, e)
            q = level_floats(trial * (v - low), 0, top)
            store(level, e, q)
            wq = load(w, e) * q
            sum_q += wq
            sum_qq += wq * q
            sum_qx += wq * v
        det = sum_w * sum_qq - sum_q * sum_q
        new_scale = (sum_w * sum_qx - sum_wx * sum_q) / det
        new_low = (sum_qq * sum_wx - sum_q * sum_qx) / det
        above = new_low > F(0)
        new_scale = where(above, sum_qx / sum_qq, new_scale)
        new_low = where(above, F(0), new_low)
        error = spread(F(0))
        for e in range(0, count * LANES, LANES):
            off = new_scale * load(level, e) + new_low - load(x, e)
            error += load(w, e) * (absolute(off) if by_distance else off * off)
        better = (det > F(0)) & (error < least)
        ratio, origin = where(better, trial, ratio), where(better, low, origin)
        scale, low, least = where(better, new_scale, scale), where(better, new_low, low), where(better, error, least)
    return where(flat, F(0), scale), where(flat, bottom, low), where(flat, F(0), ratio), origin, sum_w


@inline
def peak_of(x, count):
    """The first of the values with the largest magnitude, and that magnitude."""
    peak, most = spread(F(0)), spread(F(0))
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        larger = absolute(v) > most
        most, peak = where(larger, absolute(v), most), where(larger, v, peak)
    return peak, most


@inline
def _round(v, lowest, highest):
    """`levels` as floats of a |v| known to be below 2²²: the magic number without its bits, four operations."""
    v = where(v < F(lowest), F(lowest), v)
    v = where(v > F(highest), F(highest), v)
    return (v + MAGIC) - MAGIC


@inline
def fit_scale(x, w, wx, count, top, finite):
    """`make_qx_quants` with weights: x ≈ scale · level, levels −top … top − 1.

    `wx` is scratch; x is known to be `finite`, or may be the outcome of sums that overflowed. Returns scale and the
    ratio and origin whose `levels(ratio · (x − origin))` are the search's own; ggml leaves the lowest level, not 0,
    where a lane is all zero.
    """
    peak, most = peak_of(x, count)
    for e in range(0, count * LANES, LANES):
        store(wx, e, load(w, e) * load(x, e))
    scale, best, ratio = spread(F(0)), spread(F(0)), spread(F(0))
    for i in range(-10, 10):
        if i == 0:
            continue
        # The first trial spreads to the peak exactly and stands, unless its levels are all zero; the others compete.
        trial = (F(-top) if i == -10 else -(F(top) + F(0.1) * F(i))) / peak
        sum_qx, sum_qq = spread(F(0)), spread(F(0))
        for e in range(0, count * LANES, LANES):
            v = trial * load(x, e)
            q = _round(v, -top, top - 1) if finite else level_floats(v, -top, top - 1)
            sum_qx += load(wx, e) * q
            sum_qq += load(w, e) * q * q
        fitted = sum_qx / sum_qq
        if i == -10:
            scale, ratio = where(sum_qq != F(0), fitted, F(0)), trial
            best = scale * sum_qx
        else:
            better = (sum_qq > F(0)) & (sum_qx * sum_qx > best * sum_qq)
            scale, ratio = where(better, fitted, scale), where(better, trial, ratio)
            best = where(better, scale * sum_qx, best)
    zero = most < TINY
    return where(zero, F(0), scale), where(zero, F(1), ratio), where(zero, F(2 * top), spread(F(0)))


@inline
def start_descent(x, level, count, top):
    """Write the levels from which `make_q3_quants` starts, −top … top − 1 as floats, into `level`.

    Returns Σ w·q·x and Σ w·q², the weights being x². Both are 0, and the levels −top, where a lane is all zero.
    """
    peak, most = peak_of(x, count)
    zero, ratio = most < TINY, F(-top) / peak
    sum_qx, sum_qq = spread(F(0)), spread(F(0))
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        q = _round(ratio * v, -top, top - 1)
        store(level, e, where(zero, F(-top), q))
        sum_qx += v * v * v * q
        sum_qq += v * v * q * q
    return where(zero, F(0), sum_qx), where(zero, F(0), sum_qq)


@inline
def descend(x, level, sum_qx, sum_qq, count, top):
    """One round of `make_q3_quants`: each level is set to the best for the others' scale if that improves the fit.
    Returns the new sums and which lanes have changed; a lane that has not is finished."""
    changed = sum_qq < F(0)
    for e in range(0, count * LANES, LANES):
        v, q = load(x, e), load(level, e)
        weight = v * v
        rest_qx = sum_qx - weight * v * q
        rest_qq = sum_qq - weight * q * q
        new = level_floats(v * rest_qq / rest_qx, -top, top - 1)
        new_qx = rest_qx + weight * v * new
        new_qq = rest_qq + weight * new * new
        gain = new_qx * new_qx * sum_qq > sum_qx * sum_qx * new_qq
        move = (rest_qx > F(0)) & (new != q) & (new_qq > F(0)) & gain
        store(level, e, where(move, new, q))
        sum_qx, sum_qq = where(move, new_qx, sum_qx), where(move, new_qq, sum_qq)
        changed = changed | move
    return sum_qx, sum_qq, changed


@inline
def fit_levels(x, w, level, count, top):
    """`make_qp_quants`: x ≈ scale · level for x ≥ 0, levels 0 … top, least Σ w · error², then moved one by one.

    Leaves in `level` the levels as the uint8 that ggml keeps, as floats, and returns the scale.
    """
    most = spread(F(0))
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        most = where(most > v, most, v)
    ratio = F(top) / most
    least = spread(F(0))
    scale = F(1) / ratio
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        off = v - scale * to_floats(nearest(ratio * v) & 255)
        least += load(w, e) * off * off
    for i in range(-4, 5):
        if i == 0:
            continue
        trial = (F(0.1) * F(i) + F(top)) / most
        scale = F(1) / trial
        error = spread(F(0))
        for e in range(0, count * LANES, LANES):
            v = load(x, e)
            off = v - scale * to_floats(minimum(nearest(trial * v), top))
            error += load(w, e) * off * off
        better = error < least
        least, ratio = where(better, error, least), where(better, trial, ratio)
    sum_qx, sum_qq = spread(F(0)), spread(F(0))
    for e in range(0, count * LANES, LANES):
        v, weight = load(x, e), load(w, e)
        kept = minimum(nearest(ratio * v), top)
        q = to_floats(kept)
        store(level, e, to_floats(kept & 255))
        sum_qx += weight * v * q
        sum_qq += weight * q * q
    for _ in range(5):
        changed = most < F(0)
        for e in range(0, count * LANES, LANES):
            v, weight, q = load(x, e), load(w, e), load(level, e)
            rest_qx = sum_qx - weight * v * q
            rest_qq = sum_qq - weight * q * q
            kept = minimum(nearest(v * rest_qq / rest_qx), top)
            new = to_floats(kept)
            new_qx = rest_qx + weight * v * new
            new_qq = rest_qq + weight * new * new
            gain = new_qx * new_qx * sum_qq > sum_qx * sum_qx * new_qq
            move = (rest_qx > F(0)) & (rest_qq > F(0)) & (new != q) & gain
            store(level, e, where(move, to_floats(kept & 255), q))
            sum_qx, sum_qq = where(move, new_qx, sum_qx), where(move, new_qq, sum_qq)
            changed = changed | move
        if bits(changed) == 0:
            break
    zero = most < TINY
    for e in range(0, count * LANES, LANES):
        store(level, e, where(zero, F(0), load(level, e)))
    return where(zero, F(0), where(sum_qq > F(0), sum_qx / sum_qq, F(0)))
