"""Docstrings are read once, by somebody in a hurry: a first line that stands alone, and the words of the field."""

import ast
import re
from pathlib import Path

import pytest

import ggferry
from helpers.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "formats",
    "quant",
    "service",
    "support",
    "converters/adapters",
    "converters/conversion_plan",
    "converters/forward",
    "converters/metadata",
    "converters/model_graph",
    "converters/proof",
    "converters/schema",
    "converters/tokenizers",
    "converters/write",
)
VERBS = (
    "converters/__init__.py",
    "converters/conversion/run.py",
    "converters/conversion/options.py",
    "converters/conversion/plan.py",
    "converters/understand.py",
    "converters/conversion/verify.py",
)
LONGEST = 120
MAIN = (
    *VERBS,
    "converters/model_graph/graph.py",
    "converters/model_graph/open_checkpoint.py",
    "converters/schema/architecture.py",
    "converters/schema/derivations.py",
    "converters/schema/expressions.py",
    "converters/schema/recipe.py",
    "converters/schema/roles.py",
    "converters/forward/evaluate.py",
    "converters/forward/model.py",
    "converters/forward/weights.py",
    "formats/checkpoint.py",
    "formats/errors.py",
    "formats/fields.py",
    "formats/reader.py",
    "formats/tensor_read.py",
    "formats/gguf/values.py",
    "quant/types.py",
    "quant/codec.py",
    "quant/blocks.py",
    "quant/recipes/rules.py",
    "service/library/answers.py",
    "service/library/conversions.py",
    "service/library/models.py",
    "support/content_cache.py",
    "support/places.py",
    "support/printable.py",
    "support/progress.py",
    "support/registry.py",
    "support/sizes.py",
    "support/threads.py",
)
"""The modules that a newcomer opens first: all that is public in them is documented."""
HOUSE_WORDS = {
    r"\bspeech\b": "architecture, dialect, layout",
    r"\bstrangers?\b": "untrusted, foreign",
    r"\bturned\b": "rotated, permuted, transposed",
    r"\b(is|are|was|were|be|being) told\b": "reported, passed, called with",
}
"""What this project used to say, and what the field says instead."""

HOUSE_NAMES = {
    "AtHand": "LocalSource",
    "at_hand": "local_source",
    "Testimony": "CrossCheck",
    "PassingError": "TransientError",
    "Passing": "DigestingSource",
    "Lookers": "InspectorPool",
    "lookers": "inspectors",
    "Harmless": "IgnoredKey",
    "Remark": "Caveat",
    "Strays": "MixedEndian",
    "strays": "mixed_endian",
    "Turned": "RotatedRows",
    "turned": "rotated",
    "Marks": "Fingerprints",
    "Stated": "DeclaredChecksum",
    "Said": "VocabularyCheckCache",
    "Asked": "RequestedChanges, MigrationRequest",
    "Wanted": "PlanRequest, TokenizerInputs",
    "Witness": "ReferenceImplementation, ReferenceTokenizer",
    "OfEra": "LegacyOptions",
    "OfVocabulary": "VocabularyOptions",
    "OfMatrix": "ImatrixOptions",
    "OfTypes": "TypeOptions",
    "OfSource": "SourceOptions",
    "OfProof": "ProofOptions",
    "OfEdits": "EditOptions",
    "patiently": "retry",
    "patience": "retry_timeout",
    "unheard": "drop_audio",
    "unspoken": "drop_talker",
    "unsayable": "unrepresentable",
    "or_one": "allow_scalar",
    "with_stated": "with_receipt_options",
    "take_apart": "parse_parts",
    "grant": "configure_access",
    "conceal": "redact_in",
    "give_back": "trim_heap",
    "expect_writing": "prefetch_encoders",
    "expect_comparing": "prefetch_decoders",
    "who_testified": "cross_check_line",
    "EARS": "AUDIO_ENCODERS",
    "EYES": "VISION_ENCODERS",
    "_text_half": "_text_backbone",
    "_ear": "_audio_encoder",
    "foreign": "other_formats",
    "differing": "diff",
    "across_containers": "diff_by_role",
    "lockstep": "batched_passes",
    "hearing": "worker_protocol",
    "witnessed": "reference_checked",
    "kept_blocks": "block_cache",
    "iquants_settle": "iquants_refine",
}
"""What modules, classes, functions and arguments used to be called, and what they are called instead."""

Node = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[str]:
    return sorted((*VERBS, *(str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py"))))


def documented(module: str, *, public: bool = False) -> list[tuple[str, str | None]]:
    """Return (name, docstring) of a module, its classes, functions and methods, or only of the `public` ones."""
    found: list[tuple[str, str | None]] = []

    def walk(node: Node, name: str) -> None:
        found.append((name, ast.get_docstring(node)))
        for child in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or _is_overload(child):
                continue
            if not (public and child.name.startswith("_")):
                walk(child, f"{name}:{child.name}" if name == module else f"{name}.{child.name}")

    walk(parsed(ROOT / module), module)
    return found


def _is_overload(node: Node) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in marks)


def test_the_first_line_stands_alone() -> None:
    """help(), an editor and an index show the first line only: it is a sentence, or it opens a list."""
    firsts = [(name, text.splitlines()[0]) for module in modules() for name, text in documented(module) if text]
    assert [(name, line) for name, line in firsts if not line.endswith((".", ":")) or len(line) > LONGEST] == []


def test_docstrings_use_the_words_of_the_field() -> None:
    wrong = [
        (name, word, f"say {better}")
        for module in modules()
        for name, text in documented(module)
        for word, better in HOUSE_WORDS.items()
        if text and re.search(word, text)
    ]
    assert wrong == []


def test_names_are_those_of_the_field() -> None:
    """Modules, classes, functions and arguments of the product (docs/decisions/names.md)."""
    wrong = []
    for room in ("converters", "formats", "quant", "service", "support"):
        for path in (ROOT / room).rglob("*.py"):
            place = str(path.relative_to(ROOT))
            defined = [path.stem]
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    defined.append(node.name)
                elif isinstance(node, ast.arg):
                    defined.append(node.arg)
            wrong += [(place, name, f"say {HOUSE_NAMES[name]}") for name in defined if name in HOUSE_NAMES]
    assert wrong == []


def test_what_is_public_is_documented() -> None:
    assert [name for module in MAIN for name, text in documented(module, public=True) if not text] == []


@pytest.mark.parametrize("name", [name for name in ggferry.__all__ if name != "__version__"])
def test_the_library_is_documented(name: str) -> None:
    text = getattr(ggferry, name).__doc__
    assert text and text.splitlines()[0].endswith((".", ":"))


def attributes_that_are_not(path: Path) -> list[str]:
    """What docstrings list under `Attributes:` that their classes do not have."""
    wrong = []
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ClassDef) or "Attributes:" not in (text := ast.get_docstring(node) or ""):
            continue
        has = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        has |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        for each in node.body:
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            has |= {target.id for target in targets if isinstance(target, ast.Name)} | {getattr(each, "name", "")}
        listed = re.findall(r"^    (\w+):", text.partition("Attributes:")[2], re.MULTILINE)
        wrong += [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}.{name}" for name in listed if name not in has]
    return wrong


def test_attributes_are_those_of_the_class() -> None:
    product = [
        path
        for room in ("converters", "formats", "quant", "service", "support")
        for path in (ROOT / room).rglob("*.py")
    ]
    assert len(product) > 500
    assert not [each for path in product for each in attributes_that_are_not(path)]
