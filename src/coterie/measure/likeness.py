"""Whether pictures that an attack imagines of a client's classes show that client (paper 004, and what it leaves out).

The paper scores the cosine of rebuilt and true pictures. That alone cannot show a leak: on MNIST a grey disc scores
0.51 and other people's mean of the class 0.72, the victim's own 0.73, so a score says nothing without what else would.
``Likeness`` puts floors and ceilings beside it, and the headline is what no public knowledge explains:

- the *difference*: how much more alike the pictures are to the victim's than to others';
- *identifiability*: how often the nearest true picture is the victim's, among pools of equal size, one a holder. Where
  the victim has nothing of its own the pools are exchangeable, and chance is exactly one over their number.

Strangers are people whom no client holds, turned as the victim is: what is nearer to them than to other clients shows
the victim's way of turning; what is nearer to the victim than to them shows the victim.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from coterie.attacks.base import Pictures
from coterie.errors import require
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample
from coterie.measure.judge import judge

NEIGHBOURS = 5
OTHERS, STRANGERS = "other clients of the cluster", "strangers"


@dataclass(frozen=True)
class Holders:
    """Whose pictures the rebuilt ones could be, by class: each (pictures, channels, rows, columns)."""

    victim: Mapping[Hashable, Tensor]
    others: Mapping[Hashable, Sequence[Tensor]]  # one an other client of the cluster
    strangers: Mapping[Hashable, Tensor]

    def classes(self, guess: Pictures) -> list[Hashable]:
        """Those that were rebuilt and that every holder has."""
        found = [name for name in guess.of if name in self.victim and all(len(pool) for pool in self.pools(name))]
        require(len(found) > 0, "classes rebuilt", list(guess.of), "are none that all holders have")
        return found

    def pools(self, name: Hashable) -> list[Tensor]:
        """The victim's first; all cut to the size of the smallest, so that none is likelier by its size."""
        pools = [self.victim[name], *self.others.get(name, ()), self.strangers[name]]
        size = min(len(pool) for pool in pools)
        return [pool[:size] for pool in pools]


@dataclass(frozen=True)
class Likeness:
    """The published similarity with what else would score: each the mean over classes."""

    similarity: float
    disc: float  # a grey disc: knows nothing
    wrong_class: float  # the victim's own mean of another class
    others: float  # the mean of the class at other clients of the cluster
    strangers: float  # at strangers: all that can be known without the victim
    own: float  # at the victim: the ceiling of a single picture

    @staticmethod
    def of(guess: Pictures, truth: Holders) -> Likeness:
        names = truth.classes(guess)
        means = {name: truth.victim[name].mean(0, keepdim=True) for name in names}
        rows = []
        for place, name in enumerate(names):
            pool = truth.victim[name]
            tried = [
                guess.of[name],
                grey_disc(pool),
                means[names[place - 1]],
                torch.cat([other.mean(0, keepdim=True) for other in truth.others.get(name, ())] or [pool[:0]]),
                truth.strangers[name].mean(0, keepdim=True),
                means[name],
            ]
            rows.append([similarity(pictures, pool) if len(pictures) else float("nan") for pictures in tried])
        return Likeness(*np.mean(rows, axis=0).tolist())


def similarity(rebuilt: Tensor, pool: Tensor) -> float:
    """The mean cosine over all pairs: the paper's score."""
    return float(cosines(rebuilt, pool).mean())


def cosines(one: Tensor, other: Tensor) -> Tensor:
    """(pictures of one, pictures of the other); 0 for a picture that is all zero."""
    return normalize(one.double().flatten(1), dim=1) @ normalize(other.double().flatten(1), dim=1).T


def grey_disc(like: Tensor) -> Tensor:
    """(1, channels, rows, columns): what somebody who has never seen a picture might draw."""
    height, width = like.shape[2:]
    down, across = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    return (1 - (down**2 + across**2)).clamp_min(0).expand(1, like.shape[1], height, width)


def difference(guess: Pictures, truth: Holders, than: str) -> Finding:
    """How much more alike to the victim's pictures than to others'; classes are the units.

    A complete leak is the victim's own mean in the place of what was rebuilt.
    """
    values: list[float] = []
    ceilings: list[float] = []
    for name in truth.classes(guess):
        victim, *others, strangers = truth.pools(name)
        compared = strangers if than == STRANGERS else torch.cat(others or [strangers[:0]])
        require(len(compared) > 0, "than", than, "holds nothing to compare with: the victim is alone in its cluster")
        for made, into in ((guess.of[name], values), (victim.mean(0, keepdim=True), ceilings)):
            into.append(similarity(made, victim) - similarity(made, compared))
    found = Finding.of(
        f"likeness beyond {than}", "cosine difference", Sample.average(values, -2, 2), 0.0, "classes", ""
    )
    return replace(found, perfect=float(np.mean(ceilings)))


def identified(guess: Pictures, truth: Holders) -> Finding:
    """The share of rebuilt pictures whose nearest true one is the victim's; a tie is shared. Classes are the units.

    The pictures of a class are no units: a generator that has collapsed gives the same one every time.
    """
    shares, chances = [], []
    for name in truth.classes(guess):
        pools = truth.pools(name)
        nearest = torch.stack([cosines(guess.of[name], pool).amax(1) for pool in pools], 1)  # (rebuilt, holders)
        best = nearest == nearest.amax(1, keepdim=True)
        shares.append(float((best[:, 0] / best.sum(1)).mean()))
        chances.append(1 / len(pools))
    run, chance = Sample.average(shares, 0.0, 1.0), float(np.mean(chances))
    return Finding.of("identification of the victim", "share nearest to the victim", run, chance, "classes", "")


def recognised(guess: Pictures, truth: Holders) -> Finding:
    """The share of rebuilt pictures that look like their class, by the nearest strangers: they trained nothing here."""
    names = truth.classes(guess)
    known = torch.cat([truth.strangers[name] for name in names])
    labels = torch.cat([torch.full((len(truth.strangers[name]),), at) for at, name in enumerate(names)])
    shares = []
    for at, name in enumerate(names):
        nearest = cosines(guess.of[name], known).topk(min(NEIGHBOURS, len(known)), 1).indices
        shares.append(float((labels[nearest].mode(1).values == at).double().mean()))
    run = Sample.average(shares, 0.0, 1.0)
    return Finding.of("recognition of the class", "accuracy", run, 1 / len(names), "classes", "")


def collapse(guess: Pictures, truth: Holders) -> float:
    """0 where the pictures of a class differ as much as the victim's do, 1 where they are all the same."""
    found = []
    for name in truth.classes(guess):
        real = _spread(truth.victim[name])
        if real > 0 and len(guess.of[name]) > 1:
            found.append(min(1.0, max(0.0, 1 - _spread(guess.of[name]) / real)))
    return float(np.mean(found)) if found else float("nan")


def _spread(pictures: Tensor) -> float:
    """One minus the mean cosine of two different ones."""
    count = len(pictures)
    alike: NDArray[np.float64] = cosines(pictures, pictures).numpy()
    return 1 - (alike.sum() - np.trace(alike)) / max(count * (count - 1), 1) if count > 1 else 0.0


@judge.register
def _pictures(guess: Pictures, truth: Holders, attack: str = "attack", knew: str = "") -> Finding:
    return replace(identified(guess, truth), attack=attack, knew=knew)
