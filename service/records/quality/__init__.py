"""A comparison of models on a text as a table, as Markdown and as a page."""
