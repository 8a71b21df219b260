"""An archive becomes a plan: files are grouped into models, duplicates found, outputs named."""
