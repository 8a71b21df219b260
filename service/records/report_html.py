"""The report as one self-contained HTML page: no script, no font, no address. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ggferry.support.printable import printable

BARS = 60  # models in the plot, the largest
WIDTH, ROW, LABEL = 860, 22, 300  # pixels

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1d2733;background:#fff}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p.sub{color:#5b6875;margin-top:0}
.cards{display:flex;flex-wrap:wrap;gap:.8rem}.card{border:1px solid #d9e0e7;border-radius:8px;padding:.6rem 1rem}
.card b{display:block;font-size:1.3rem}.card span{color:#5b6875;font-size:.85rem}
table{border-collapse:collapse;width:100%;font-size:.85rem}
th,td{text-align:left;padding:.35rem .6rem;vertical-align:top;border-bottom:1px solid #e6ebf0}
th{color:#5b6875;font-weight:600}
th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.path{word-break:break-all;min-width:16rem}
.state{border-radius:4px;padding:.05rem .4rem;white-space:nowrap;background:#eef1f4}
.done{background:#dff3e4}.failed,.quarantined{background:#fbe2e0}.skipped{background:#eef1f4}
.running,.verifying,.queued{background:#e3edfb}svg text{font:12px system-ui,sans-serif;fill:currentColor}
.before{fill:#9fb3c8}.after{fill:#2f6f9f}code{font-size:.8rem}
@media(prefers-color-scheme:dark){body{background:#14191f;color:#dfe6ec}.card,th,td{border-color:#2c3640}
.state,.skipped{background:#2a333c}.done{background:#1d4a2c}.failed,.quarantined{background:#5a2522}
.running,.verifying,.queued{background:#1f3b5c}p.sub,.card span,th{color:#93a1ae}}
"""


