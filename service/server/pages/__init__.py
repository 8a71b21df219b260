"""The pages for people: templates, styles and a little JavaScript over `functions.py`."""
