"""Privacy in clustered federated learning and federated clustering."""

from __future__ import annotations

__version__ = "0.1.0"
