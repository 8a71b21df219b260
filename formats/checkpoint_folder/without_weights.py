"""A folder that holds a configuration and a tokenizer, and no weights: all that a vocabulary needs."""

from __future__ import annotations

import os

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.folder import Weights, find_weights
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecar_files, sidecars
from ggferry.formats.files.sources import open_source

CONTAINER = "configuration"
STATING = ("config.json", "params.json")


def open_without_weights(folder: str) -> Checkpoint | None:
    """Return the checkpoint of a folder without weights; its files are the configuration and the tokenizer's.

    Returns None for a folder that has weights, or that lacks a configuration or a vocabulary. Raises as
    `find_weights` and `configuration`.
    """
    declared = next((name for name in STATING if os.path.isfile(os.path.join(folder, name))), None)
    if declared is None or find_weights(folder) is not None:
        return None
    weights = Weights(CONTAINER, folder, (os.path.join(folder, declared),))
    beside = sidecars(weights)
    roles = {file.role for file in sidecar_files() if file.tokenizer}
    if not any(file.vocabulary and file.role in beside for file in sidecar_files()):
        return None
    config, notes = configuration(weights, beside)
    own = [path for role, path in beside.items() if role in roles and path != weights.files[0]]
    files = tuple(open_source(path, folder) for path in (*weights.files, *own))
    note = "no weights are here: the vocabulary is written from the configuration and the tokenizer alone"
    return Checkpoint(CONTAINER, None, files, {}, {}, config, notes=(note, *notes), sidecars=beside)
