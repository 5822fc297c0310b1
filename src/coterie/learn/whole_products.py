"""Sums of outer products of whole numbers, exactly: by products of bytes where the machine has them, else of floats."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import require

EXACT = 1 << 24
"""Whole numbers up to here are float32's."""

BYTE = 127
"""Entries of at most this are products of bytes."""


def factor_kind(rows: int, p: int, q: int) -> type[np.generic]:
    """In which form factors of these shapes, whole numbers in -127..127, are multiplied here."""
    return np.int8 if bytes_multiply(rows, p, q, torch.get_num_threads()) else np.float32


def require_exact_products() -> None:
    precision = torch.get_float32_matmul_precision()
    require(precision == "highest", "float32 matmul precision", precision, "must be 'highest' for products to be exact")


class SummedOuterProducts:
    """A client's sum over rows of left x right, in int32, of (clients, rows, p) and q, both of ``factor_kind``.

    No row's two norms have a product above ``units``, so no partial sum is above rows * units, in whatever order.
    """

    def __init__(self, left: NDArray[Any], right: NDArray[Any], units: int) -> None:
        rows = left.shape[1]
        require(rows * units < 2**31, "rows * units", rows * units, "must be below 2^31; add up in parts")
        self._bytes = left.dtype == np.int8
        if not self._bytes:
            require_exact_products()
        self._left = torch.from_numpy(left).transpose(1, 2).unbind()
        self._right = torch.from_numpy(right).unbind()
        self._at_once = max(1, EXACT // units - 1)

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
    ones, signs = torch.ones(rows, 1), torch.ones(rows, 1)
    signs[rows // 2 :] = -1
    draws = torch.Generator().manual_seed(0)
    mixed = [torch.randint(0, 2, (rows, width), generator=draws) * 2.0 - 1 for width in (p, q)]
    for left, right in ((ones, ones), (-ones, ones), (signs, signs), mixed):
        columns, given = BYTE * left.expand(rows, p), BYTE * right.expand(rows, q)
        found = torch._int_mm(columns.to(torch.int8).T, given.to(torch.int8))
        if not torch.equal(found.double(), columns.double().T @ given.double()):
            return False
    return True
