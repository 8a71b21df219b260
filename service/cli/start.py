"""Where the programs begin, before anything of them is imported."""

import gc

OBJECTS = 100_000
"""What a start makes is no garbage: looking for some as often as Python does took a tenth of `inspect`."""


def main() -> None:
    """Run the command `ggferry`."""
    gc.set_threshold(OBJECTS)
    from ggferry.service.cli.app import main as run

    run()


def convert_main() -> None:
    """Run the command `convert`: `convert old.bin --to gguf`."""
    gc.set_threshold(OBJECTS)
    from ggferry.service.cli.app import convert_main as run

    run()
