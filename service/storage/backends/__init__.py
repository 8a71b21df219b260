"""One module a kind of place: what it can promise, what it is asked, what its errors mean."""
