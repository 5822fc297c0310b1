"""What guesses at clients' shares of a property are worth, with a coin and a placebo beside them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.property_shares import KNOWS, Shares, rates_by_class
from coterie.data.federation import Federation
from coterie.measure.findings import Finding
from coterie.measure.judge import YesNo, judge
from coterie.rng import Rng

PROPERTY, COIN, PLACEBO = "property", "coin", "placebo"
MARKS = (PROPERTY, COIN, PLACEBO)
LEAST = 1e-9  # by which two shares differ


def marked(federation: Federation, has: Tensor, rng: Rng) -> Federation:
    """With three tags: the property, a coin (the property dealt to any rows), a placebo (to rows of the same label)."""
    examples, draws = federation.examples, rng.child("marks").numpy()
    found = has.numpy() != 0
    placebo = found.copy()
    for label in np.unique(examples.y.numpy()):
        rows = np.flatnonzero(examples.y.numpy() == label)
        placebo[rows] = found[draws.permutation(rows)]
    tags = {PROPERTY: found, COIN: draws.permutation(found), PLACEBO: placebo}
    own = {name: torch.from_numpy(values.astype(np.int64)) for name, values in tags.items()}
    return replace(federation, examples=replace(examples, tags=own))


def true_shares(federation: Federation) -> Shares:
    """By what each client with data trains on; what labels lead one to expect is by all that is trained on."""
    examples, rows = federation.examples, federation.train.rows.numpy()
    has = torch.stack([examples.tags[mark] for mark in MARKS], 1).double().numpy()
    rates = rates_by_class(examples.y[rows].numpy(), has[rows], examples.classes)
    held, beyond = {}, {}
    for client in federation.train.sizes.nonzero().flatten().tolist():
        own = federation.train[client].numpy()  # a tensor of one row would be taken for a number
        share, expected = has[own].mean(0), rates[examples.y[own].numpy()].mean(0)
        held[client] = dict(zip(MARKS, share.tolist(), strict=True))
        beyond[client] = dict(zip(MARKS, (share - expected).tolist(), strict=True))
    return Shares(held, beyond)


def findings(guess: Shares, truth: Shares) -> list[Finding]:
    """Are clients that hold more of it told from those that hold less? As it is, and beyond what labels tell."""
    held = _told(guess.held, truth.held, {PROPERTY: "share of the property", COIN: "share of a coin"})
    words = {PROPERTY: "share beyond what labels tell", PLACEBO: "share of a placebo beyond what labels tell"}
    return [*held, *_told(guess.beyond, truth.beyond, words)]


def _told(
    guess: Mapping[int, Mapping[str, float]], truth: Mapping[int, Mapping[str, float]], names: Mapping[str, str]
) -> list[Finding]:
    found = []
    for mark, name in names.items():
        read, true = ({who: row[mark] for who, row in side.items()} for side in (guess, truth))
        found.append(replace(_halves(read, true, name), control=mark != PROPERTY))
    return found


def _halves(guess: Mapping[int, float], truth: Mapping[int, float], attack: str) -> Finding:
    """Those above the median client from those below it. Who reads nothing says the same of all.

    Clients at the median are on neither side, unless one side is empty, as where more than half hold none of it: then
    they are that side.
    """
    middle = float(np.median(np.array([*truth.values()])))
    sides = {who: int(one > middle + LEAST) - int(one < middle - LEAST) for who, one in truth.items()}
    there = {*sides.values()}
    if there <= {0}:
        return Finding.unscored(attack, "AUC", 0.5, KNOWS, "no client holds more of it than another")
    asked = [who for who, side in sides.items() if side or not there >= {-1, 1}]
    answers: dict[Hashable, bool] = {who: sides[who] == max(there) for who in asked}
    scores: dict[Hashable, float] = {who: guess.get(who, 0.0) for who in truth if who in answers}
    return replace(judge(Suspicions(scores), YesNo(answers), attack, KNOWS), unit="clients", operating=None)
