"""What both halves of secure sums must agree on, and the notices that they give."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.errors import require
from coterie.seal.cipher import Grid
from coterie.seal.collusion import most_colluders
from coterie.seal.roster import LEAST
from coterie.seal.streams import WORD
from coterie.seal.veil import GroupKey

SHARES, TALLY, MASKED, AGREE, OPEN = "shares", "tally", "masked", "agree", "open"


class ClientsDropped(UserWarning):
    """Some clients' answers could not be used; the round went on without them."""


class RoundLeftOut(UserWarning):
    """Too few clients were left to open the sums; everything stayed as it was."""


class ClusterLeftOut(UserWarning):
    """A cluster had too few true members in this round, and kept its model. Clients know it; the server does not."""


@dataclass(frozen=True)
class PairwiseMasks:
    """Settings of secure sums.

    ``neighbours``: with how many others a member shares masks, and a client its secrets (None: with all). ``least``
    clients must be in for sums to open, or two thirds, whichever is more: each may bring a share of noise. ``width``:
    bytes of a masked word; five hold sums up to 2^14 at the usual grid. ``signed``: clients sign their keys with
    long-lived ones, and compare what they were told before they help to open, which takes one more request.
    """

    neighbours: int | None = None
    grid: Grid = field(default_factory=Grid)
    least: int = 0
    width: int = WORD
    signed: bool = False

    def __post_init__(self) -> None:
        room = 8 * self.width - 2 - self.grid.bits
        require(
            2 <= self.width <= WORD and room >= 1,
            "width",
            self.width,
            f"must be at most {WORD} bytes, with room above the grid",
        )


@dataclass(frozen=True)
class Smallest:
    """How few true members a cluster may have for its sum to be made.

    ``spare`` members of a cluster may stop answering after sizes were counted, without the sum's having fewer than
    ``members``; if more do, the round is left out. Both are public, and so is who stopped: nothing is learnt from it.
    """

    members: int = 3
    spare: int = 0

    def __post_init__(self) -> None:
        require(self.members >= 1, "smallest cluster", self.members, "must be at least 1")
        require(self.spare >= 0, "spare", self.spare, "must be at least 0")

    def allows(self, size: int) -> bool:
        return size >= self.members + self.spare


@dataclass(frozen=True)
class Veil:
    """What clients hide sums with, and when they do not make one at all; None: nothing is tallied."""

    key: GroupKey = field(repr=False)
    smallest: Smallest | None


def bearing(masks: PairwiseMasks, clients: int, smallest: Smallest | None = None) -> str:
    """What follows from the settings for how many clients of a round may collude, in words.

    With ``smallest`` sums are hidden from the server, and those who collude may be the other members of a sum.
    """
    what = "answer" if smallest is None else "model"
    if smallest is not None:
        most = most_colluders(clients, masks.neighbours, gone=smallest.spare, tallied=True)
        never_cut = clients if masks.neighbours is None else masks.neighbours - 1 - smallest.spare  # any ring
        most = max(0, min(most, smallest.members - 2, never_cut))
        whom = f"alone, nor by one that follows the protocol with {most}"
    elif masks.signed:  # it chooses who takes part, and how few
        clients = min(clients, max(masks.least, LEAST))
        most = most_colluders(clients, masks.neighbours, asks_once=False)
        whom = f"whatever it says, once clients know each other, with {most}"
    else:
        whom = f"that follows the protocol with {most_colluders(clients, masks.neighbours)}"
    return f"no {what} is read by a server {whom} of the {clients} clients of a round (risk 2^-40)"


def warn(text: str, category: type[Warning]) -> None:
    warnings.warn(text, category, stacklevel=3)


def listed(dropped: Mapping[int, str]) -> str:
    return "; ".join(f"client {client}: {why}" for client, why in sorted(dropped.items()))
