"""Is this federation safe to launch? Trains it, attacks it, and says so with evidence."""
