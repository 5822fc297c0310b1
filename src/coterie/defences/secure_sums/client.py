"""The clients' part of secure sums: an answer that waits until it can be masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.defences.secure_sums.settings import (
    AGREE,
    MASKED,
    OPEN,
    SHARES,
    TALLY,
    ClientsDropped,
    ClusterLeftOut,
    PairwiseMasks,
    Veil,
    warn,
)
from coterie.errors import CoterieError, InvalidInput, NotPermitted, require
from coterie.flow.cohort import FOR_ONE_TURN, Cohort, Memory
from coterie.flow.turn import Turn
from coterie.learn.params import Params
from coterie.seal import shamir
from coterie.seal.masked import MaskedBatch, largest_value
from coterie.seal.pairwise import Advert, Party, salt_of
from coterie.seal.roster import LEAST, Roster
from coterie.seal.signing import sign, signed_by
from coterie.seal.streams import KEY, Packed, pack, word_bytes
from coterie.seal.veil import pads
from coterie.wire.codec import decode, encode, register
from coterie.wire.messages import Contributions, Down
from coterie.wire.sealed import SEALED

WAITING = f"{FOR_ONE_TURN}secure sums"  # the name under which a client remembers where it is
KNOWN = "secure sums: long-lived keys of others"
IDENTITY = "secure sums: own long-lived key"  # a deployed client's, whose card others have
PARTIES = "secure sums: the parties"  # with columns of the same records, which stay who they are
LAST = "secure sums: the last round"  # and what it has answered in it, so that it does not do so again
Said = Any  # what a note holds once it is decoded: checked where it is used


@register
@dataclass(frozen=True)
class Own:
    """An answer that is for one cluster alone, and which one no message tells.

    ``before`` is what is sent to each cluster that is too small: what it was, counted once.
    """

    true: int
    before: Tensor = field(repr=False)  # (slots, length), the same one for all clients


@register
@dataclass
class Waiting:
    """A client between two requests: its secrets, and the answer that it has not sent yet."""

    party: Party
    slots: tuple[bool, ...]  # in which it announced itself
    values: Tensor = field(repr=False)  # (slots | 1, length)
    shapes: Mapping[str, tuple[int, ...]]
    own: Own | None = None
    roster: Roster | None = None
    adverts: Mapping[int, Advert] = field(default_factory=dict)
    sharing: tuple[int, ...] = ()  # whose boxes were delivered
    tally: shamir.Shares | None = None  # of the clusters' true sizes, as it was told
    survivors: tuple[int, ...] = ()  # and who it said is left
    masked: bool = False  # whether its answer has left
    small: tuple[int, ...] = ()  # clusters that it found too small
    whole: bool = False  # whether it adds up with all or not at all

    def statement(self) -> bytes:
        """All that it was told of this round: what everybody must have been told alike."""
        tally = None if self.tally is None else self.tally.tolist()
        return self.party.context + encode((self.sharing, tally, self.survivors))

    def told(self) -> Roster:
        if self.roster is None:
            raise InvalidInput(f"client {self.party.client} was not told who takes part; the requests come in order")
        return self.roster


def advertise(
    sent: Contributions,
    values: Tensor,
    membership: Tensor,
    leaves: Mapping[str, tuple[int, ...]],
    cohort: Cohort,
    settings: PairwiseMasks,
    own: list[Own] | None = None,
) -> Contributions:
    """The first answer: the clusters (clients, slots) of each client, and its public keys.

    ``values`` (clients, slots | 1, length) wait with the clients; ``leaves`` say what is in them.
    """
    request, notes = f"{cohort.turn.round} {cohort.turn.kind}", []
    joined = (membership != 0).tolist()
    owned: Sequence[Own | None] = own or [None] * len(sent)
    rows = zip(cohort.memory, sent.ids.tolist(), values, joined, owned, strict=True)
    for memory, client, vector, slots, one in rows:
        answered = _answered(memory, client, cohort.turn)
        party = Party(client, request=request)
        if settings.signed:
            own_key = cohort.turn.roots.secrets.child("long-lived key", client)
            party.identity = memory.get(IDENTITY) or own_key.bytes(KEY)
            party.known, party.closed = dict(memory.get(KNOWN, {})), IDENTITY in memory
        waiting = Waiting(party, tuple(slots), vector, leaves, one, whole=bool(cohort.columns))
        memory[WAITING], memory[LAST] = waiting, answered
        notes.append(waiting.party.advert.to_bytes())
    return Contributions(sent.ids, {}, torch.ones(len(sent)), membership.float(), notes=tuple(notes))


def _answered(memory: Memory, client: int, turn: Turn) -> tuple[int, tuple[str, ...]]:
    """The round, and all that was asked in it, this too. The same answer in two sums would be their difference, so
    nothing is answered twice, and no round that is over."""
    round, kinds = memory.get(LAST, (-1, ()))
    request = str(turn.kind)
    if turn.round < round or (turn.round == round and request in kinds):
        raise NotPermitted(
            f"client {client} was asked '{turn.round} {request}' before, or is past it in round {round}; it answers "
            "once, in the next round again"
        )
    return turn.round, (*kinds, request) if turn.round == round else (request,)


def shapes_of(leaves: Params) -> dict[str, tuple[int, ...]]:
    """Of leaves (clients, slots, ...)."""
    return {name: tuple(leaf.shape[2:]) for name, leaf in leaves.items()}


def follow_up(asked: Down, cohort: Cohort, settings: PairwiseMasks, veil: Veil | None = None) -> Contributions:
    """The further answers."""
    answers: dict[str, Callable[[Waiting, Said, bytes, PairwiseMasks, Veil | None], Said]] = {
        SHARES: _shared,
        TALLY: _tallied,
        MASKED: _masked,
        AGREE: _agreed,
        OPEN: _opened,
    }
    if asked.kind.part not in answers:
        raise InvalidInput(f"request {str(asked.kind)!r} is none of secure sums; known: {', '.join(answers)}")
    common = _announced(asked.common) if asked.kind.part == SHARES else decode(asked.common)
    each = asked.each or (b"",) * len(cohort)
    rows, small = {}, set()
    for memory, client, own in zip(cohort.memory, cohort.ids.tolist(), each, strict=True):
        waiting = memory.get(WAITING)
        if not isinstance(waiting, Waiting):
            raise InvalidInput(f"client {client} was asked for {str(asked.kind)!r} before the request; start over")
        try:
            if waiting.whole:
                _require_whole(asked.kind.part, waiting, memory, common)
            rows[client] = answers[asked.kind.part](waiting, common, own, settings, veil)
        except CoterieError as problem:  # what one client cannot or will not answer costs nobody else's answer
            warn(f"client {client} does not answer {str(asked.kind)!r}: {problem}", ClientsDropped)
        if waiting.party.known:
            memory[KNOWN] = dict(waiting.party.known)
        small |= set(waiting.small) if asked.kind.part == MASKED else set()
        if asked.kind.part == OPEN:
            del memory[WAITING]
    if small and veil is not None and veil.smallest is not None:
        few = f"fewer than {veil.smallest.members + veil.smallest.spare} true members"
        warn(f"round {asked.round}: clusters {sorted(small)} have {few} and keep their models", ClusterLeftOut)
    return _joined(rows)


def _require_whole(part: str, waiting: Waiting, memory: Memory, common: Said) -> None:
    """That a party with columns is in sums with the same others always, and with all of them.

    Its records stay, so that the server can have the same distances again: two sums of which one lacks a party would
    be that party's own.
    """
    told = sorted(common[1] if part == SHARES else common)
    known = memory.setdefault(PARTIES, tuple(told)) if part == SHARES else waiting.told().ids
    if tuple(told) != tuple(known):
        raise NotPermitted(f"parties={told} must be {list(known)}: one that is missing could be read when it is back")


def _announced(common: bytes) -> tuple[Roster, dict[int, Advert]]:
    """Who takes part with which keys, as everybody is told; the order on the ring must follow from them."""
    roster, keys = decode(common)
    adverts = {client: Advert.from_bytes(advert) for client, advert in keys.items()}
    require(roster.salt == salt_of(adverts), "order on the ring", roster.salt.hex(), "must follow from the keys")
    return roster, adverts


def _shared(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks, veil: Veil | None) -> bytes:
    if waiting.roster is not None:
        raise NotPermitted(
            f"client {waiting.party.client} has shared its secrets already; a second time would tell more"
        )
    roster, adverts = common
    client, ids = waiting.party.client, adverts.keys()
    placed = tuple(client in members for members in roster.positions)
    require(
        len(ids) >= LEAST and client in ids and ids == set(roster.ids) and roster.neighbours == settings.neighbours,
        "clients that take part",
        sorted(ids),
        f"must be at least {LEAST}, this one among them, each with its keys, and as many neighbours as agreed",
    )
    require(adverts[client] == waiting.party.advert, "keys of this client", "another's", "must be its own")
    if placed != waiting.slots:  # in another cluster as well, the difference of two sums would be this client
        raise NotPermitted(f"client {client} announced clusters {waiting.slots} and is listed in {placed}")
    waiting.roster, waiting.adverts = roster, adverts
    return encode(waiting.party.share(roster, adverts, _numbers(waiting)))


def _numbers(waiting: Waiting) -> list[int]:
    """What is tallied: a one for the true cluster."""
    return [] if waiting.own is None else [int(slot == waiting.own.true) for slot in range(len(waiting.slots))]


def _deliver(waiting: Waiting, sharing: tuple[int, ...], boxes: bytes) -> Roster:
    """What was in the boxes is kept, and from here on those who shared are the round's."""
    party, roster, here = waiting.party, waiting.told(), set(sharing)
    require(
        not waiting.sharing and party.client in here and here <= set(roster.ids) and len(here) >= roster.threshold,
        "clients that shared",
        sorted(here),
        f"must be at least {roster.threshold} of the round's, this one among them: fewer would not hide it",
    )
    waiting.sharing = tuple(sorted(here))
    numbers, opener = len(_numbers(waiting)), party.opener
    for sender, box in decode(boxes).items():
        with suppress(InvalidInput):  # whoever sealed it for somebody else cannot be recovered if it drops out
            party.receive(sender, box, waiting.adverts, roster, numbers, opener)
    return roster.masked_by(here)


