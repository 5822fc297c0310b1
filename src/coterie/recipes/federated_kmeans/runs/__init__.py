"""What the jobs of the private k-means recipes do."""
