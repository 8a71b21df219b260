"""README.md of a written folder: what general.* keys say, as a card of the Hub says it, and where it is from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ggferry.converters.metadata.key_table import CARD_LISTS, CARD_TEXTS
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.printable import printable

MAX_ORIGINS = 64


def model_card(general: Mapping[str, Any], description: str, library: str = "transformers") -> bytes:
    """Return the card.

    Args:
        general: Values of general.* keys, without 'general.'.
        description: A sentence on where the weights are from.
        library: The library that loads them.
    """
    fields: JSONObject = {}
    for key, names in CARD_TEXTS.items():
        if isinstance(general.get(key), str):
            fields[names[0]] = general[key]
    if isinstance(general.get("license"), str):
        fields["license"] = general["license"]
    for key, names in CARD_LISTS.items():
        if isinstance(general.get(key), tuple):
            fields["language" if key == "languages" else names[0]] = [str(item) for item in general[key]]
    for field, prefix in (("base_model", "base_model"), ("datasets", "dataset")):
        if origins := list(_origins(general, prefix)):
            fields[field] = origins
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    title = printable(str(general.get("name") or "A model"))
    text = "\n".join(["---", *lines, f"library_name: {library}", "---", "", f"# {title}", "", description, ""])
    if isinstance(general.get("description"), str):
        text += f"\n{general['description']}\n"
    return text.encode("utf-8", "backslashreplace")


def _origins(general: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for number in range(MAX_ORIGINS):
        url, name = (general.get(f"{prefix}.{number}.{what}") for what in ("repo_url", "name"))
        if isinstance(url, str) and url.startswith("https://huggingface.co/"):
            yield url.removeprefix("https://huggingface.co/").removeprefix("datasets/")
        elif isinstance(name, str):
            yield name
