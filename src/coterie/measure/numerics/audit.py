"""The numerics audit: three ways in which a right proof becomes a wrong program."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.files import Array
from coterie.measure.epsilon import EpsilonBound
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.numerics.floats import FloatFinding, audit_floats
from coterie.measure.numerics.mechanism import Mechanism
from coterie.measure.numerics.seeds import DRAWS, SeedFinding, audit_seed
from coterie.measure.numerics.sensitivity import SensitivityFinding, audit_sensitivity
from coterie.privacy.guarantee import Guarantee
from coterie.rng import Rng


@dataclass(frozen=True)
class NumericsAudit:
    seed: SeedFinding
    floats: FloatFinding
    sensitivity: SensitivityFinding

    @property
    def broken(self) -> bool:
        return self.seed.broken or self.floats.broken or self.sensitivity.broken

    @property
    def bounds(self) -> tuple[EpsilonBound, ...]:
        """For ``judge_guarantee``. Only the floats' can be wrong by chance, and it has the whole error."""
        found = (self.seed.bound, self.floats.bound, self.sensitivity.bound)
        return tuple(bound for bound in found if bound is not None)

    @property
    def sentences(self) -> tuple[str, str, str]:
        return self.seed.sentence, self.floats.sentence, self.sensitivity.sentence


def audit_numerics(
    mechanism: Mechanism,
    inside: Array,
    outside: Array,
    claim: Guarantee,
    rng: Rng,
    trials: int = 2000,
    draws: int = DRAWS,
    most_records: int = 50_000,
    clips: bool = False,
    confidence: float = CONFIDENCE,
) -> NumericsAudit:
    """``inside`` and ``outside`` are neighbours (n, features); their one record should stand in rows that are empty."""
    return NumericsAudit(
        audit_seed(mechanism, outside, claim.delta, rng.child("seed"), draws),
        audit_floats(mechanism, inside, outside, (claim.epsilon, claim.delta), rng.child("floats"), trials, confidence),
        audit_sensitivity(mechanism, inside.shape[1], claim.delta, most_records, inside.dtype.type, clips),
    )
