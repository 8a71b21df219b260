"""The run of a conversion: the request, the plan of its outputs, the kinds of outputs, the proof and the receipts."""
