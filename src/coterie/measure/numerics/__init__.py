"""Attacks on how a mechanism is computed: its seed, the bits of its floats, and the order of its sums."""
