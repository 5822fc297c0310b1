"""Stacked tensors are large and short-lived; by default the C library gives each back to the system at once."""

from __future__ import annotations

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


@cache
def keep_freed_memory() -> bool:
    """Let the allocator reuse freed blocks up to 1 GiB instead of mapping them anew (1.4 to 3 times faster).

    Returns whether the C library knows how; elsewhere nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))
