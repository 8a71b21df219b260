"""whisper.cpp's ggml-*.bin files: which types they have, which vocabulary they hold, and where everything stands."""
