"""What local files say of themselves: validity, sizes, memory, formats, quality."""
