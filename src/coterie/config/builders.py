"""Objects that a configuration names by words where Python passes objects."""

from __future__ import annotations

from typing import Literal

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher


def mingling(
    rate: float = 0.5,
    threshold: int = 2,
    exact: bool = False,
    cipher: Literal["ckks", "mock", "secure_sums"] = "ckks",
) -> Mingling:
    """``mock`` opens to the same bits as ``ckks`` and protects nothing: for simulations only."""
    ciphers = {"ckks": Ckks, "mock": MockCipher, "secure_sums": PairwiseMasks}
    return Mingling(rate, threshold, exact=exact, cipher=ciphers[cipher]())


def secure_sums(neighbours: int | None = None) -> SecureSums:
    """``neighbours``: with how many others each client shares masks; all, if it is left out."""
    return SecureSums(PairwiseMasks(neighbours))
