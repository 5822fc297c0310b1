"""What may be said of a run, and what was spent."""
