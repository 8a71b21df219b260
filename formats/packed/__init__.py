"""Models inside compressed files and archives."""
