"""What llama.cpp demands of the values of a file, and where its graph computes something else from them."""
