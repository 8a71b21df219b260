"""The files of done jobs, on this machine or in an object store: read, removed, and cleared of what was broken off."""
