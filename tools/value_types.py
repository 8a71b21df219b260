"""Which GGUF value types the loader's templates take (llama-model-loader.cpp), read by a person: see READ_BY_HAND."""

from __future__ import annotations

import re

SCALARS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "str")
ARRAYS = tuple(f"[{kind}]" for kind in SCALARS)
KINDS = {
    "bool": "bool",
    "float": "f32",
    "uint32_t": "u32",
    "int32_t": "i32",
    "int": "i32",
    "uint16_t": "u16",
    "uint64_t": "u64",
    "llama_token": "i32",
    "std::string": "str",
    "enum llama_pooling_type": "u32",
    "llama_pooling_type": "u32",
}


def accepted(reader: str, kind: str, required: bool) -> tuple[tuple[str, ...], frozenset[str]]:
    """What value types a request takes, and which end the load; it is blind to the rest (llama-model-loader.cpp)."""
    element = re.search(r"< (?:const )?([\w:]+)", kind)
    inner = KINDS[element[1]] if element and kind.startswith("std::") else KINDS[kind]
    fixed = kind.startswith("std::array")
    whole = ("[u32]", "[i32]", *(("[bool]",) if fixed else ()))
    arrays = {"u32": whole, "i32": whole}.get(inner, (f"[{inner}]",))
    if reader == "get_arr_n":
        return ("[]",), frozenset(SCALARS)
    if reader == "get_arr":
        return arrays, frozenset({*ARRAYS} - {*arrays}) | (frozenset(SCALARS) if required else frozenset())
    if reader == "get_key" or not element:
        refused = {*SCALARS} - {inner} | ({*ARRAYS, "[]"} if reader == "get_key" or required else set())
        return (inner,), frozenset(refused)
    takes = (inner, *arrays)
    return takes, frozenset({*SCALARS, *ARRAYS} - {*takes})
