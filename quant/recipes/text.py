"""Parse the texts users write for recipes: recipe files, `--tensor-type` arguments and files of them, lists of layers.

docs/recipes.md describes the recipe file. Texts go in and values come out; the caller reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from ggferry.quant.recipes.choose import Recipe, compile_pattern, recipe, sorted_names
from ggferry.quant.recipes.file_types import file_type_name, parse_file_type
from ggferry.quant.recipes.rules import KEEP, parse_rule, target_type
from ggferry.quant.types import BlockError

MAX_LINES = 10_000
MAX_LINE = 4096

_NUMBERED = re.compile(r"blk\.([0-9]{1,9})\.")  # anywhere: enc.blk.3., v.blk.3.


def parse_recipe(text: str, name: str = "recipe") -> Recipe:
    """Return the recipe a text describes; `name` is its name unless the text states one.

    Raises BlockError 'line N: …' for a line that is neither a heading nor a rule, and for a text without `base` or
    `default`.
    """
    found, headed = Recipe(name, ""), False
    seen: set[str] = set()
    for number, line in enumerate(_lines(text), 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        try:
            if "->" in line:
                found = replace(found, rules=(*found.rules, parse_rule(line)))
                headed = True
                continue
            if headed:
                raise BlockError(f"{line!r}: headings stand before the rules, and a rule has '-> TYPE'")
            found = _heading(found, seen, *_two(line))
        except BlockError as error:
            raise BlockError(f"line {number}: {error}") from None
    if not found.default:
        raise BlockError("a recipe needs a line 'base NAME' or 'default TYPE'")
    return found


def format_recipe(recipe: Recipe) -> str:
    """Return a recipe as a text that `parse_recipe` reads back as an equal one.

    Built-in recipes are written out in full.
    """
    file_type = None if recipe.file_type is None else file_type_name(recipe.file_type)
    extra = sorted(recipe.needs_imatrix - Recipe("", "").needs_imatrix)
    head = {"recipe": recipe.name, "default": recipe.default, "file_type": file_type, "imatrix": " ".join(extra)}
    lines = [f"{key:<9} {value}" for key, value in head.items() if value]
    return "\n".join([*lines, "", *map(str, recipe.rules)]).rstrip() + "\n"


def parse_tensor_type(text: str) -> tuple[str, str]:
    """Return ('attn_v', 'Q6_K') for the --tensor-type argument 'attn_v=q6_k'.

    It is a regular expression, searched in tensor names, and a type. The pattern is converted to lower case, as in
    llama-quantize; an escape whose meaning that would change is refused. Raises BlockError.
    """
    pattern, equals, kind = text.partition("=")
    if not equals or not pattern or not kind:
        raise BlockError(f"{text!r} is not REGEX=TYPE")
    if escape := re.search(r"(?<!\\)(?:\\\\)*(\\[A-Z])", pattern):
        raise BlockError(f"{pattern!r}: patterns become lower case, and {escape[1]} would mean {escape[1].lower()}")
    compile_pattern(pattern.lower())
    return pattern.lower(), target_type(kind)


def parse_tensor_types(text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a --tensor-type-file: REGEX=TYPE, separated by blanks or line breaks, in order.

    Raises BlockError 'line N: …'.
    """
    found: list[tuple[str, str]] = []
    for number, line in enumerate(_lines(text), 1):
        try:
            found.extend(parse_tensor_type(word) for word in line.split())
        except BlockError as error:
            raise BlockError(f"line {number}: {error}") from None
    return tuple(found)


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the block numbers of a --prune-layers argument ('3,4,11'), ascending, each once. Raises BlockError."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise BlockError(f"{text!r} is not a list of block numbers such as 3,4,11")
    return tuple(sorted({int(word) for word in words}))


def prune(names: Iterable[str], layers: Collection[int]) -> dict[str, str | None]:
    """Return the new name of every tensor after the blocks `layers` are removed, in sorted order.

    None marks a tensor that is removed; the blocks that stay are renumbered from 0. (remap_layer of llama-quant.cpp. An
    importance matrix continues to use the old names.) Raises BlockError when no tensor is in one of the blocks, or when
    no block would stay.
    """
    placed = [(name, _NUMBERED.search(name)) for name in sorted_names(names)]
    blocks = sorted({int(match[1]) for _, match in placed if match})
    if absent := sorted(set(layers) - set(blocks)):
        raise BlockError(f"no block {absent[0]} to prune; the model has {len(blocks)}")
    stay = {block: place for place, block in enumerate(block for block in blocks if block not in layers)}
    if not stay:
        raise BlockError("every block would be pruned")
    return {name: _renumbered(name, match, stay) if match else name for name, match in placed}


def _renumbered(name: str, match: re.Match[str], stay: Mapping[int, int]) -> str | None:
    place = stay.get(int(match[1]))
    return None if place is None else f"{name[: match.start(1)]}{place}{name[match.end(1) :]}"


def _base(found: Recipe, value: str) -> Recipe:
    base = recipe(value)
    return replace(base, name=found.name)


def _file_type(found: Recipe, value: str) -> Recipe:
    number = parse_file_type(value)
    if number is None:
        raise BlockError(f"{value!r} is not the name of a file type")
    return replace(found, file_type=number)


_HEADINGS: Mapping[str, Callable[[Recipe, str], Recipe]] = {
    "base": _base,
    "recipe": lambda found, value: replace(found, name=value),
    "default": lambda found, value: replace(found, default=KEEP if value.lower() == KEEP else target_type(value)),
    "file_type": _file_type,
    "imatrix": lambda found, value: replace(
        found, needs_imatrix=found.needs_imatrix | {target_type(word) for word in value.split()}
    ),
}


def _heading(found: Recipe, seen: set[str], key: str, value: str) -> Recipe:
    if key not in _HEADINGS:
        raise BlockError(f"{key!r} is not a heading ({', '.join(_HEADINGS)}), and a rule has '-> TYPE'")
    if key in seen:
        raise BlockError(f"{key} a second time")
    if key == "base" and seen - {"recipe"}:
        raise BlockError("base stands before the other headings")
    if not value:
        raise BlockError(f"{key} without a value")
    seen.add(key)
    return _HEADINGS[key](found, value)


def _two(line: str) -> tuple[str, str]:
    key, _, value = line.replace("\t", " ").partition(" ")
    return key, value.strip()


def _lines(text: str) -> list[str]:
    lines = text.removeprefix("\ufeff").splitlines()
    if len(lines) > MAX_LINES:
        raise BlockError(f"{len(lines)} lines; at most {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            raise BlockError(f"line {number}: {len(line)} characters; at most {MAX_LINE}")
    return lines
