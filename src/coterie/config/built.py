"""A federation that can be run, as objects: what a configuration's words come to, or what somebody hands over."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from coterie.config.attainable import within_reach
from coterie.data.federation import Federation
from coterie.data.lazy import shown_by
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.models.model import Model
from coterie.measure.claims import Promise, judge_guarantee
from coterie.privacy.guarantee import DELTA, KNOWN, STOPS, Guarantee, Level
from coterie.privacy.ledger import Ledger


@dataclass(frozen=True)
class Case:
    """One protocol on one federation under one defence, with one seed."""

    protocol: AnyProtocol
    federation: Federation
    model: Model | None = None  # clusterings have none
    defence: Defence = field(default_factory=Defence)
    seed: int = 0
    delta: float = DELTA
    simulated: bool = True  # whether its noise follows from the seed, too
    stops: bool = False  # whether it may end early, by how well models do

    @cached_property
    def promise(self) -> Promise | None:
        """What the defence guarantees about this run; None where nothing is said, or nobody has told the facts."""
        facts = self.protocol.facts(self.federation, self.delta)
        said = None if facts is None else self.defence.guarantee(facts)
        if said is None:
            return None
        if not said.proven:
            found = within_reach(self.defence, self.protocol, self.federation, self.delta)
            told = tuple(replace(one, guarantee=self._beside(one.guarantee)) for one in found)
            return judge_guarantee(replace(self._beside(said), attainable=told), ())
        return judge_guarantee(self._beside(said), ())

    def _beside(self, said: Guarantee) -> Guarantee:
        """With what this run and its data leave open."""
        known = shown_by(self.federation).known if said.level is Level.RECORD else ""
        leaves = (*said.leaves, *([f"{KNOWN}: {known}"] if known else []), *([STOPS] if self.stops else []))
        return replace(said, simulated=self.simulated, leaves=leaves)

    def spent(self, ledger: Ledger) -> float | None:
        """By the ledger. Where no epsilon is stated, the ledger's price rests on nothing, and is none either."""
        promise = self.promise
        stated = promise is not None and math.isfinite(promise.guarantee.epsilon)
        if promise is None or not stated or not ledger.rows:
            return None
        said = promise.guarantee
        return ledger.epsilon(said.delta if said.proven else self.delta, said.neighbours)
