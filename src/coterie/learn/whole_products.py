"""Sums of outer products of whole numbers, exactly: by products of bytes where the machine has them, else of floats."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import require

EXACT = 1 << 24
"""Whole numbers up to here are float32's."""

BYTE = 127
"""Entries of at most this are products of bytes."""


class SummedOuterProducts:
    """A client's sum over rows of left x right, in int32, of whole numbers in float32, (clients, rows, p) and q.

    No row's two norms have a product above ``units``, so no partial sum is above rows * units, in whatever order.
    ``bytes_only`` promises that all entries lie in -127..127.
    """

    def __init__(self, left: Tensor, right: Tensor, units: int, bytes_only: bool) -> None:
        rows = left.shape[1]
        require(rows * units < 2**31, "rows * units", rows * units, "must be below 2^31; add up in parts")
        self._bytes = bytes_only and bytes_multiply(rows, left.shape[2], right.shape[2], torch.get_num_threads())
        if self._bytes:
            self._left, self._right = left.to(torch.int8).transpose(1, 2).contiguous(), right.to(torch.int8)
            return
        precision = torch.get_float32_matmul_precision()
        require(
            precision == "highest", "float32 matmul precision", precision, "must be 'highest' for products to be exact"
        )
        self._left, self._right, self._at_once = left.transpose(1, 2), right, max(1, EXACT // units - 1)

    def factors(self, client: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """What the client's sum follows from."""
        return self._left[client].numpy(), self._right[client].numpy()

    def into(self, out: Tensor, client: int) -> None:
        """The client's, over all of (p * q,)."""
        left, right = self._left[client], self._right[client]
        square = out.view(left.shape[0], right.shape[1])
        if self._bytes:
            torch._int_mm(left, right, out=square)
            return
        square.zero_()
        for some in torch.arange(len(right)).split(self._at_once):
            square.add_(torch.mm(left[:, some], right[some]).int())


@lru_cache(maxsize=1024)
def bytes_multiply(rows: int, p: int, q: int, threads: int) -> bool:
    """Whether this machine has instructions for bytes, and adds up products of these shapes without cutting them.

    Where they are missing, sums of two products are cut to 16 bits. The largest numbers would show it, and are tried.
    """
    if rows == 0 or not (hasattr(torch, "_int_mm") and torch.cpu._is_vnni_supported()):
        return False
    signs = torch.ones(rows)
    signs[rows // 2 :] = -1
    for left, right in ((torch.ones(rows), torch.ones(rows)), (-torch.ones(rows), torch.ones(rows)), (signs, signs)):
        columns = (BYTE * left).view(1, rows, 1).expand(1, rows, p)
        given = (BYTE * right).view(1, rows, 1).expand(1, rows, q)
        columns, given = columns.to(torch.int8).transpose(1, 2).contiguous(), given.to(torch.int8)
        if bool((torch._int_mm(columns[0], given[0]) != BYTE**2 * int((left * right).sum())).any()):
            return False
    return True
