"""An archive becomes a plan: files grouped into models, duplicates found, outputs named."""
