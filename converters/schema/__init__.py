"""The languages in which architectures are written: tables, layouts, expressions, derivations. No architecture."""
