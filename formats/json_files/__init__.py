"""JSON of strangers, read within limits: duplicate keys, depth and odd numbers are errors or stated."""
