"""A Hub that tests publish on."""

from __future__ import annotations

from collections.abc import Iterator

import huggingface_hub.constants
import pytest

from helpers.writable_hub import TOKEN, WritableHub, writable_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    with writable_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found
