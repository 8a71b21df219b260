"""What stands before every route: names of the host, tokens, forms of other sites, sizes, rates, headers."""
