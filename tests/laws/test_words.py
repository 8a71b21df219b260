"""What people read says it in the field's words (docs/decisions/names.md): docstrings, comments, messages, pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from helpers.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("support", "quant", "formats", "converters", "service")
HOUSE_PHRASES = {
    r"\bsees? (n?or|and) hears?\b|\bneither sees\b": "multimodal, vision or audio encoder",
    r"\b(what|(part|half|one|tower|model|checkpoint) that) (hears|speaks)\b": "audio encoder, audio decoder",
    r"\b(what|(part|half|tower) that) sees\b": "vision encoder",
    r"\btestif(y|ies|ied)\b|\btestimony\b": "compared with, cross-check",
    r"\bsecond files?\b": "mmproj file",
    r"\bat hand\b": "local, given",
    r"\b(told|tells?|telling) apart\b": "distinguished, detected",
    r"\b(is|are|was|were|be) looked at\b|\bLookers\b": "inspected, checked",
    r"\brungs?\b": "output",
    r"\broad back\b": "export",
    r"\bpatiently\b": "with retries",
    r"\bunsayable\b": "unrepresentable",
    r"\bcarr(y|ies|ied) over\b": "copied",
    r"\bthe very\b": "exactly the",
    r"\bstrays\b": "mixed byte order",
    r"\b(?<!`)(ears?|eyes?)\b(?!\.)": "audio encoder, vision encoder",
}
"""Expressions of the house, and what the field says instead."""
HOUSE_IDENTIFIERS = {
    "told": "notes, reported",
    "said": "answer, message, notes",
    "stated": "declared",
    "asked": "requested",
    "wanted": "requested, expected",
    "turned": "rotated, permuted, transposed",
    "mine": "what it holds: rows, condition, ours",
    "heard": "audio, compared",
    "hear": "run, audio",
    "hears": "audio",
    "ear": "audio encoder",
    "ears": "audio encoders",
    "eye": "vision encoder",
    "eyes": "vision encoders",
    "spoken": "dialect",
    "speaks": "talker, audio output",
    "unseen": "without vision",
    "unheard": "without audio",
    "unspoken": "without a talker",
    "rung": "output",
    "rungs": "outputs",
    "lookers": "inspectors",
    "strays": "mixed endian",
    "patiently": "with retries",
    "unsayable": "unrepresentable",
    "conceal": "redact",
    "kin": "family",
    "lockstep": "batched",
    "testimony": "cross check",
    "worn": "what it holds",
}
"""Words of identifiers, and what the field says instead."""
KEPT_IDENTIFIERS = {
    ("service/records/fields.py", "asked"): "a field of GET /models, which is stable (docs/versioning.md)",
    ("service/records/fields.py", "asked_by"): "a field of GET /models",
    ("service/server/api/jobs.py", "asked_by"): "the same of GET /queue",
    ("service/server/store/queue.py", "asked_by"): "the same of GET /queue",
    ("service/server/quality.py", "asked_by"): "the same of GET /models/ID/quality",
    ("service/server/pages/views.py", "asked"): "the same field",
    ("service/server/pages/views.py", "asked_by"): "the same field",
    ("service/server/store/tables.py", "asked"): "the stored table ggferry_asked",
    ("service/server/store/asked.py", "asked"): "the module of that table",
}
"""Identifiers that stay, by their module, and why."""
HOUSE_TITLE = re.compile(r"^(a|an) [\w' -]+? (that|which|whose) |^(a|an) [\w' -]+ twice$")
"""An error's title that is a noun and a clause instead of a plain statement."""
KEPT_TITLES: dict[str, str] = {}
"""Titles that stay, and why."""


def texts(path: Path, kinds: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of a module's docstrings, its comments, or its other texts."""
    source = path.read_text()
    tree = parsed(path)
    notes = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    if kinds == "comments":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_note = id(node) in notes
            if is_note == (kinds == "docstrings") and (is_note or " " in node.value):
                yield node.lineno, node.value


def offenders(place: str, line: int, text: str) -> list[tuple[str, str, str]]:
    words = " ".join(text.split())
    return [
        (f"{place}:{line}", found[0], f"say {better}")
        for phrase, better in HOUSE_PHRASES.items()
        for found in re.finditer(phrase, words)
    ]


def of_python(kinds: str) -> list[tuple[str, str, str]]:
    return [
        wrong
        for room in PRODUCT
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in texts(path, kinds)
        for wrong in offenders(str(path.relative_to(ROOT)), line, text)
    ]


def test_docstrings() -> None:
    assert of_python("docstrings") == []


def test_comments() -> None:
    assert of_python("comments") == []


def test_help_notes_and_errors() -> None:
    assert of_python("messages") == []


def test_titles_of_errors_are_plain_statements() -> None:
    wrong = []
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(parsed(path)):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                title = node.args[0]
                parts = title.values[:1] if isinstance(title, ast.JoinedStr) else [title]
                for part in parts:
                    text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
                    if name.endswith("Error") and HOUSE_TITLE.search(text) and text not in KEPT_TITLES:
                        wrong.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    assert wrong == []


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of whatever a module defines: functions, classes, arguments, variables, aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def defined() -> Iterator[tuple[str, int, str]]:
    """Yield module, line and name of all that the product defines, the modules' own names among them."""
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            yield place, 0, path.stem
            for line, name in identifiers(parsed(path)):
                yield place, line, name


def test_identifiers() -> None:
    wrong = [
        (f"{place}:{line}", name, f"say {HOUSE_IDENTIFIERS[word]}")
        for place, line, name in defined()
        for word in words_of(name)
        if word in HOUSE_IDENTIFIERS and (place, name) not in KEPT_IDENTIFIERS
    ]
    assert wrong == []


def test_what_is_kept_is_there() -> None:
    assert set(KEPT_IDENTIFIERS) <= {(place, name) for place, _, name in defined()}


def test_pages() -> None:
    wrong = []
    for path in sorted((ROOT / "service/server/pages").rglob("*.html")):
        for line, text in enumerate(path.read_text().splitlines(), 1):
            shown = re.sub(r"\{[{%].*?[%}]\}", " ", text)
            wrong += offenders(str(path.relative_to(ROOT)), line, shown)
    assert wrong == []


def test_documents() -> None:
    wrong = []
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        for line, text in enumerate(path.read_text().splitlines(), 1):
            wrong += offenders(path.name, line, re.sub(r"`[^`]*`", " ", text))
    assert wrong == []
