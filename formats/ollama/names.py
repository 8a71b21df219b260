"""Names of models as Ollama writes them: `llama3.2`, `llama3.2:3b`, `me/model:tag`, `host/me/model:tag`.

Source: ollama fb3076099, types/model/name.go.
"""

from __future__ import annotations

import os
import re

from ggferry.formats.errors import UsageError
from ggferry.support.records import dataclass

SCHEME = "ollama://"
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
_PARTS = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}"),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
}


@dataclass(frozen=True, slots=True)
class ModelName:
    """The name of a model, with what Ollama takes where a part is missing."""

    model: str
    tag: str = TAG
    namespace: str = NAMESPACE
    host: str = HOST

    @property
    def place(self) -> str:
        """Where its manifest is below `manifests/`."""
        return os.path.join(self.host, self.namespace, self.model, self.tag)

    @property
    def title(self) -> str:
        """Its name as the name of a file, without what says nothing."""
        return self.model if self.tag == TAG else f"{self.model}-{self.tag}"

    def __str__(self) -> str:
        """Return the shortest name that means it."""
        name = f"{self.model}:{self.tag}"
        if self.host != HOST:
            return f"{self.host}/{self.namespace}/{name}"
        return name if self.namespace == NAMESPACE else f"{self.namespace}/{name}"


def parse_name(text: str) -> ModelName:
    """Return the name in `text`, with or without `ollama://`. Raises UsageError for what Ollama takes for no name."""
    rest = text.removeprefix(SCHEME)
    place, slash, last = rest.rpartition("/")
    model, colon, tag = last.partition(":")
    host, _, namespace = place.rpartition("/") if slash else ("", "", "")
    found = ModelName(model, tag if colon else TAG, namespace or NAMESPACE, host or HOST)
    if (slash and not namespace) or not all(
        pattern.fullmatch(getattr(found, part)) for part, pattern in _PARTS.items()
    ):
        raise UsageError("not the name of a model of Ollama's", found=text, expected="[HOST/][NAMESPACE/]MODEL[:TAG]")
    return found


def name_of_place(parts: list[str]) -> ModelName | None:
    """Return the name that a manifest's last four path parts are; None where they are no name."""
    if len(parts) != 4:
        return None
    host, namespace, model, tag = parts
    found = ModelName(model, tag, namespace, host)
    valid = all(pattern.fullmatch(getattr(found, part)) for part, pattern in _PARTS.items())
    return found if valid else None
