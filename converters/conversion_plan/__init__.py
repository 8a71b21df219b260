"""What becomes of every tensor and every key, decided before any tensor data is read. Nothing is written here."""
