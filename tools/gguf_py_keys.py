"""Write converters/rewrite/keys/standard_keys.txt: every key of gguf-py's constants, with the types its writer gives.

Run it where a newer `gguf` is installed: `python tools/gguf_py_keys.py > converters/rewrite/keys/standard_keys.txt`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib.metadata import version

import gguf
from gguf.constants import Keys

_WRITES = {
    "add_uint8": "u8",
    "add_int8": "i8",
    "add_uint16": "u16",
    "add_int16": "i16",
    "add_uint32": "u32",
    "add_int32": "i32",
    "add_uint64": "u64",
    "add_int64": "i64",
    "add_float32": "f32",
    "add_float64": "f64",
    "add_bool": "bool",
    "add_string": "str",
    "add_array": "array",
}
_ITEMS = {"int": "[i32]", "TokenType": "[i32]", "float": "[f32]", "str": "[str]", "bool": "[bool]"}
_NOT_STORED = "GGUF."
"""Keys by which gguf-py names fields of the header itself."""


def named() -> dict[str, str]:
    """Return gguf-py's expressions for its keys → the keys: 'Keys.LLM.BLOCK_COUNT' → '{arch}.block_count'."""
    found = {}
    for group, members in vars(Keys).items():
        if isinstance(members, type):
            nested = {f"Keys.{group}.{name}": value for name, value in vars(members).items()}
            for name, value in list(nested.items()):
                if isinstance(value, type):
                    nested |= {f"{name}.{inner}": each for inner, each in vars(value).items()}
            found |= {name: value for name, value in nested.items() if isinstance(value, str) and "__" not in name}
    return {name: value for name, value in found.items() if "." in value and not value.startswith(_NOT_STORED)}


def written() -> Iterator[tuple[str, str]]:
    """Yield (expression of a key, type) of everything that gguf-py's writer writes."""
    for method in ast.walk(ast.parse(inspect.getsource(gguf.GGUFWriter))):
        if not isinstance(method, ast.FunctionDef):
            continue
        notes = {arg.arg: ast.unparse(arg.annotation) for arg in method.args.args if arg.annotation}
        for call in ast.walk(method):
            match call:
                case ast.Call(func=ast.Attribute(attr=attr), args=[key, value]) if attr in _WRITES:
                    name = ast.unparse(key).partition(".format")[0]
                    if name.startswith("Keys."):
                        yield name, _type(_WRITES[attr], notes.get(ast.unparse(value), ""))


def _type(kind: str, note: str) -> str:
    if kind != "array":
        return kind
    items = {word for word in _ITEMS if f"Sequence[{word}]" in note}
    return _ITEMS[min(items)] if len({_ITEMS[word] for word in items}) == 1 else "array"


def lines() -> list[str]:
    """Return the lines of the table: a key and its types, 'any' where gguf-py has no method that writes it."""
    types: dict[str, list[str]] = {key: [] for key in named().values()}
    keys = named()
    for name, kind in written():
        if name in keys and kind not in types[keys[name]]:
            types[keys[name]].append(kind)
    return [f"{key} {'|'.join(sorted(kinds)) or 'any'}" for key, kinds in sorted(types.items())]


if __name__ == "__main__":
    print(f"# Made by tools/gguf_py_keys.py from gguf {version('gguf')}: a key, and the types its writer gives it.")
    sys.stdout.writelines(f"{line}\n" for line in lines())
