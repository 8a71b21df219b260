"""`python -m ggferry`: the command `ggferry`, started the way that Python does not guard."""

import os
import sys


def _leave_the_current_folder() -> None:
    """Import nothing more from the folder one stands in, which may be a model's: -m put it before the library. What
    Python imported on its own way here was out of our hands; `ggferry` and `python -P -m ggferry` have no such gap."""
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()):
        del sys.path[0]
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.curdir)]


if __name__ == "__main__":
    _leave_the_current_folder()
    from ggferry.service.cli.start import main

    main()
