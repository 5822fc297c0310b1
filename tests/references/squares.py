"""Squared norms of whole rows, entry by entry and without any limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def squared_norms(rows: NDArray[np.int64]) -> list[int]:
    return [sum(entry * entry for entry in row) for row in rows.tolist()]
