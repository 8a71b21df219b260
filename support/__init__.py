"""The ground floor: lazy imports, registries, threads, progress, interrupts. Nothing here knows bytes or models."""
