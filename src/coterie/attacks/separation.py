"""One example of a batch from another, by the gradients of a network's last two dense layers.

The gradient of the last dense layer but one is a sum of products: of each example, what the loss passes back to the
layer times what went into it. So what is passed back lies in the space that the gradient's columns span, which has as
many dimensions as there are examples. And it is nearly known:

    passed back = (probabilities - label) @ weights of the last layer, times the slope of each unit's line,

where the probabilities are about those of the batch (the gradient of the last bias tells their mean), and a slope is
one of two numbers. A linear programme finds the vectors in that space whose entries are one or the other of two known
numbers: examples of one class have the same numbers and other slopes. With all of them, what went in solves a linear
equation, goes forward to probabilities of each example's own, and a few rounds of that are exact.

Two dense layers with a bias and a line that bends at zero between them are what it needs, in one step of training; no
exact method that we know of tells leaky units apart (SPEAR, Dimitrov et al. 2024, needs ReLUs and many of them off).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor
from torch.nn.functional import leaky_relu, one_hot

from coterie.learn.params import Params

SLACKS = (0.05, 0.01, 0.002)  # of the entries in the programme: probabilities are the batch's, not the example's
TINY = 0.02  # of the slack, and of the typical entry: for what rounding does to small ones
FITS = 5e-3  # of a vector, and no more lies outside of the space: then nothing better is looked for
COULD_FIT = 0.05  # the most that is tried; whether it was right, the last layer's gradient tells
SAME = 0.03  # two vectors that differ by no more are one
TRIES = 20  # programmes for each example that is looked for, and each slack
ROUNDS = 30
MOST = 16  # examples that are tried: of MNIST eight are told apart, of twelve about every second batch, of sixteen none
EXPLAINED = 1e-2  # of the last layer's gradient, and no more is left


class Lost(Exception):
    """A layer through which nothing can be followed."""


def separated(
    params: Params,
    gradient: Params,
    names: tuple[str, str],
    below: float,
    labels: Tensor,
    draws: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """What went into the last layer and what is passed back to there, (examples, units), in the order of labels.

    ``names`` are the last two dense layers', ``below`` is the slope of a unit's line where it is negative.
    """
    hidden, last = names
    if len(labels) > MOST:
        raise Lost(last)
    weight, columns = params[f"{last}.weight"], gradient[f"{hidden}.weight"]
    marks = one_hot(labels, len(weight)).to(weight)
    mean = gradient[f"{last}.bias"] + marks.mean(0)  # of the probabilities
    span = torch.linalg.svd(columns, full_matrices=False)[0][:, : len(labels)]
    slopes = torch.zeros(len(labels), len(columns), dtype=weight.dtype)
    for label in labels.unique().tolist():
        mine = (labels == label).nonzero().flatten()
        found = Bent(((mean - marks[mine[0]]) @ weight).numpy(), below).within(span.numpy(), len(mine), draws)
        slopes[mine] = torch.from_numpy(found)
    back = mean - marks
    for _ in range(ROUNDS):
        entered = torch.linalg.lstsq((back @ weight * slopes).T / len(labels), columns).solution
        value = leaky_relu(entered @ params[f"{hidden}.weight"].T + params[f"{hidden}.bias"], below)
        back = torch.softmax(value @ weight.T + params[f"{last}.bias"], 1) - marks
        slopes = torch.where(value > 0, 1.0, below).to(weight)
    told = gradient[f"{last}.weight"]
    if not float((back.T @ value / len(labels) - told).norm()) <= EXPLAINED * float(told.norm()):
        raise Lost(last)
    return value, back @ weight / len(labels)


class Bent:
    """Known numbers, each of which stands as it is or times ``below``."""

    def __init__(self, numbers: NDArray[np.float64], below: float) -> None:
        self.signs, self.size, self.below = np.sign(numbers), np.abs(numbers), below

    def within(self, span: NDArray[np.float64], count: int, draws: torch.Generator) -> NDArray[np.float64]:
        """(count, entries): the factors, one or ``below``, of as many such vectors in the space of ``span``."""
        bases = span * self.signs[:, None]
        sides = np.concatenate([bases, -bases])
        found: list[tuple[float, NDArray[np.float64]]] = []
        for slack in (slack for slack in SLACKS for _ in range(TRIES * count)):
            room = slack * (self.size + TINY * np.median(self.size))
            towards = torch.randn(len(bases), generator=draws, dtype=torch.float64).numpy()  # at random: to find all
            limits = np.concatenate([self.size + room, room - self.below * self.size])
            one = slice(0) if self.below else self.drawn(draws)
            stands = (bases[one], self.size[one])
            corner = linprog(towards @ bases, sides, limits, *stands, bounds=(None, None)).x
            if corner is not None:
                found = self.distinct([*found, self.sharpened(bases, corner)])
            if sum(outside < FITS for outside, _ in found) >= count:
                break
        if len(found) < count:
            raise Lost("units cannot be told apart")
        return np.stack([factors for _, factors in found[:count]])

    def drawn(self, draws: torch.Generator) -> slice:
        """An entry that is to stand as it is: if all may be nothing, the zero vector would be found again and again."""
        one = int(torch.multinomial(torch.from_numpy(self.size), 1, generator=draws))
        return slice(one, one + 1)

    def sharpened(self, bases: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The nearest vector of this kind, by entries that are surely one or the other, and how much is outside."""
        middle, reach = (1 + self.below) / 2, (1 - self.below) / 4
        for _ in range(3):
            part = bases @ weights / np.maximum(self.size, 1e-300)
            factors = np.where(part > middle, 1.0, self.below)
            sure = np.abs(part - factors) < reach
            weights = np.linalg.lstsq(bases[sure], (self.size * factors)[sure], rcond=None)[0]
        factors = np.where(bases @ weights > middle * self.size, 1.0, self.below)
        wanted = self.size * factors
        inside = bases @ (bases.T @ wanted)  # columns of ``bases`` are orthonormal: signs do not change that
        return float(
            np.linalg.norm(wanted - inside) / max(np.linalg.norm(wanted), SAME * np.linalg.norm(self.size))
        ), factors

    def distinct(self, found: list[tuple[float, NDArray[np.float64]]]) -> list[tuple[float, NDArray[np.float64]]]:
        """Those that fit, the best of those that are alike."""
        kept: list[tuple[float, NDArray[np.float64]]] = []
        for outside, factors in sorted(found, key=lambda one: one[0]):
            apart = [np.linalg.norm(self.size * (factors - other)) for _, other in kept]
            if outside < COULD_FIT and min(apart, default=np.inf) > SAME * np.linalg.norm(self.size) and factors.any():
                kept.append((outside, factors))
        return kept
