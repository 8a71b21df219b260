"""What a command is given as its source, a path or a URL, made a path that everything else reads."""
