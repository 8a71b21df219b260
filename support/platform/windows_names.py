"""Names that a file of Windows cannot have, or that mean another file there."""

from __future__ import annotations

_DEVICES = {
    *("con", "prn", "aux", "nul", "conin$", "conout$"),
    *(f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"),
}
_FORBIDDEN = '<>:"/\\|?*'
LONGEST_PATH = 259
"""Characters of a path where Windows was not told to allow long ones."""


def unusable_name(name: str) -> str | None:
    """Return why no file can have this name; None where one can."""
    if bad := next((each for each in name if each in _FORBIDDEN or each < " "), None):
        return f"it has {bad!r}"
    if name.rstrip(". ") != name and name not in (".", ".."):
        return "it ends in a dot or a space, which Windows takes away"
    if name.partition(".")[0].rstrip(" ").casefold() in _DEVICES:
        return "Windows keeps this name for a device"
    return None


def same_name(name: str, other: str) -> bool:
    """Return whether two names of a folder lead to the same file there: case does not count."""
    return name.upper() == other.upper()