def _tallied(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks, veil: Veil | None) -> bytes:
    """A share of the clusters' true sizes, hidden from the server as the sums are."""
    if veil is None or veil.smallest is None or waiting.own is None:
        raise InvalidInput(f"client {waiting.party.client} has no sizes to tally; do both sides use the same defence?")
    announced = waiting.told()
    waiting.roster = _deliver(waiting, tuple(common), own)
    if waiting.party.client not in announced.committee:
        return encode(None)
    hidden = pads(veil.key.of_round(waiting.party.context), len(waiting.slots))
    return encode(waiting.party.tally(waiting.sharing, hidden))


def _masked(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks, veil: Veil | None) -> MaskedBatch:
    if waiting.masked:
        raise NotPermitted(f"client {waiting.party.client} has sent its masked answer already; one a round")
    tallied = veil is not None and veil.smallest is not None
    if not tallied:
        waiting.roster = _deliver(waiting, tuple(common), own)
    party, roster = waiting.party, waiting.told()
    key = None if veil is None else veil.key.of_round(party.context)
    largest = largest_value(settings.grid, len(roster.ids), settings.width)
    cells = _cells(waiting, common, veil, largest) if tallied and veil is not None else waiting.values
    waiting.masked = True
    steps = settings.grid.words(cells, largest, word_bytes(settings.width))
    slots, mine = len(roster.members), roster.slots_of(party.client)
    words = np.broadcast_to(steps, (slots, steps.shape[-1]))
    alone = slots == len(steps)  # then no two clusters are sent the same words

    def packed(slot: int) -> Packed:
        own = steps[slot] if alone else words[slot]
        return pack(party.mask(own, slot, roster, waiting.adverts, key, in_place=alone), settings.width)

    row = tuple(packed(slot) if slot in mine else None for slot in range(slots))
    return MaskedBatch((party.client,), (row,), waiting.shapes, settings.grid, settings.width)


