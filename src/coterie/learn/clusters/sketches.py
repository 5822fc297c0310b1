"""How many there are, from the largest of random levels (Flajolet and Martin 1985): sketches of sets and their unions.

Every element has a level, the same for whoever knows the secret, that reaches a with chance (1 + GAMMA)^-a. A set's
sketch is its largest level; of a union it is the larger one. Smith, Song and Thakurta (2020): with phantoms added to
a set, and nothing told below a floor, the level itself is differentially private, for whoever lacks the secret.

Where several parties sketch sets of the same elements, an element has one level in all of them, so their sketches are
one release and do not compose: with phantoms of its own in each set, a high level that is in two of them is the
element's almost for certain. So phantoms are elements, too, as many in each choice of a set a party: whatever sets an
element is in, all that is told follows from the largest levels of the choices, of which it changes one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from coterie.rng import Secrets

GAMMA = 0.1
GROWTH = math.log1p(GAMMA)
NOTHING = -1  # the sketch of an empty set
WORDS = 1 << 22  # drawn at once

Levels = NDArray[np.int16]


def levels(words: NDArray[np.uint64]) -> Levels:
    """Of uniform words of 64 bits."""
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    return np.floor(-np.log(uniform) / GROWTH).astype(np.int16)


def sketched(labels: NDArray[np.int64], sets: int, count: int, secret: Secrets) -> Levels:
    """(sets, count): the sketches of the sets that elements 0, 1, ... belong to, ``count`` of each set."""
    order = np.argsort(labels, kind="stable")
    heads = np.bincount(labels, minlength=sets)
    full, starts = np.flatnonzero(heads), (heads.cumsum() - heads)[heads > 0]
    found = np.full((sets, count), NOTHING, dtype=np.int16)
    stream, at_once = secret.stream(), max(1, WORDS // max(1, len(labels)))
    for first in range(0, count, at_once):
        some = min(at_once, count - first)
        drawn = levels(stream.words(some * len(labels))).reshape(some, len(labels))[:, order]
        found[full, first : first + some] = np.maximum.reduceat(drawn, starts, axis=1).T
    return found


def common(secrets: Secrets, told: NDArray[np.generic]) -> Secrets:
    """What all parties know and whoever is told sketches does not, from the run's secrets.

    Two sketches with the same levels are one release, too. So levels hang on what was told before, which is noisy: of
    other data it is another.
    """
    return secrets.child("shared by the parties").upon(told)


def phantom_levels(parties: int, sets: int, count: int, phantoms: int, secret: Secrets) -> Levels:
    """(parties, sets, count): sketches of so many phantoms in each choice of a set a party, drawn at once for each."""
    choices = sets**parties
    found = np.empty((parties, sets, count), dtype=np.int16)
    stream, at_once = secret.stream(), max(1, WORDS // choices)
    for first in range(0, count, at_once):
        some = min(at_once, count - first)
        uniform = ((stream.words(some * choices) >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
        least = -np.expm1(np.log(uniform) / phantoms)  # of so many uniforms, by the inverse of its distribution
        drawn = np.floor(-np.log(np.maximum(least, 2.0**-60)) / GROWTH).astype(np.int16)
        drawn = drawn.reshape(some, *[sets] * parties)
        for party in range(parties):
            others = tuple(axis for axis in range(1, parties + 1) if axis != party + 1)
            found[party, :, first : first + some] = drawn.max(others).T
    return found


def veil(epsilon: float) -> tuple[int, int]:
    """Phantoms and floor with which one element more or less changes no probability of a sketch beyond e^epsilon.

    So many phantoms in each set, or in each choice of sets that an element may be in. With N elements P(level < a) =
    f^N, where f = 1 - (1 + GAMMA)^-a. One more multiplies the chance of a level by f + g^N (f - g) / (f^N - g^N), which
    is at most 1 + 1/N and at least f; g is f of the level before.
    """
    phantoms = math.ceil(1 / math.expm1(epsilon))
    floor = math.ceil(-math.log(-math.expm1(-epsilon)) / GROWTH)
    return phantoms, floor


def cost(phantoms: int, floor: int) -> float:
    """The epsilon that phantoms and floor really have."""
    return max(math.log1p(1 / phantoms), -math.log1p(-math.exp(-floor * GROWTH)))


def size(sketch: Levels, floor: int = 0) -> float:
    """How many elements a set with these sketches (count,) has: of exponential times cut at the floor, the likeliest.

    The least of N uniforms is exponential with rate N as good as exactly; a level stands for the middle of its cell.
    """
    told = sketch > floor
    if not told.any():
        return 0.0
    times = np.exp(-(np.where(told, sketch + 0.5, floor + 1.0)) * GROWTH)
    return float(told.sum() / times.sum())
