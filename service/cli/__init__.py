"""The command line: words in, words and exit codes out. What a command does is in other rooms."""
