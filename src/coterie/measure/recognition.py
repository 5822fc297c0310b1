"""A monitor that sees what the server sees, and says which message of a vertical clustering is not its party's.

Honest distances, centred, are products of the party's columns: of all steps they lie in one space of few dimensions,
and those of two steps agree on how far the centres of one are from those of the other (``B_t E_s = (B_s E_t)'`` in the
words of ``attacks.distance_geometry``). So the monitor rests on the very leak that lets the server read columns.
Against noise it compares each message with the party's own past.

What is consistent from the first message on is not seen: that is a party with other data. What changes nothing (reading
a link, profiling) cannot be seen by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import Distances, centred_both, low_rank, party_steps
from coterie.errors import require
from coterie.measure.intervals import Interval, proportion
from coterie.rng import Rng
from coterie.wire.view import View

MODIFIED, IMPERSONATED, COLLUDING, CHANGED = "modification", "impersonation", "colluding parties", "changed totals"
FLOOR = 1e-5  # statistics below are rounding
PAST = 2  # steps before a message can be compared
ONE_CLUSTER = 0.6  # of what does not fit is about one cluster: values were changed, and not the whole message
SLACK = 1.02  # above what is usual
STATISTICS = ("all records", "the worst records", "agreement of steps")
TOTAL = -1  # the "party" of sums


@dataclass(frozen=True)
class Look:
    """One message beside the past of its party: statistics as multiples of their median in the past."""

    round: int
    party: int
    ratios: tuple[float, ...]
    focus: float  # the part of what does not fit that is about a single cluster


@dataclass(frozen=True)
class Alarm:
    round: int
    party: int
    kind: str


@dataclass(frozen=True)
class _Fit:
    """How a message fits the past: the three statistics, and what does not fit by cluster (clusters,)."""

    statistics: Tensor
    energies: Tensor


def looks(view: View, widths: Mapping[int, int], limits: Sequence[float] | None = None) -> list[Look]:
    """Every message of every party, or of the totals where they are all that can be read.

    ``widths``: how many columns each party has. Messages above the ``limits`` do not become part of the past.
    """
    found = []
    for party, width in widths.items():
        past: list[Distances] = []
        before: list[_Fit] = []
        for round, step in party_steps(view, None if party == TOTAL else party):
            if len(past) >= PAST:
                fit = _compared(past, step, width)
                if before:
                    found.append(_look(round, party, fit, before))
                    if limits is not None and _above(found[-1], limits):
                        continue
                before.append(fit)
            past.append(step)
    return found


def _look(round: int, party: int, fit: _Fit, before: Sequence[_Fit]) -> Look:
    usual = torch.stack([one.statistics for one in before]).median(0).values
    excess = (fit.energies - torch.stack([one.energies for one in before]).median(0).values).clamp_min(0)
    focus = float(excess.max() / excess.sum().clamp_min(1e-300))
    return Look(round, party, tuple((fit.statistics / usual).tolist()), focus)


def _compared(past: Sequence[Distances], step: Distances, width: int) -> _Fit:
    parts = [centred_both(one.squared) for one in past]
    now = centred_both(step.squared)
    basis = torch.linalg.qr(low_rank(torch.cat(parts, 1), width))[0]
    left = (now - basis @ (basis.T @ now)) / now.square().mean().sqrt().clamp_min(1e-300)
    agreement = now.new_zeros(())
    if step.weights is not None:
        ours, gaps = step.weights - step.weights.mean(0), []
        for one, part in zip(past, parts, strict=True):
            if one.weights is not None:
                theirs, forth = one.weights - one.weights.mean(0), ours @ part
                gaps.append((forth - (theirs @ now).T).norm() / forth.norm().clamp_min(1e-300))
        agreement = torch.stack(gaps).median() if gaps else agreement
    residuals = left.norm(dim=1)
    statistics = torch.stack([residuals.square().mean().sqrt(), residuals.quantile(0.99), agreement])
    return _Fit(statistics.clamp_min(FLOOR), left.square().sum(0))


def _above(look: Look, limits: Sequence[float]) -> bool:
    return any(ratio > limit for ratio, limit in zip(look.ratios, limits, strict=True))


@dataclass(frozen=True)
class Monitor:
    """``limits``: how many times its past median each statistic of a message may be."""

    limits: tuple[float, ...]
    rate: float = 0.01

    @staticmethod
    def calibrated(honest: Iterable[Look], rate: float = 0.01) -> Monitor:
        """From runs in which nobody tampers: so that at most this share of their messages raises an alarm."""
        seen = torch.tensor([look.ratios for look in honest], dtype=torch.float64)
        require(len(seen) >= 20, "honest messages", len(seen), "must be at least 20 to know what is usual")
        require(0 < rate < 1, "rate", rate, "must lie in (0, 1)")
        each = 1 - rate / len(STATISTICS)
        usual = SLACK * torch.quantile(seen, each, 0, interpolation="higher")
        return Monitor(tuple(usual.tolist()), rate)

    def watch(self, view: View, widths: Mapping[int, int]) -> list[Alarm]:
        flagged = [look for look in looks(view, widths, self.limits) if _above(look, self.limits)]
        alarms = []
        for look in flagged:
            together = sum(other.round == look.round for other in flagged) > 1
            alone = MODIFIED if look.focus > ONE_CLUSTER else IMPERSONATED
            kind = CHANGED if look.party == TOTAL else COLLUDING if together else alone
            alarms.append(Alarm(look.round, look.party, kind))
        return alarms


def out_of_range(view: View, parties: Iterable[int], bound: float, sample: int, rng: Rng) -> list[Alarm]:
    """What proofs of range on so many values of each message would catch: one outside of 0 .. ``bound``."""
    alarms = []
    for party in parties:
        for round, step in party_steps(view, party):
            drawn = (
                rng.child(party, round).numpy().choice(step.squared.numel(), min(sample, step.squared.numel()), False)
            )
            values = step.squared.flatten()[torch.from_numpy(drawn)]
            if bool(((values < -FLOOR) | (values > bound * (1 + FLOOR))).any()):
                alarms.append(Alarm(round, party, MODIFIED))
    return alarms


@dataclass(frozen=True)
class Recognised:
    """Messages counted over runs: tampered ones flagged, others flagged, tampered ones missed, others passed."""

    caught: int
    false: int
    missed: int
    passed: int

    @staticmethod
    def of(
        alarms: Sequence[Alarm], watched: Sequence[tuple[int, int]], tampered: frozenset[tuple[int, int]]
    ) -> Recognised:
        """``watched`` and ``tampered``: (round, party) of the messages looked at, and of those that were changed."""
        flagged = {(alarm.round, alarm.party) for alarm in alarms}
        changed = tampered & set(watched)
        return Recognised(
            len(flagged & changed),
            len(flagged - changed),
            len(changed - flagged),
            len(set(watched) - flagged - changed),
        )

    @property
    def recall(self) -> float:
        return _part(self.caught, self.caught + self.missed)

    @property
    def precision(self) -> float:
        return _part(self.caught, self.caught + self.false)

    @property
    def f(self) -> float:
        return _part(2 * self.caught, 2 * self.caught + self.false + self.missed)

    @property
    def false_alarms(self) -> Interval:
        """The part of the untouched messages that was flagged."""
        return proportion(self.false, self.false + self.passed)


def _part(count: int, of: int) -> float:
    return count / of if of else math.nan
