"""When somebody acts, with what randomness, and where they write down what they spent and saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.privacy.ledger import Ledger
from coterie.rng import Rng, Secrets
from coterie.wire.messages import TRAIN, Kind


@dataclass(frozen=True)
class Roots:
    """Where randomness comes from: draws that must be reproducible, and secrets that must not be known.

    In a simulation both follow from a seed, and the secrets say so (``Secrets.reproducible``). A deployed client takes
    its secrets from the operating system.
    """

    draws: Rng
    secrets: Secrets

    @staticmethod
    def seeded(seed: int) -> Roots:
        """For simulations: whoever knows the seed knows the secrets too."""
        return Roots.same(Rng.seeded(seed))

    @staticmethod
    def same(rng: Rng) -> Roots:
        """For simulations: both from one root of draws."""
        return Roots(rng, Secrets.behind(rng))

    @staticmethod
    def from_entropy() -> Roots:
        """Both from the operating system."""
        return Roots(Rng.from_entropy(), Secrets.from_entropy())

    def child(self, *names: str | int) -> Roots:
        return Roots(self.draws.child(*names), self.secrets.child(*names))


@dataclass
class Metrics:
    """Numbers that a guard or a protocol notes on the way, as weighted means by name."""

    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note(self, name: str, value: float, weight: float = 1.0) -> None:
        total, weights = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (total + weight * value, weights + weight)

    @property
    def rows(self) -> tuple[tuple[str, float, float], ...]:
        return tuple((name, total, weight) for name, (total, weight) in self._sums.items())

    def enter(self, rows: tuple[tuple[str, float, float], ...]) -> None:
        for name, total, weight in rows:
            if weight > 0:
                self.note(name, total / weight, weight)

    def means(self) -> dict[str, float]:
        return {name: total / weight for name, (total, weight) in self._sums.items() if weight > 0}


@dataclass(frozen=True)
class Turn:
    """One party's part in one request.

    The roots are the run's, not the round's: a draw that must outlive the round (an identity set) leaves the round out
    of its name.
    """

    round: int
    roots: Roots
    kind: Kind = TRAIN
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    attempt: str = ""  # what tells two times apart that the same is asked: a deployed client never draws noise twice

    def draws(self, party: str | int, *purpose: str | int) -> Rng:
        """A reproducible stream for one party, this round and this purpose."""
        return self.roots.draws.child(*self._place(party), *purpose)

    def secrets(self, party: str | int, *purpose: str | int) -> Secrets:
        """Likewise, for what must not be known: noise that hides something, or who was sampled."""
        root = self.roots.secrets.child("attempt", self.attempt) if self.attempt else self.roots.secrets
        return root.child(*self._place(party), *purpose)

    def _place(self, party: str | int) -> tuple[str | int, ...]:
        return ("party", party, "round", self.round, "kind", str(self.kind))


@dataclass(frozen=True)
class Step:
    """One local step as the gradient guard sees it.

    The turn's kind names the training under way ("train/batches"), not only the request: a protocol that trains several
    models in one answer must not meet the same noise twice.
    """

    ids: Tensor  # (clients,)
    index: int
    divisors: Tensor  # (clients,): by what each client's sum over examples was divided, and so its noise must be
    rates: Tensor  # (clients,): how likely each of its examples was to be in the batch
    active: Tensor  # (clients,) bool: who takes this step at all
    sampled: bool  # whether each example entered by a coin of its own
    turn: Turn
    width: int = 0  # of the blocks that a batch consists of, which is public; 0: the batch is one block
