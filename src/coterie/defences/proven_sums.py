"""Masked sums of numbers that are proven to lie in a public range, on a sample that the server draws afterwards.

Parties put their distances on 2^bits levels between 0 and a public bound and send them masked. Once the sums are open,
and nothing can be changed any more, the server draws some of the numbers. Of each a party sends a Pedersen commitment
with an OR-proof a bit (``seal.range_proofs``). The commitments' blinding factors are made of what the parties share,
so that they add up to nothing: all parties' commitments together must be the total that the masked sums gave. So
whoever proves one number and has sent another is caught, and so is whoever has sent one outside of the range; by the
total alone nobody can say who of them it was.

Proofs say nothing of whether numbers are true. A liar with w wrong numbers of n is caught with the chance
``range_proofs.chance(n, w, sampled)`` in each request. A party that hands over what they share opens the sampled
numbers of the others, and parties that lie together can cancel each other's lies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from secrets import token_bytes

import numpy as np
import torch

from coterie.defences.blinding import NO_RECORDS
from coterie.defences.secure_sums import OPEN, PairwiseMasks, SecureSums
from coterie.defences.secure_sums.defence import MaskingClient, MaskingServer
from coterie.errors import CoterieError, InvalidInput, NotPermitted, require
from coterie.flow.ask import Ask, State
from coterie.flow.cohort import FOR_ONE_TURN, Cohort, Memory
from coterie.flow.guard import ClientGuard, Collecting, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.rng import Secrets
from coterie.seal.range_proofs import Committed, added, bare, drawn, holds, zero_sum_blinds
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions, Down, Kind

PROVE = "prove"
LEVELS = f"{FOR_ONE_TURN}levels"  # what a party has masked, as whole numbers
OVER = f"{FOR_ONE_TURN}over"  # whose numbers are in the sum that it helped to open
NONCE = 32  # bytes


class LieCaught(InvalidInput):
    """A party did not prove what it sent."""


@dataclass(frozen=True)
class ProvenSums(SecureSums):
    """``bound`` is public; numbers above it are cut to it. ``sampled`` numbers of each request are proven."""

    masks: PairwiseMasks = field(default_factory=PairwiseMasks)
    bound: float = 1.0
    bits: int = 8
    sampled: int = 16

    def __post_init__(self) -> None:
        require(self.bound > 0, "bound", self.bound, "must be positive")
        require(1 <= self.bits <= 16, "bits", self.bits, "must lie in 1..16")
        require(self.sampled >= 1, "sampled", self.sampled, "must be at least 1; without proofs, take secure sums")

    @property
    def client(self) -> ClientGuard:
        return ProvingClient(self.masks, self.bits, self.step, self.sampled)

    @property
    def server(self) -> ServerGuard:
        return CheckingServer(self.masks, self.bits, self.step, self.sampled)

    def fits(self, protocol: AnyProtocol) -> str:
        return super().fits(protocol) or ("" if protocol.tells_records else NO_RECORDS)

    @property
    def step(self) -> float:
        """Between two levels: a power of two, so that sums are exact."""
        return float(2.0 ** np.ceil(np.log2(self.bound / ((1 << self.bits) - 1))))


@dataclass(frozen=True)
class ProvingClient(MaskingClient):
    bits: int
    step: float
    sampled: int

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if not sent.values:
            return sent
        top = (1 << self.bits) - 1
        levels = {name: (leaf.double() / self.step).round_().clamp_(0, top) for name, leaf in sent.values.items()}
        for place, memory in enumerate(cohort.memory):
            memory[LEVELS] = torch.cat([leaf[place].flatten() for leaf in levels.values()]).int()
        told = {name: leaf * self.step for name, leaf in levels.items()}
        return super().contribute(replace(sent, values=told), cohort)

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        if asked.kind.part != PROVE:
            found = super().follow_up(asked, cohort)
            for client, memory in zip(cohort.ids.tolist(), cohort.memory, strict=True):
                if asked.kind.part == OPEN and client in found.ids:
                    memory[OVER] = tuple(sorted(decode(asked.common)))
            return found
        shared = cohort.turn.roots.secrets.child("shared by the parties", "proofs")
        clients = zip(cohort.ids.tolist(), cohort.memory, strict=True)
        notes = [self._proven(asked, client, memory, shared) for client, memory in clients]
        ones = torch.ones(len(cohort))
        return Contributions(cohort.ids, {}, ones, ones.unsqueeze(1), notes=tuple(notes))

    def _proven(self, asked: Down, client: int, memory: Memory, shared: Secrets) -> bytes:
        """Once a request, of as many numbers as agreed, and with all whose numbers were added up.

        Commitments of fewer parties add up to those parties' sum, and what is missing to the total would be known too.
        """
        question = Question.read(asked.common)
        levels = memory.pop(LEVELS, None)
        if levels is None:
            raise NotPermitted(f"client {client} has proven its numbers of round {asked.round}; once is all it takes")
        places, parties = question.places, question.parties
        few = 0 < len(places) <= self.sampled and len(set(places)) == len(places)
        inside = all(0 <= place < len(levels) for place in places)
        require(few and inside, "numbers to prove", len(places), f"must be at most {self.sampled} of its own")
        over = memory.get(OVER, ())
        require(tuple(sorted(parties)) == over, "parties", list(parties), f"must be {list(over)}, as in the sum")
        own = shared.child(asked.round, str(replace(asked.kind, part="")), question.nonce.hex(), *parties)
        blinds = zero_sum_blinds(
            lambda place, party: own.child(place, party).bytes(64), parties.index(client), len(parties), places
        )
        mine = Committed([int(levels[place]) for place in places], self.bits, tuple(blinds))
        proofs = [
            mine.proof(at, question.context(asked.kind, asked.round, client, place)) for at, place in enumerate(places)
        ]
        return encode((tuple(mine.points), tuple(proofs)))


@dataclass(frozen=True)
class CheckingServer(MaskingServer):
    bits: int
    step: float
    sampled: int

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        sums = yield from super().collect(ask, turn)
        if sums.empty:
            return sums
        levels = torch.cat([leaf.flatten() for leaf in sums.values.values()]).div(self.step).round().long()
        question = Question(token_bytes(NONCE), tuple(drawn(len(levels), self.sampled)), tuple(ask.clients.tolist()))
        request = ask.sub(PROVE, ask.clients, question.to_bytes())
        points = self._points((yield request), question, request.kind, ask.round)
        where = f"round {turn.round}, {turn.kind}"
        if missing := sorted(set(question.parties) - set(points)):
            raise LieCaught(f"{where}: parties {missing} did not prove their numbers; leave them out")
        for at, place in enumerate(question.places):
            if added([own[at] for own in points.values()]) != bare(int(levels[place])):
                raise LieCaught(
                    f"{where}: number {place}={int(levels[place])} is not the sum of what was proven; somebody sent "
                    "another number than it proved: ask each party apart"
                )
        return sums

    def _points(
        self, replies: Iterable[Contributions], question: Question, kind: Kind, round: int
    ) -> dict[int, tuple[bytes, ...]]:
        """By party, its commitments; whoever's proofs do not hold has none."""
        found: dict[int, tuple[bytes, ...]] = {}
        for part in replies:
            for client, note in zip(part.ids.tolist(), part.notes, strict=False):
                try:
                    points, proofs = decode(note)
                    told = zip(points, proofs, question.places, strict=True)
                    contexts = (question.context(kind, round, client, place) for place in question.places)
                    right = all(
                        holds(point, proof, self.bits, context)
                        for (point, proof, _), context in zip(told, contexts, strict=True)
                    )
                except (CoterieError, AttributeError, TypeError, ValueError):  # a note may hold anything
                    continue
                if right:
                    found[client] = points
        return found


@dataclass(frozen=True)
class Question:
    """What all parties are asked to prove: the server's own draw, which no earlier answer fits."""

    nonce: bytes
    places: tuple[int, ...]
    parties: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return encode((self.nonce, self.places, self.parties))

    @staticmethod
    def read(common: bytes) -> Question:
        found = decode(common)
        fits = isinstance(found, tuple) and len(found) == 3 and isinstance(found[0], bytes)
        whole = fits and all(
            isinstance(part, tuple) and all(isinstance(one, int) for one in part) for part in found[1:]
        )
        require(whole, "question", type(found).__name__, "must be a nonce, places and parties")
        return Question(*found)

    def context(self, kind: Kind, round: int, client: int, place: int) -> bytes:
        """A proof is of this number of this party in this request alone."""
        return encode((self.nonce, str(kind), round, client, place))
