"""The verbs on archives, one module each, as `service/operations/` has those on files: request, result, and run.

They stand apart because workers answer with the verbs on files, and the verbs on archives start workers.
"""
