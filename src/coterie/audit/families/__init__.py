"""One family of attacks a file."""
