"""Parties that send tables of another shape, or no numbers, under sums that hide them: the right one is named."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from tests.ring import blobs, play

from coterie.data.partition.features import Vertical
from coterie.defences.blinding import Blinding
from coterie.defences.ckks_sums import CkksSums
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.stack import Stack
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.wire.messages import Contributions

ALL = (0, 1, 2)
SEALS: dict[str, Callable[[], tuple[Defence, ...]]] = {
    "masked": lambda: (SecureSums(),),
    "blinded": lambda: (Blinding(), SecureSums()),
    "ckks": lambda: (CkksSums(),),
}


@dataclass(frozen=True)
class Odd(ClientGuard):
    who: tuple[int, ...]
    how: str

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if not set(sent.ids.tolist()) & set(self.who):
            return sent
        return replace(sent, values={name: self._changed(leaf) for name, leaf in sent.values.items()})

    def _changed(self, leaf: torch.Tensor) -> torch.Tensor:
        if self.how == "NaN":
            leaf = leaf.clone()
            leaf.view(-1)[5] = math.nan
            return leaf
        return leaf[:, :, :-3] if self.how == "short" else torch.cat([leaf, leaf[..., :1]], -1)


@dataclass(frozen=True)
class Oddly(Defence):
    who: tuple[int, ...]
    how: str

    @property
    def client(self) -> ClientGuard:
        return Odd(self.who, self.how)


def said(under: str, who: tuple[int, ...], how: str) -> tuple[str, str]:
    """The error, and the warnings before it; every party answers on its own."""
    federation = Vertical(3).split(blobs((60, 60), features=6).examples, Rng.seeded(0))
    protocol = VerticalKMeans(4, 2, start_on=Start.RECORDS)
    defence = Stack(Oddly(who, how), *SEALS[under]())
    with warnings.catch_warnings(record=True) as before:
        warnings.simplefilter("always")
        with pytest.raises(InvalidInput) as error:
            play(protocol, federation, None, defence=defence, chunk_bytes=1)
    return str(error.value), "; ".join(str(one.message) for one in before)


@pytest.mark.parametrize("how", ["short", "wide"])
@pytest.mark.parametrize("who", ALL)
@pytest.mark.parametrize("under", SEALS)
def test_whoever_is_unlike_most_is_named_also_if_it_comes_first(under: str, who: int, how: str) -> None:
    error, before = said(under, (who,), how)
    assert "leave nothing to add up" in error
    assert f"client {who}: it sent" in before
    assert not any(f"client {other}:" in before for other in ALL if other != who)


@pytest.mark.parametrize("how", ["short", "wide"])
@pytest.mark.parametrize("under", SEALS)
def test_tables_of_all_parties_that_nobody_asked_for(under: str, how: str) -> None:
    error, _ = said(under, ALL, how)
    assert "all parties sent other tables" in error or "must be of as many numbers as its own" in error


@pytest.mark.parametrize("under", SEALS)
def test_who_has_no_numbers_is_named(under: str) -> None:
    error, before = said(under, (1,), "NaN")
    assert "[1]='NaN or infinite'" in error or "client 1 does not answer" in before
