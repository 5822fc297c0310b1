"""When a run may end before its last round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import require


@dataclass(frozen=True)
class Patience:
    """Stop when none of the last ``measurements`` beats the best before them by more than ``least``.

    It goes by the mean score on the clients' test rows, as measured every ``evaluate_every`` rounds: a score that was
    chosen so is optimistic, and should be reported with this rule. Privacy is charged as it was spent; what was
    promised for all rounds is an upper bound, for records that are trained on: when a run ends tells of the test rows.
    """

    measurements: int = 3
    least: float = 0.001

    def __post_init__(self) -> None:
        require(self.measurements >= 1, "measurements", self.measurements, "must be at least 1")
        require(self.least >= 0, "least", self.least, "must be at least 0")

    def enough(self, scores: Sequence[float]) -> bool:
        before, newest = scores[: -self.measurements], scores[-self.measurements :]
        return bool(before) and max(newest) <= max(before) + self.least
