"""Secure sums as a defence of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.defences.secure_sums.client import advertise, follow_up, shapes_of
from coterie.defences.secure_sums.server import secure_sums
from coterie.defences.secure_sums.settings import PairwiseMasks, bearing
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import flatten
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.wire.messages import Contributions, Down

WEIGHT = "weight of the slot"  # a leaf of its own in what is masked


@dataclass(frozen=True)
class MaskingClient(ClientGuard):
    settings: PairwiseMasks

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        """Everybody is in every slot, with zeros where it adds nothing: which slot a client chose is masked too."""
        if not sent.values:  # an answer that says nothing has nothing to hide
            return sent
        slots = sent.membership.shape[1]
        shares = sent.membership * sent.weights.unsqueeze(1)  # (clients, slots)
        leaves = {name: leaf[:, :1] for name, leaf in sent.values.items()} | {WEIGHT: torch.zeros(len(sent), 1, 1)}
        everybody = torch.ones(len(sent), slots)
        full = all(leaf.shape[1] == slots for leaf in sent.values.values())
        whole = full and bool((shares == 1).all())  # as parties with columns answer: much, and nothing to weigh
        own = {name: leaf if whole else leaf.double() * _over(leaf, shares) for name, leaf in sent.values.items()}
        both = flatten(own | {WEIGHT: shares.unsqueeze(2)}, leading=2)
        return advertise(sent, both, everybody, shapes_of(leaves), cohort, self.settings)

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        return follow_up(asked, cohort, self.settings)


def _over(leaf: Tensor, shares: Tensor) -> Tensor:
    """Shares (clients, slots) as factors of a leaf (clients, slots | 1, ...)."""
    return shares.double().view(*shares.shape, *[1] * (leaf.dim() - 2))


@dataclass(frozen=True)
class MaskingServer(ServerGuard):
    settings: PairwiseMasks

    def expects(self, expected: Expected) -> Expected:
        return expected.sealed()

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        opened = yield from secure_sums(ask, turn, self.settings)
        if opened is None:
            return Sums.nothing()
        leaves = opened.leaves
        weights = leaves.pop(WEIGHT)[:, 0]
        return Sums(leaves, weights, opened.counts)


@dataclass(frozen=True)
class SecureSums(Defence):
    """The server learns the sums over all clients of a round and nothing else of any of them; no noise is added.

    Sums of few clients still say much, and what sums over many rounds say of one client is not hidden. Values are
    rounded to a grid of 2^-24.
    """

    masks: PairwiseMasks = field(default_factory=PairwiseMasks)

    @property
    def seals(self) -> bool:
        return True

    @property
    def client(self) -> ClientGuard:
        return MaskingClient(self.masks)

    @property
    def server(self) -> ServerGuard:
        return MaskingServer(self.masks)

    def fits(self, protocol: AnyProtocol) -> str:
        return f"the server needs {protocol.looks}, and sees sums alone" if protocol.looks else ""

    def guarantee(self, run: RunFacts) -> Guarantee:
        if run.columns:  # then a sum is of one record, and single answers follow from what the sums tell of it
            why = (
                "answers are hidden in sums over the parties, not by noise, so there is no epsilon; the sums are "
                "distances of single records, and whoever knows a few records reads every party's columns out of them"
            )
            return Guarantee.none(why, Level.RECORD, Trust.SECURE_SUMS)
        why = (
            "answers are hidden in sums, not by noise, so there is no epsilon; a sum to which one client alone adds is "
            "its answer, and of two sums alike of which one lacks a client, because it dropped out, the difference is; "
            f"but for these {bearing(self.masks, run.asked)}"
        )
        return Guarantee.none(why, Level.CLIENT, Trust.SECURE_SUMS)
