"""Sums under CKKS, of which the server learns where the least number of each record is, and nothing else.

Parties that hold columns seal their distances under a key that they share; the server adds ciphertexts, and has the sum
opened by a party, which answers with the places of the least. So the server has the assignments, and the totals are
seen by the party that opens: with a few known records, that one reads every column of every other
(``attacks.distance_geometry`` with the shared key). Whoever hands the key to the server opens single parties' answers.

A server that does not follow the protocol may have something else opened than the sum: one party's answer, say, with
numbers of its own added. It learns the places of the least in that, once a round of each party, which halves what it
does not know of a difference of two distances of every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from coterie.defences.blinding import NO_RECORDS, READS
from coterie.defences.mingling.defence import shared_key
from coterie.defences.secure_sums import ClientsDropped, listed
from coterie.defences.secure_sums.settings import warn
from coterie.errors import CoterieError, InvalidInput, NotPermitted, require
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums, finite
from coterie.flow.cohort import FOR_ONE_TURN, Cohort, Memory
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.clusters.columns import least_of_each
from coterie.learn.params import flatten
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.seal.cipher import ByForm, add_intact
from coterie.seal.ckks import Ckks, CkksBatch, CkksContext, CkksKey, CkksSum
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions, Down, Published
from coterie.wire.sealed import SEALED, SHARED_KEY

LEAST = "least"  # the further request, to the party that opens
LENGTH = f"{FOR_ONE_TURN}length"  # of the party's own answer: the sum has as many numbers
OPENED = "CKKS sums: the last round that was opened"
KEY_FILE = "ckks_sums.key"
Form = tuple[str, tuple[int, ...]]  # the name of a leaf, and its shape: (records, numbers)


@dataclass(frozen=True)
class CkksSums(Defence):
    """``members``: how many parties may be in a sum.

    Sane up to a million records, where a party and step take seconds and 82 MB. The key is the parties' own and
    stays with them; the server knows it by name alone.
    """

    members: int = 16
    key: CkksKey | None = field(default=None, repr=False)  # None: a fresh one
    fresh_key: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.key is None:
            object.__setattr__(self, "key", self.cipher.keygen())
            object.__setattr__(self, "fresh_key", True)

    @property
    def cipher(self) -> Ckks:
        return Ckks(members=self.members)

    @property
    def seals(self) -> bool:
        return True

    @property
    def client(self) -> ClientGuard:
        assert self.key is not None
        return SealingClient(self.cipher, self.key)

    @property
    def server(self) -> ServerGuard:
        assert self.key is not None
        return AddingServer(self.key.context)

    @property
    def keys(self) -> Mapping[str, object]:
        return {SHARED_KEY: self.key}

    def fits(self, protocol: AnyProtocol) -> str:
        if not protocol.tells_records:
            return NO_RECORDS
        return READS if getattr(protocol, "seedings", 0) else ""

    def kept_in(self, folder: Path) -> CkksSums:
        """With the key of the folder, where the caller gave none: what it sealed opens after a restart."""
        return replace(self, key=shared_key(self.cipher, folder / KEY_FILE)) if self.fresh_key else self

    def guarantee(self, run: RunFacts) -> Guarantee:
        why = (
            "records are hidden from the server by encryption, not by noise, so there is no epsilon; it learns the "
            "assignments, and the party that opens the sums learns the totals"
        )
        return Guarantee.none(why, Level.RECORD, Trust.NO_COLLUSION)


@dataclass(frozen=True)
class SealingClient(ClientGuard):
    cipher: Ckks
    key: CkksKey = field(repr=False)

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if not sent.values:  # an answer that says nothing has nothing to hide
            return sent
        ((name, leaf),) = sent.values.items()
        bad = sent.ids[~finite(sent)].tolist()
        require(not bad, f"{name} of {bad}", "NaN or infinite", "cannot be sealed; look at what that party holds")
        batch = self.cipher.seal(flatten(sent.values).double(), self.key, sent.ids.tolist())
        for memory in cohort.memory:
            memory[LENGTH] = leaf[0].numel()
        form = encode((name, tuple(leaf.shape[2:])))
        return replace(sent, values={}, sealed={SEALED: batch}, notes=(form,) * len(sent))

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        if asked.kind.part != LEAST:
            raise InvalidInput(f"request {str(asked.kind)!r} is none of CKKS sums; known: {LEAST!r}")
        notes = [self._least(asked, own, memory) for own, memory in zip(cohort.columns, cohort.memory, strict=True)]
        ones = torch.ones(len(cohort))
        return Contributions(cohort.ids, {}, ones, ones.unsqueeze(1), notes=tuple(notes))

    def _least(self, asked: Down, own: Tensor, memory: Memory) -> bytes:
        """Once a round: whoever could ask again could have anything opened, one thing after the other."""
        if asked.round <= memory.get(OPENED, -1):
            raise NotPermitted(f"request {str(asked.kind)!r} of round {asked.round} was answered; once is all it takes")
        total = asked.published.sealed.get(SEALED)
        fits = isinstance(total, CkksSum) and total.slots == 1 and total.length == memory.get(LENGTH)
        fits = fits and memory[LENGTH] % len(own) == 0
        require(fits, "sum to be opened", type(total).__name__, "must be of as many numbers as its own, under CKKS")
        assert total is not None
        memory[OPENED] = asked.round
        return encode(least_of_each(total.open(self.key).view(len(own), -1)).int())


@dataclass(frozen=True)
class AddingServer(ServerGuard):
    """It holds the name of the key, and no key."""

    context: CkksContext

    def expects(self, expected: Expected) -> Expected:
        return expected.sealed()

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        dropped: dict[int, str] = {}
        total, forms = self._added((yield ask), dropped)
        if dropped:
            warn(f"round {turn.round}, {turn.kind}: dropped {listed(dropped)}", ClientsDropped)
        if total is None or (ask.whole and len(forms) < len(ask.clients)):  # the least without a party is not asked for
            return Sums.nothing()
        name, (records, numbers) = next(iter(forms.values()))
        published = Published({}, sealed={SEALED: total})
        for party in forms:  # the first that answers is enough
            request = replace(ask.sub(LEAST, torch.tensor([party])), published=published)
            for part in (yield request):
                places = _places(part.notes, records, numbers)
                if places is not None:
                    told = torch.ones(1, records, numbers, dtype=torch.float64)
                    told[0, torch.arange(records), places] = 0.0  # all that is known of the totals
                    return Sums({name: told}, torch.ones(1, dtype=torch.float64), torch.tensor([len(forms)]))
        return Sums.nothing()

    def _added(
        self, replies: Iterable[Contributions], dropped: dict[int, str]
    ) -> tuple[CkksSum | None, dict[int, Form]]:
        """The sum over all whose answers can be used, and whose they are."""
        sums, forms = ByForm(), dict[int, Form]()
        for part in replies:
            batch, ids = part.sealed.get(SEALED), part.ids.tolist()
            try:
                said = {client: _form(note) for client, note in zip(ids, part.notes, strict=True)}
                own = isinstance(batch, CkksBatch) and batch.context == self.context and list(batch.ids) == ids
                alike = len(set(said.values())) == 1
                require(own and alike, "answer", type(batch).__name__, "must be its own, under the parties' key, alike")
                assert batch is not None
                found, why = add_intact(batch, torch.ones(len(ids), 1))
                assert isinstance(found, CkksSum)
                intact = {client: form for client, form in said.items() if client not in why}
                name, shape = next(iter(said.values()))
                sums.add(f"{name} {shape} in {found.length} numbers", found, intact)
                dropped |= why
                forms |= intact
            except (CoterieError, ValueError) as problem:
                dropped |= dict.fromkeys(ids, str(problem))
        total, most = sums.most(dropped)
        assert total is None or isinstance(total, CkksSum)
        return total, {client: forms[client] for client in most}


def _form(note: bytes) -> Form:
    found = decode(note)
    fits = (
        isinstance(found, tuple)
        and len(found) == 2
        and isinstance(found[0], str)
        and isinstance(found[1], tuple)
        and len(found[1]) == 2
        and all(isinstance(length, int) and length > 0 for length in found[1])
    )
    require(fits, "note", type(found).__name__, "must name a leaf and its shape")
    return found[0], found[1]


def _places(notes: tuple[bytes, ...], records: int, numbers: int) -> Tensor | None:
    """(records,): where the least numbers are; None for whatever else a party may have said."""
    try:
        found = decode(notes[0]) if len(notes) == 1 else None
    except InvalidInput:
        return None
    if not isinstance(found, Tensor) or found.dtype != torch.int32 or found.shape != (records,):
        return None
    return found.long() if bool(((found >= 0) & (found < numbers)).all()) else None
