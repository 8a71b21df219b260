"""Models surveyed tensor by tensor: digests, differences of two, one file judged by itself."""
