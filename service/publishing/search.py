"""Search the Hugging Face Hub for models by name, through huggingface_hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from ggferry.formats.errors import GgferryError, NotFoundError, UnreachableError, UsageError
from ggferry.formats.reader import model_suffixes
from ggferry.service.publishing.places import without_tokens
from ggferry.service.storage.urls import mask
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SHOWN = ("downloads", "gated", "lastModified", "library_name", "likes", "private")
"""What the Hub is asked for of each model."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hub that holds a model.

    Attributes:
        id: OWNER/NAME.
        source: Its URL, as commands take it.
        downloads: How often it was downloaded in the last month.
        likes: How many like it.
        library: What it is made with, as the Hub says: 'transformers', 'gguf'; "" where it does not.
        updated: When it was changed last, in seconds since 1970; None where the Hub does not say.
        is_private: Whether it is private.
        is_gated: Whether its owner decides who may read it.
    """

    id: str
    source: str
    downloads: int = 0
    likes: int = 0
    library: str = ""
    updated: float | None = None
    is_private: bool = False
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of weights in a repository: its path there, its URL as commands take it, its size in bytes."""

    name: str
    source: str
    bytes: int


def search(text: str, owner: str | None, limit: int) -> list[HubModel]:
    """Return models whose names hold a text, those with the most downloads first; `owner`: only theirs.

    The token is that of huggingface_hub, if there is one. Raises UnreachableError, and UsageError without that package.
    """
    with _hub() as api:
        found = api.list_models(search=text, author=owner, sort="downloads", limit=limit, expand=[*SHOWN])  # type: ignore[list-item]
        return [_model(each) for each in found]


def weights(repository: str, limit: int) -> list[HubFile]:
    """Return the files of a repository that may hold weights, in the order of their names; `limit`: of all its files.

    Raises NotFoundError, and what `search` raises.
    """
    with _hub() as api:
        some = islice(api.list_repo_tree(repository, recursive=True), limit)
        files = [(str(each.path), int(each.size)) for each in some if hasattr(each, "size")]
    suffixes = tuple(model_suffixes())
    return [
        HubFile(name, f"hf://{repository}/{name}", size)
        for name, size in sorted(files)
        if name.lower().endswith(suffixes)
    ]


@contextmanager
def _hub() -> Iterator[HfApi]:
    """Yield the Hub, and make errors of huggingface_hub ours."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        words = "the Hub is searched with a package that is not here: huggingface_hub"
        raise UsageError(words, hint="pip install 'ggferry[hub]'") from None
    api = HfApi(endpoint=(os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None, library_name="ggferry")
    try:
        yield api
    except HfHubHTTPError as error:
        raise _failure(error, str(api.endpoint)) from None
    except Exception as error:
        if not isinstance(error, OSError | ValueError) and not type(error).__module__.startswith(("httpx", "httpcore")):
            raise
        raise UnreachableError("the Hub cannot be reached", path=str(api.endpoint), found=_words(error)) from None


def _model(found: Any) -> HubModel:
    updated = found.last_modified
    return HubModel(
        str(found.id),
        f"hf://{found.id}",
        int(found.downloads or 0),
        int(found.likes or 0),
        str(found.library_name or ""),
        updated.timestamp() if updated is not None else None,
        bool(found.private),
        bool(found.gated),
    )


def _failure(error: Any, endpoint: str) -> GgferryError:
    status = int(getattr(error.response, "status_code", 0) or 0)
    if status == 404:
        return NotFoundError("no such repository on the Hub", path=endpoint)
    if status in (401, 403):  # of the server, and not of whoever asks
        words, hint = "the Hub does not accept this server's token", "its HF_TOKEN is wrong or expired"
        return UnreachableError(words, path=endpoint, found=f"HTTP {status}", hint=hint)
    return UnreachableError("the Hub failed to answer", path=endpoint, found=f"HTTP {status}: {_words(error)}")


def _words(error: Exception) -> str:
    return " ".join(without_tokens(mask(str(error))).split())[:300]
