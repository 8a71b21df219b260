"""The verbs beside conversions, one module each: the records of its request and of its result, and `run`."""
