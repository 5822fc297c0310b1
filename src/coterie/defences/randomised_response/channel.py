"""A randomised answer as the table of its chances, from which everything that may be said of it follows exactly.

Chances are whole numbers of 2^-63, and a draw takes 63 bits of a secret stream: what is priced is what is drawn, to the
last bit. No float passes from the value to its answer, so none can tell of it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coterie.errors import require
from coterie.rng import Secrets

TOTAL = 1 << 63
Table = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """The answer that tells two inputs apart best: ``likely`` gives it with chance p, ``unlikely`` with chance q."""

    answer: int
    likely: int
    unlikely: int
    p: float
    q: float

    def __str__(self) -> str:
        return f"answer {self.answer}: chance {self.p:.4g} from input {self.likely}, {self.q:.4g} from {self.unlikely}"


@dataclass(frozen=True, eq=False)
class Channel:
    """Inputs are levels 0 .. n - 1 of a range, outputs are answers whose ``values`` are in units of that range."""

    name: str
    chances: NDArray[np.uint64]  # (inputs, answers): each row sums to 2^63
    values: Table  # (answers,): what the server takes an answer for; input i stands for i / (inputs - 1)
    stated: float  # the epsilon that it is called by

    @staticmethod
    def of(name: str, probabilities: Table, values: Table, stated: float) -> Channel:
        """Rounded to 2^-63 downward; what is left of a row goes to its largest chance."""
        inputs, answers = probabilities.shape
        require(inputs >= 2, "levels", inputs, "must be at least 2")
        require(len(values) == answers, "len(values)", len(values), f"must be one an answer ({answers})")
        chances = np.floor(probabilities / probabilities.sum(1, keepdims=True) * TOTAL).astype(np.uint64)
        left = np.uint64(TOTAL) - chances.sum(1, dtype=np.uint64)  # wraps where floats rounded upward, and so does +
        chances[np.arange(inputs), chances.argmax(1)] += left
        return Channel(name, chances, values, stated)

    @cached_property
    def mark(self) -> NDArray[np.uint8]:
        """By which two channels are told apart."""
        return np.frombuffer(hashlib.blake2b(self.chances.tobytes(), digest_size=16).digest(), dtype=np.uint8)

    @property
    def levels(self) -> int:
        return len(self.chances)

    @cached_property
    def probabilities(self) -> Table:
        return self.chances / float(TOTAL)

    @cached_property
    def pair(self) -> Pair:
        """The pair of inputs that some answer tells apart best."""
        table = self.probabilities
        most, least = table.max(0), table.min(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(most > 0, np.where(least > 0, most / least, np.inf), 0.0)
        answer = int(ratios.argmax())
        column = table[:, answer]
        likely, unlikely = int(column.argmax()), int(column.argmin())
        return Pair(answer, likely, unlikely, float(column[likely]), float(column[unlikely]))

    @property
    def epsilon(self) -> float:
        """The worst-case epsilon of one answer; infinite if some answer rules an input out."""
        return math.log(self.pair.p / self.pair.q) if self.pair.q > 0 else math.inf

    def delta(self, epsilon: float) -> float:
        """The least delta with which one answer is (epsilon, delta)-indistinguishable for all pairs of inputs."""
        require(epsilon >= 0, "epsilon", epsilon, "must not be negative")
        table = self.probabilities
        scaled = np.where(table > 0, table * math.exp(min(epsilon, 700.0)), 0.0)
        return max(float(np.maximum(row - scaled, 0).sum(1).max()) for row in table)

    @cached_property
    def metric_epsilon(self) -> float:
        """Metric privacy: the log-ratio of two inputs is at most this, times their distance as a part of the range."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.probabilities)
        worst = 0.0
        for step in range(1, self.levels):
            upper, lower = logs[step:], logs[:-step]
            possible = np.isfinite(upper) | np.isfinite(lower)
            gaps = np.abs(np.where(possible, upper, 0.0) - np.where(possible, lower, 0.0))
            worst = max(worst, float(gaps.max()) * (self.levels - 1) / step)
        return worst

    def draw(self, levels: NDArray[np.int64], secrets: Secrets) -> NDArray[np.int64]:
        """The answers to these inputs (n,), each by 63 bits of its own. The node must serve for nothing else.

        The same bits for two channels would rule inputs out that either of them leaves open.
        """
        return self._settled(levels, secrets.upon(levels, self.mark).words(len(levels)) >> np.uint64(1))

    def draw_once(self, levels: NDArray[np.int64], secrets: Secrets) -> NDArray[np.int64]:
        """As ``draw``, but the same place with the same input always gets the same answer: each level has a stream."""
        answers = np.zeros(len(levels), dtype=np.int64)
        for level in np.unique(levels):
            mine = np.flatnonzero(levels == level)
            bits = secrets.child("level", int(level)).words(len(levels)) >> np.uint64(1)
            answers[mine] = self._settled(levels[mine], bits[mine])
        return answers

    @cached_property
    def _bounds(self) -> NDArray[np.uint64]:
        return self.chances.cumsum(1, dtype=np.uint64)

    def _settled(self, levels: NDArray[np.int64], bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        beyond = levels[(levels < 0) | (levels >= self.levels)]
        require(len(beyond) == 0, "levels", beyond[:1].tolist(), f"must lie in 0..{self.levels - 1}; cut them to that")
        answers = np.zeros(len(levels), dtype=np.int64)
        order = np.argsort(levels.astype(np.uint16), kind="stable")
        ends = np.searchsorted(levels[order], np.arange(self.levels + 1))
        for level in range(self.levels):
            mine = order[ends[level] : ends[level + 1]]
            answers[mine] = np.searchsorted(self._bounds[level], bits[mine], side="right")
        return answers
