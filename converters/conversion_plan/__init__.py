"""What becomes of every tensor and key is decided here, before any tensor data is read. Nothing is written here."""
