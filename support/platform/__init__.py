"""All that differs between operating systems, behind one interface: `here` is the module of this one.

Every module has the same names; `linux` documents them, the others say what differs. docs/platforms.md says what was
run where.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggferry.support.platform import linux as here
else:
    _MODULES = {"win32": "windows", "darwin": "macos"}
    here = import_module(f"{__name__}.{_MODULES.get(sys.platform, 'linux')}")

__all__ = ["here"]
