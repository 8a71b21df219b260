"""What stands beside a GGUF file, by name: its receipt, and the second file of a model that sees or hears.

Kept apart from what makes them, because whoever looks for one needs the name alone.
"""

RECEIPT = ".receipt.json"
"""What a receipt's name adds to the name of its file."""
MAX_RECEIPT = 1 << 28
SECOND = "mmproj"
"""The type (`general.type`) of the file of what sees and hears, llama.cpp's prefix of its name, and the receipt's
member that lists it beside a text model."""
TEXT = "text"
"""The member of that file's receipt that lists the text models beside it."""


def second_name(name: str) -> str:
    """Return the file name of a second file (mmproj): with llama.cpp's prefix, unless the name says so already."""
    return name if SECOND in name else f"{SECOND}-{name}"
