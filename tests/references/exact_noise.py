"""A mechanism that keeps its promise on the machine, slowly: whole numbers, exact sums, exactly sampled noise.

The sampler is Algorithms 1 to 3 of Canonne, Kamath and Steinke (2020), in fractions.
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coterie.files import Array
from coterie.measure.numerics.mechanism import Mechanism

STEPS = 1 << 12  # to the unit


def bernoulli(p: Fraction, source: random.Random) -> bool:
    return source.randrange(p.denominator) < p.numerator


def bernoulli_exp(gamma: Fraction, source: random.Random) -> bool:
    """True with probability exp(-gamma)."""
    while gamma > 1:
        if not bernoulli_exp(Fraction(1), source):
            return False
        gamma -= 1
    tries = 1
    while bernoulli(gamma / tries, source):
        tries += 1
    return tries % 2 == 1


def discrete_laplace(scale: int, source: random.Random) -> int:
    while True:
        low = source.randrange(scale)
        if not bernoulli_exp(Fraction(low, scale), source):
            continue
        high = 0
        while bernoulli_exp(Fraction(1), source):
            high += 1
        size, negative = low + scale * high, source.randrange(2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def discrete_gaussian(deviation: int, source: random.Random) -> int:
    variance, scale = deviation**2, deviation + 1
    while True:
        drawn = discrete_laplace(scale, source)
        if bernoulli_exp((abs(drawn) - Fraction(variance, scale)) ** 2 / (2 * variance), source):
            return drawn


def grid(records: Array) -> NDArray[np.int64]:
    """Towards zero, so that no norm grows."""
    return np.trunc(records.astype(np.float64) * STEPS).astype(np.int64)


def exact_sums(records: Array) -> Array:
    return np.asarray(grid(records).sum(0) / STEPS)  # a power of two, so nothing is rounded


def on_the_grid(deviation: float) -> Mechanism:
    steps = round(deviation * STEPS)

    def release(records: Array, source: random.Random) -> Array:
        sums = grid(records).sum(0)
        return np.array([int(one) + discrete_gaussian(steps, source) for one in sums]) / STEPS

    return Mechanism(release, exact_sums, random.Random, seed_bits=256, deviation=steps / STEPS)
