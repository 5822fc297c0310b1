"""A federation that is attacked as its rounds go by, in bounded memory, and that can be killed and goes on.

Nothing of a round outlives the next one but features: the tape holds two rounds, the attack a fair sample of what it
imagined and the features of what it saw.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.attacks.base import Suspicions
from coterie.attacks.property import PropertyWatch
from coterie.files import replacing
from coterie.flow.ask import AnyAsk
from coterie.flow.ring import AnyRing
from coterie.measure.aggregates import Steadiness
from coterie.measure.cost import peak_memory
from coterie.measure.witness import Witness
from coterie.wire.codec import decode, encoded_parts
from coterie.wire.messages import TRAIN
from coterie.wire.tape import Tape

ROUNDS_HELD = 2
SAVED_EVERY = 50  # rounds


@dataclass
class Watched:
    """A ring, what looks at it round by round, and the file in which all of it is kept."""

    ring: AnyRing
    tape: Tape
    watch: PropertyWatch
    steadiness: Steadiness
    witness: Witness
    kept_in: Path | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "attack": 0.0})
    _since: float = field(default_factory=time.perf_counter)

    def run(self) -> Any:
        """To the end, from the start or from what is kept; the protocol's last state."""
        state, memory = self._resumed()
        self._since = time.perf_counter()
        state = self.ring.run(state, memory, before_ask=self._before)
        self._look()
        return state

    def guesses(self) -> list[Suspicions]:
        started = time.perf_counter()
        found = self.watch.guesses()
        self.seconds["attack"] += time.perf_counter() - started
        return found

    @property
    def cost(self) -> dict[str, float]:
        rounds = max(self.watch.notes.following, 1)
        each = (self.seconds["training"] + self.seconds["attack"]) / rounds
        return {**self.seconds, "a round": each, "peak memory, GiB": peak_memory() / 2**30}

    def _before(self, ask: AnyAsk) -> None:
        self._look()
        if ask.kind == TRAIN and ask.round and ask.round % SAVED_EVERY == 0 and self.kept_in is not None:
            self._save(ask)

    def _look(self) -> None:
        now = time.perf_counter()
        self.seconds["training"] += now - self._since
        view = self.ring.view(self.watch.attack.threat)
        self.watch.look(view)
        self.steadiness.look(view)
        self._since = time.perf_counter()
        self.seconds["attack"] += self._since - now

    def _save(self, ask: AnyAsk) -> None:
        assert self.kept_in is not None
        everything = {
            "state": ask.state,
            "memory": self.ring.memory,
            "tape": self.tape.kept(),
            "notes": self.watch.notes,
            "steadiness": self.steadiness,
            "witness": self.witness,
            "seconds": self.seconds,
        }
        with replacing(self.kept_in) as file:  # in parts: all of it at once would take as much memory again
            file.writelines(encoded_parts(everything))
        self._since = time.perf_counter()

    def _resumed(self) -> tuple[Any, Any]:
        if self.kept_in is None or not self.kept_in.exists():
            return None, None
        kept = decode(self.kept_in.read_bytes())
        for message in kept["tape"]:
            self.tape.record(message)
        self.watch.notes, self.steadiness, self.seconds = kept["notes"], kept["steadiness"], kept["seconds"]
        self.witness.slots, self.witness.members = kept["witness"].slots, kept["witness"].members
        return kept["state"], kept["memory"]
