"""What files at hand say of themselves: validity, sizes, memory, formats, quality."""
