"""What the server does by itself: looking at models, running jobs, receiving files, keeping house, sending notices."""
