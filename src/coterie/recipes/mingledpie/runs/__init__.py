"""What the jobs do."""
