"""Sums of outer products of whole numbers, exactly: by products of bytes where the machine has them, else of floats."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from coterie.errors import require

EXACT = 1 << 24
"""Whole numbers up to here are float32's."""

BYTE = 127
"""Entries of at most this are products of bytes."""


def summed_outer_products(left: Tensor, right: Tensor, units: int, bytes_only: bool) -> Tensor:
    """The sum over rows of left x right, (clients, p, q) int32, of whole numbers in float32, (clients, rows, p) and q.

    No row's two norms have a product above ``units``, so no partial sum is above rows * units, in whatever order.
    ``bytes_only`` promises that all entries lie in -127..127.
    """
    rows = left.shape[1]
    require(rows * units < 2**31, "rows * units", rows * units, "must be below 2^31; add up in parts")
    if bytes_only and bytes_multiply(rows, left.shape[2], right.shape[2], torch.get_num_threads()):
        return _of_bytes(left, right)
    precision = torch.get_float32_matmul_precision()
    require(precision == "highest", "float32 matmul precision", precision, "must be 'highest' for products to be exact")
    total: Tensor | None = None
    for start in range(0, max(rows, 1), max(1, EXACT // units - 1)):
        part = slice(start, start + max(1, EXACT // units - 1))
        added = torch.bmm(left[:, part].transpose(1, 2), right[:, part]).int()
        total = added if total is None else total.add_(added)
    assert total is not None
    return total


def _of_bytes(left: Tensor, right: Tensor) -> Tensor:
    columns, given = left.to(torch.int8).transpose(1, 2).contiguous(), right.to(torch.int8)
    found = torch.empty(len(left), left.shape[2], right.shape[2], dtype=torch.int32)
    for client in range(len(left)):
        torch._int_mm(columns[client], given[client], out=found[client])
    return found


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
        if bool((_of_bytes(columns, given) != BYTE**2 * int((left * right).sum())).any()):
            return False
    return True
