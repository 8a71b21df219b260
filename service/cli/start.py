"""Where the programs begin, before anything of them is imported."""

import gc
import os

OBJECTS = 100_000
"""What a start makes is no garbage: looking for some as often as Python does took a tenth of `inspect`."""


def _begin() -> None:
    gc.set_threshold(OBJECTS)
    if os.environ.get("GGFERRY_TRACE"):
        from ggferry.service.trace_points import begin_as_environment_states

        begin_as_environment_states(first=True)


def main() -> None:
    """Run the command `ggferry`."""
    _begin()
    from ggferry.service.cli.app import main as run

    run()


def convert_main() -> None:
    """Run the command `convert`: `convert old.bin --to gguf`."""
    _begin()
    from ggferry.service.cli.app import convert_main as run

    run()
