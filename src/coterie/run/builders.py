"""Objects that a configuration names by words where Python passes objects."""

from __future__ import annotations

from typing import Literal

from coterie.defences.ckks import Ckks
from coterie.defences.masked_rounds import PairwiseMasks
from coterie.defences.mingling import Mingling
from coterie.defences.mock_cipher import MockCipher


def mingling(
    rate: float = 0.5,
    threshold: int = 2,
    exact: bool = False,
    cipher: Literal["ckks", "mock", "secure_sums"] = "ckks",
) -> Mingling:
    """``mock`` opens to the same bits as ``ckks`` and protects nothing: for simulations only."""
    ciphers = {"ckks": Ckks, "mock": MockCipher, "secure_sums": PairwiseMasks}
    return Mingling(rate, threshold, exact=exact, cipher=ciphers[cipher]())
