"""Read untrusted JSON within limits: duplicate keys, deep nesting and odd numbers are errors or are reported."""
