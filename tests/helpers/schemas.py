"""docs/schemas, closed: what is written must be declared there."""

from __future__ import annotations

import json
from typing import Any

import json_schemas
from jsonschema import Draft202012Validator


def loaded(name: str) -> Any:
    return json.loads(json_schemas.path(name).read_text())


def closed(value: Any) -> Any:
    """Return a schema that allows no member it does not name: what is written must be declared."""
    if isinstance(value, dict):
        found = {key: closed(each) for key, each in value.items()}
        return {**found, "additionalProperties": False} if isinstance(found.get("properties"), dict) else found
    return [closed(each) for each in value] if isinstance(value, list) else value


def faults(name: str, value: Any) -> list[str]:
    checker = Draft202012Validator(closed(loaded(name)))
    return [f"{list(each.absolute_path)}: {each.message[:300]}" for each in checker.iter_errors(value)]
