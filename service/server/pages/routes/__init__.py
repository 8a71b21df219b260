"""HTML routes: what is shown, what is changed, what administrators do, and the way in by a provider."""
