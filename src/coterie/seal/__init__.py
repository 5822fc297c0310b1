"""Primitives that hide values from whoever adds them up. No user names them; they know of nothing but the wire."""
