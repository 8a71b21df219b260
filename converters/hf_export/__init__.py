"""The road back: a bound model written as a Hugging Face folder, by the tables of its architecture read backwards."""