def _cells(waiting: Waiting, padded: Said, veil: Veil, largest: float) -> Tensor:
    """(slots, length): the answer for the true cluster, zeros for decoys; what a cluster was where it is too small.

    An answer that no mask can hide is replaced by what its cluster was: clients of one cluster tend to have such
    answers together, and their silence would say who they are.
    """
    own = waiting.own
    require(bool(waiting.sharing) and own is not None, "sizes of the clusters", None, "must be tallied first")
    assert own is not None
    assert veil.smallest is not None
    sizes = _sizes(waiting, padded, veil)
    waiting.tally = padded
    allowed = [veil.smallest.allows(size) for size in sizes]
    waiting.small = tuple(slot for slot, size in enumerate(sizes) if size and not allowed[slot])
    fits = _fits(waiting, largest)
    cells = torch.zeros(len(sizes), waiting.values.shape[-1], dtype=torch.float64)
    for slot, enough in enumerate(allowed):
        if not enough:
            cells[slot] = own.before[slot]
        elif slot == own.true:
            cells[slot] = waiting.values[0] if fits else own.before[slot]
    return cells


def _fits(waiting: Waiting, largest: float) -> bool:
    worst = float(waiting.values[0].abs().max())
    if worst <= largest:
        return True
    said = f"client {waiting.party.client} has nothing to add: its largest value, {worst:.6g}, may be {largest:.6g}"
    warn(f"{said} at most; lower the learning rate, or take wider words or a larger unit", ClientsDropped)
    return False  # NaN too


