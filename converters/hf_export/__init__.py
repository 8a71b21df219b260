"""Export to Hugging Face: a bound model written as a folder, by the tables of its architecture read backwards."""
