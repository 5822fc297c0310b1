"""What travels and who may see it."""