def _sizes(waiting: Waiting, padded: Said, veil: Veil) -> list[int]:
    """The true sizes of the clusters, over all who shared: each is in one of them."""
    slots = len(waiting.slots)
    require(shamir.is_share(padded, slots), "tally", type(padded).__name__, f"must be of {slots} clusters")
    found = (padded - pads(veil.key.of_round(waiting.party.context), slots)) % shamir.PRIME
    sizes: list[int] = found.tolist()
    require(
        sum(sizes) == len(waiting.sharing), "tally", sizes, f"must be of the {len(waiting.sharing)} clients that shared"
    )
    return sizes


def _agreed(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks, veil: Veil | None) -> bytes:
    """Its signature under what it was told."""
    require(waiting.masked and not waiting.survivors, "survivors", common, "are asked about once, after masked answers")
    waiting.survivors = tuple(common)
    return encode(sign(waiting.party.identity, waiting.statement()))


def _require_agreement(waiting: Waiting, common: Said, signatures: Said) -> None:
    """That two thirds of its holders were told the same: two answers to two stories would open too much."""
    party, roster = waiting.party, waiting.told()
    require(tuple(common) == waiting.survivors, "survivors", common, f"must be {waiting.survivors}, as it signed")
    right = [
        other
        for other in roster.holders(party.client)
        if other == party.client
        or (other in signatures and signed_by(party.known.get(other, b""), signatures[other], waiting.statement()))
    ]
    if len(right) < roster.needed(party.client):
        raise NotPermitted(f"client {party.client} sees {len(right)} that were told the same; leave this round out")


def _opened(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks, veil: Veil | None) -> bytes:
    roster = waiting.told()
    if settings.signed:
        _require_agreement(waiting, common, decode(own))
    if veil is not None:
        require(waiting.masked, "masked answer", None, "must be sent first; the requests come in order")
        if veil.smallest is not None and (gone := too_many_gone(roster, common, veil.smallest.spare)):
            raise NotPermitted(f"survivors={sorted(common)} leave a sum of too few: {gone}; leave this round out")
    return encode(waiting.party.answer(common, roster, settings.least))


def too_many_gone(roster: Roster, survivors: tuple[int, ...], spare: int) -> str:
    """Which cluster lost more members after the tally than the rule allows for; empty if none did."""
    here = set(survivors)
    for slot, members in enumerate(roster.members):
        gone = len(set(members) - here)
        if gone > spare:
            return f"{gone} members of cluster {slot} stopped answering, more than spare={spare}"
    return ""


def _joined(answers: Mapping[int, Said]) -> Contributions:
    """Of those who answered."""
    ids, rows = torch.tensor(list(answers), dtype=torch.int64), list(answers.values())
    if rows and isinstance(rows[0], MaskedBatch):
        sealed = MaskedBatch.join(rows)
        flags = torch.tensor([[words is not None for words in row] for row in sealed.words])
        return Contributions(ids, {}, torch.ones(len(ids)), flags.float(), {SEALED: sealed})
    return Contributions(ids, {}, torch.ones(len(ids)), torch.ones(len(ids), 1), notes=tuple(rows))
