"""One module for each kind of place: what it guarantees, what is asked of it, what its errors mean."""
