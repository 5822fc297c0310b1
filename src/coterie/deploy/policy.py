"""What the owner of a client allows, in a file on the client's own machine. Whatever it does not allow is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from coterie.config.schema import Choice, Strict, read_toml, validate
from coterie.defences.secure_sums import PairwiseMasks
from coterie.deploy.plan import Offer, Plan, pieces
from coterie.errors import NotPermitted
from coterie.privacy.guarantee import DELTA, Guarantee, RunFacts, Trust
from coterie.privacy.ledger import Row, rows_of

Names = Annotated[tuple[str, ...], BeforeValidator(lambda said: tuple(said) if isinstance(said, list) else said)]


class Policy(Strict):
    """The owner's word. What is not named is not allowed; of numbers, the careful value is the default."""

    trainers: Names  # which algorithms, by name
    models: Names = ()  # which models, for algorithms that train one
    defences: Names = ()  # under which defences; "none" must be said, too
    least_cohort: int = Field(default=3, ge=1)  # how many clients must be on the roster
    most_rounds: int = Field(default=1000, ge=1)
    most_bytes: int = Field(default=100_000_000, ge=1)  # of one answer
    most_clip: float | None = Field(default=None, gt=0)  # to which examples' gradients must be scaled
    least_noise: float = Field(default=0.0, ge=0)  # the noise multiplier below which nothing is released
    epsilon: float | None = Field(default=None, gt=0)  # what all runs together may spend; None: nothing is counted
    delta: float = Field(default=DELTA, gt=0, lt=1)
    trusts_server: bool = False  # whether the server may be the one that adds the noise
    signed: bool = True  # whether masks must be signed by clients whose cards are here
    recording: bool = False  # whether messages may be written down
    draws: Literal["own", "run"] = "own"  # whether the run's seed chooses batches
    tells_measures: bool = False  # whether the server is told how well the result serves here

    def check(self, offer: Offer, plan: Plan, facts: RunFacts | None, cards: set[str]) -> None:
        """Raises ``NotPermitted`` with the first reason not to take part."""
        config = plan.config
        self._named("trainer", config.trainers[0].kind, self.trainers)
        if plan.model is not None:
            self._named("model", config.model.kind, self.models)
        for kind in plan.defence_kinds:
            self._named("defence", kind, self.defences)
        clients = len(offer.names)
        _require(clients >= self.least_cohort, f"cohort of {clients} is less than least_cohort={self.least_cohort}")
        rounds = plan.rounds
        _require(rounds <= self.most_rounds, f"rounds={rounds} are more than most_rounds={self.most_rounds}")
        _require(self.recording or not offer.recorded, "messages would be recorded, and recording=false")
        masks = [one for one in pieces(plan.defence) if isinstance(one, PairwiseMasks)]
        if masks and self.signed:
            _require(all(one.signed for one in masks), "masks are not signed, and signed=true; add signed = true")
            strangers = sorted(set(offer.names) - cards)
            _require(not strangers, f"no card of {', '.join(strangers)} is here, so anybody could be them; get theirs")
        self._floors(plan, facts)

    def _named(self, what: str, name: str, allowed: tuple[str, ...]) -> None:
        _require(name in allowed, f"{what} {name!r} is not among those allowed: {', '.join(allowed) or 'none'}")

    def _floors(self, plan: Plan, facts: RunFacts | None) -> None:
        clip = plan.defence.client.example_clip
        if self.most_clip is not None and plan.model is not None:
            _require(
                clip is not None and clip <= self.most_clip, f"clip={clip} is not at most most_clip={self.most_clip}"
            )
        if self.least_noise > 0:
            rows = forecast(plan, facts)
            noise = min((spent.noise_multiplier if spent.epsilon is None else 0.0 for _, spent, _ in rows), default=0.0)
            _require(
                bool(rows) and noise >= self.least_noise,
                f"noise multiplier {noise:.4g} is below least_noise={self.least_noise:g}",
            )

    def claim(self, plan: Plan, facts: RunFacts | None) -> Guarantee | None:
        """What the run promises this client's units, as far as the owner believes it; None where nothing is counted."""
        if self.epsilon is None:
            return None
        said = None if facts is None else plan.defence.guarantee(facts)
        if said is None or not said.proven:
            why = "nobody says what it hides" if said is None else said.why_not
            raise NotPermitted(f"policy: epsilon={self.epsilon:g} is a limit, and nothing is proven of this run: {why}")
        trusted = said.trust is not Trust.TRUSTED_AGGREGATOR or self.trusts_server
        _require(trusted, "the server would add the noise, and trusts_server=false")
        return said


def forecast(plan: Plan, facts: RunFacts | None) -> tuple[Row, ...]:
    """What the run will cost a unit of this client, as a ledger's rows."""
    return () if facts is None else tuple(rows_of(plan.defence.events(facts)))


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise NotPermitted(f"policy: {why}")


class ClientFile(Strict):
    """A client's own file: where things are on its machine, its data, and the owner's policy."""

    server: Path  # the server's card
    keys: Path  # the folder of its own keys
    cards: Path | None = None  # the folder with the other clients' cards
    home: Path  # what it keeps: ledger, memory, results
    data: Choice
    test_share: float = Field(default=0.0, ge=0, lt=1)  # of its rows, kept back to measure results on
    policy: Policy

    @staticmethod
    def read(path: Path) -> ClientFile:
        """With all paths as they are seen from the file's own folder."""
        words: dict[str, Any] = dict(read_toml(path, "see docs/deployment.md for a client's file"))
        policy = validate(Policy, words.pop("policy", {}), f"{path} [policy]")
        found = validate(ClientFile, words | {"policy": policy}, str(path))
        here = path.parent
        placed = {name: here / getattr(found, name) for name in ("server", "keys", "home")}
        if found.cards is not None:
            placed["cards"] = here / found.cards
        data = Choice.model_validate({"kind": found.data.kind, "folder": str(here), **found.data.options})
        return found.model_copy(update={**placed, "data": data if "path" in found.data.options else found.data})

    @property
    def limit(self) -> float:
        return math.inf if self.policy.epsilon is None else self.policy.epsilon
