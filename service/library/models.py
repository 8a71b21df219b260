"""`open_model`: what a model holds and computes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Unpack

from ggferry.converters.conversion.request import open_source_of
from ggferry.service.library.answers import Model
from ggferry.service.library.keywords import Opening, StrPath, request, signed
from ggferry.service.sources.local_source import local_source

if TYPE_CHECKING:
    pass


@signed("open_model")
def open_model(path: StrPath, **options: Unpack[Opening]) -> Model:
    """Open a model of any container for its tensors, its forward pass and its tokenizer.

    Args:
        path: A model file, the first part of one, or a folder; a path or a URL.
        options: As for `convert`.

    Returns:
        The open model; use it in a `with`, or close it.

    Raises:
        GgferryError: As `inspect`.
        TypeError: There is no such option.

    Example:
        >>> with ggferry.open_model("llama") as model:
        ...     model.tensor("output_norm.weight").shape
        (64,)
    """
    with ExitStack() as stack:
        here = stack.enter_context(local_source(os.fspath(path)))
        request_ = request("open_model", here, options)
        checkpoint = open_source_of(request_)
        stack.callback(checkpoint.close)
        return Model(checkpoint, request_, stack.pop_all())