def page(facts: Mapping[str, Any]) -> str:
    """Return the whole page for the facts of `report.collect`."""
    where = ", ".join(facts["roots"]) or "everything in the ledger"
    body = [
        f"<h1>Migration to GGUF</h1><p class=sub>{_text(where)} → {_text(facts['dest'] or 'beside the sources')}"
        f" · ggferry {_text(facts['ggferry'])}</p>",
        _cards(facts),
        _section("Damaged rows of the ledger", _counts(dict.fromkeys(facts.get("damaged_rows", ()), 1), "Row")),
        _section("What could not be converted, by class", _counts(facts["errors"], "Error")),
        _section("How the tensors arrived", _counts(facts["grades"], "Grade")),
        _section("What was skipped", _counts(facts["skipped"], "Reason")),
        _section("Sizes before and after", _plot(facts["models"])),
        _section("Every model", _models(facts["models"])),
        _section("Outputs of several types", _ratings(facts["models"])),
        f"<p class=sub>{facts['other_files']:,} other files are in the tree that are no models.</p>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Migration to GGUF</title>'
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>"


def size(count: int | None) -> str:
    """Return a size for people: '1.5 GiB'."""
    if count is None:
        return ""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _cards(facts: Mapping[str, Any]) -> str:
    totals = facts["totals"]
    saved = totals["bytes_saved"]
    cards = [
        (totals["done"], "models converted"),
        (totals["failed"] + totals["quarantined"], "not converted"),
        (totals["skipped"], "skipped"),
        (totals["queued"] + totals["running"] + totals["verifying"], "still to do"),
        (size(totals["bytes_before"]), "before"),
        (size(totals["bytes_after"]), "after"),
        (size(abs(saved)), "saved" if saved >= 0 else "more than before"),
        (size(totals["bytes_duplicate"]), "in duplicates"),
    ]
    return (
        "<div class=cards>" + "".join(f"<div class=card><b>{v}</b><span>{t}</span></div>" for v, t in cards) + "</div>"
    )


NUMBERS = ("Count", "Before", "After", "Size", "Bits per weight", "Logit KL (nats)")
"""Headings of columns of numbers, which are aligned with them."""


def _text(value: object) -> str:
    """Return untrusted text for the page: no markup, no marks that change the reading order."""
    return escape(printable(str(value)))


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>{content}" if content else ""


def _table(heads: Sequence[str], rows: Iterable[str]) -> str:
    shown = "".join(f"<th{' class=n' * (head in NUMBERS)}>{_text(head)}</th>" for head in heads)
    return f"<table><tr>{shown}</tr>{''.join(rows)}</table>"


def _counts(counts: Mapping[str, int], title: str) -> str:
    rows = [f"<tr><td>{_text(name)}</td><td class=n>{count:,}</td></tr>" for name, count in counts.items()]
    return _table((title, "Count"), rows) if rows else ""


def _plot(models: Sequence[Mapping[str, Any]]) -> str:
    """Return two bars for each model, the largest model first."""
    shown = sorted((m for m in models if m["bytes_out"]), key=lambda m: (-m["bytes_in"], m["source"]))[:BARS]
    if not shown:
        return ""
    most = max(max(m["bytes_in"], m["bytes_out"]) for m in shown)
    room = WIDTH - LABEL - 140
    parts = []
    for number, m in enumerate(shown):
        y = number * ROW
        name = m["source"] if len(m["source"]) <= 46 else "…" + m["source"][-45:]
        parts.append(f'<text x="0" y="{y + 14}">{_text(name)}</text>')
        for at, kind, count in ((2, "before", m["bytes_in"]), (11, "after", m["bytes_out"])):
            width = max(1, room * count // most)
            parts.append(f'<rect class="{kind}" x="{LABEL}" y="{y + at}" width="{width}" height="8"/>')
        text = f"{size(m['bytes_in'])} → {size(m['bytes_out'])}"
        parts.append(f'<text x="{LABEL + room + 8}" y="{y + 14}">{text}</text>')
    height = len(shown) * ROW + 4
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="sizes">{"".join(parts)}</svg>'


def _models(models: Sequence[Mapping[str, Any]]) -> str:
    heads = ("Model", "State", "What it is", "Before", "After", "Proof, or reason")
    return _table(heads, [_row(model) for model in models])


def _row(model: Mapping[str, Any]) -> str:
    version = "" if model["version"] is None else f" v{model['version']}"
    what = f"{model['container'] or ''}{version} {model['architecture'] or ''}"
    outputs = [each["path"] for each in model.get("outputs") or ()] or [model["output"]] * bool(model["output"])
    output = "".join(f"<br>→ {_text(each)}" for each in outputs)
    return (
        f"<tr><td class=path>{_text(model['source'])}{output}</td>"
        f"<td><span class='state {_text(model['state'])}'>{_text(model['state'])}</span></td><td>{_text(what)}</td>"
        f"<td class=n>{size(model['bytes_in'])}</td><td class=n>{size(model['bytes_out'])}</td>"
        f"<td>{_proof(model)}</td></tr>"
    )


def _ratings(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the outputs of models that have several."""
    heads = ("Output", "Type", "Size", "Bits per weight", "Worst tensor (relative RMS)", "Logit KL (nats)")
    rows = [_rating(each) for model in models for each in model.get("outputs") or ()]
    return _table(heads, rows) if rows else ""


def _rating(each: Mapping[str, Any]) -> str:
    worst = f"{each['worst']} ({each['relative_rms']:.2g})" if each["worst"] else "–"
    kl = "–" if each["kl_divergence"] is None else f"{each['kl_divergence']:.2g}"
    return (
        f"<tr><td class=path>{_text(each['path'])}</td><td>{_text(each['outtype'])}</td>"
        f"<td class=n>{size(each['bytes'])}</td><td class=n>{each['bits_per_weight']:.2f}</td>"
        f"<td>{_text(worst)}</td><td class=n>{kl}</td></tr>"
    )


def _proof(model: Mapping[str, Any]) -> str:
    if model["error"]:
        error = model["error"]
        place = f" at {error['offset']:#x}" if isinstance(error.get("offset"), int) else ""
        found = f": found {error['found']}" if error.get("found") is not None else ""
        hint = f" ({error['hint']})" if error.get("hint") else ""
        same = f" · {model['same_as']}" if model["same_as"] else ""
        return _text(f"{error.get('class', '')}{place}: {error.get('message', '')}{found}{hint}{same}")
    if not model["verified"]:
        return ""
    parts = [", ".join(f"{count} {grade}" for grade, count in model["grades"].items())]
    logits = model["logits"] or {}  # of an encoder there is no top token
    if logits.get("relative_rms") is not None:
        parts.append(f"logits differ by {logits['relative_rms']:.2g}")
    if logits.get("top1_agreement") is not None:
        parts.append(f"top-1 {logits['top1_agreement']:.0%}")
    tokens = model["tokenizer"] or {}
    if tokens.get("texts"):
        parts.append(f"{tokens['equal']}/{tokens['texts']} texts tokenize alike")
    if model["blake3"]:
        parts.append(f"BLAKE3 {model['blake3'][0][:16]}…")
    return _text("; ".join(filter(None, parts)))
