"""Secure sums in the ring: four requests after which the server knows the sums and nothing else (``seal.pairwise``).

1. The request itself. A client computes its answer, keeps it, and sends which clusters it is in and two public keys.
2. ``shares``: everybody is told the keys, and sends a sealed box with shares of its secrets for everybody else.
3. ``masked``: everybody is given its boxes, and sends its masked answer.
4. ``open``: those who are left are told who that is, and send the shares that take the masks off the sums.

A client that stops answering before its boxes arrived is left out. After that it is a drop-out, whose masks the others
take away. If fewer than two thirds are left, or a cluster's survivors would be exposed, the round is left out.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError, InvalidInput, NotPermitted, require
from coterie.flow.ask import Ask, Replies, State, Sums
from coterie.flow.cohort import FOR_ONE_TURN, Cohort
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, Params, flatten
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.seal import shamir
from coterie.seal.cipher import Grid, add_intact, binary
from coterie.seal.masked import MaskedBatch, MaskedSum, Opening, largest_value
from coterie.seal.pairwise import LEAST, Advert, Party, Roster
from coterie.wire.codec import decode, encode, register
from coterie.wire.messages import Contributions, Down
from coterie.wire.sealed import SEALED

WAITING = f"{FOR_ONE_TURN}secure sums"  # the name under which a client remembers where it is
Said = Any  # what a note holds once it is decoded: checked where it is used
LAST = "secure sums: the last request"  # and what it has answered, so that it does not do so again
WEIGHT = "weight of the slot"  # a leaf of its own in what is masked

SHARES, MASKED, OPEN = "shares", "masked", "open"


class ClientsDropped(UserWarning):
    """Some clients' answers could not be used; the round went on without them."""


class RoundLeftOut(UserWarning):
    """Too few clients were left to open the sums; everything stayed as it was."""


@dataclass(frozen=True)
class PairwiseMasks:
    """Settings of secure sums: with how many others a member shares masks (None: with all), and the grid.

    ``least`` clients must be in for sums to open, or two thirds, whichever is more: each may bring a share of noise.
    """

    neighbours: int | None = None
    grid: Grid = field(default_factory=Grid)
    least: int = 0


# -- the clients' part ---------------------------------------------------------------------------------------------


@register
@dataclass
class Waiting:
    """A client between two requests: its secrets, and the answer that it has not sent yet."""

    party: Party
    slots: tuple[bool, ...]  # in which it announced itself
    values: Tensor = field(repr=False)  # (slots | 1, length)
    shapes: Mapping[str, tuple[int, ...]]
    roster: Roster | None = None
    adverts: Mapping[int, bytes] = field(default_factory=dict)
    masked: bool = False  # whether its answer has left


def advertise(sent: Contributions, values: Tensor, membership: Tensor, leaves: Params, cohort: Cohort) -> Contributions:
    """The first answer: the clusters (clients, slots) of each client, and its public keys.

    ``values`` (clients, slots | 1, length) wait with the clients; ``leaves`` (clients, 1, ...) say what is in them.
    """
    shapes = {name: tuple(leaf.shape[2:]) for name, leaf in leaves.items()}
    request, notes = f"{cohort.turn.round} {cohort.turn.kind}", []
    joined = (membership != 0).tolist()
    for memory, client, own, slots in zip(cohort.memory, sent.ids.tolist(), values.double(), joined, strict=True):
        if memory.get(LAST) == request:  # the same answer in two sums would be their difference
            raise NotPermitted(
                f"client {client} was asked {request!r} before; it answers once, in the next round again"
            )
        waiting = Waiting(Party(client), tuple(slots), own, shapes)
        memory[WAITING], memory[LAST] = waiting, request
        notes.append(waiting.party.advert.to_bytes())
    return Contributions(sent.ids, {}, torch.ones(len(sent)), membership.float(), notes=tuple(notes))


def follow_up(asked: Down, cohort: Cohort, settings: PairwiseMasks) -> Contributions:
    """The second, third and fourth answer."""
    answers = {SHARES: _shared, MASKED: _masked, OPEN: _opened}
    if asked.kind.part not in answers:
        raise InvalidInput(f"request {str(asked.kind)!r} is none of secure sums; known: {', '.join(answers)}")
    common = decode(asked.common)
    each = asked.each or (b"",) * len(cohort)
    rows = {}
    for memory, client, own in zip(cohort.memory, cohort.ids.tolist(), each, strict=True):
        waiting = memory.get(WAITING)
        if not isinstance(waiting, Waiting):
            raise InvalidInput(f"client {client} was asked for {str(asked.kind)!r} before the request; start over")
        try:
            rows[client] = answers[asked.kind.part](waiting, common, own, settings)
        except CoterieError as problem:  # what one client cannot or will not answer costs nobody else's answer
            _warn(f"client {client} does not answer {str(asked.kind)!r}: {problem}", ClientsDropped)
        if asked.kind.part == OPEN:
            del memory[WAITING]
    return _joined(rows)


def _shared(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks) -> bytes:
    if waiting.roster is not None:
        raise NotPermitted(
            f"client {waiting.party.client} has shared its secrets already; a second time would tell more"
        )
    roster, adverts = common
    client, ids = waiting.party.client, set(roster.ids)
    placed = tuple(client in members for members in roster.members)
    require(
        len(ids) >= LEAST and client in ids and set(adverts) == ids,
        "clients that take part",
        sorted(ids),
        f"must be at least {LEAST}, this one among them, each with its keys",
    )
    if placed != waiting.slots:  # in another cluster as well, the difference of two sums would be this client
        raise NotPermitted(f"client {client} announced clusters {waiting.slots} and is listed in {placed}")
    waiting.roster, waiting.adverts = roster, adverts
    return encode(waiting.party.share(roster, _adverts(adverts)))


def _masked(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks) -> MaskedBatch:
    if waiting.masked:
        raise NotPermitted(f"client {waiting.party.client} has sent its masked answer already; one a round")
    adverts, party, roster = _adverts(waiting.adverts), waiting.party, _roster(waiting)
    sharing = set(common)
    require(
        party.client in sharing and sharing <= set(roster.ids) and len(sharing) >= roster.threshold,
        "clients that shared",
        sorted(sharing),
        f"must be at least {roster.threshold} of the round's, this one among them: fewer would not hide it",
    )
    waiting.roster, waiting.masked = roster.masked_by(sharing), True
    for sender, box in decode(own).items():
        with suppress(InvalidInput):  # whoever sealed it for somebody else cannot be recovered if it drops out
            party.receive(sender, box, adverts)
    slots = len(waiting.roster.members)
    steps = settings.grid.round(waiting.values, largest_value(settings.grid, len(waiting.roster.ids)))
    words = np.broadcast_to(steps.astype(np.int64).view(np.uint64), (slots, steps.shape[-1]))
    mine = waiting.roster.slots_of(party.client)
    row = tuple(
        party.mask(words[slot], slot, waiting.roster, adverts) if slot in mine else None for slot in range(slots)
    )
    return MaskedBatch((party.client,), (row,), waiting.shapes, settings.grid)


def _opened(waiting: Waiting, common: Said, own: bytes, settings: PairwiseMasks) -> bytes:
    return encode(waiting.party.answer(common, _roster(waiting), settings.least))


def _roster(waiting: Waiting) -> Roster:
    if waiting.roster is None:
        raise InvalidInput(f"client {waiting.party.client} was not told who takes part; the requests come in order")
    return waiting.roster


def _joined(answers: Mapping[int, Said]) -> Contributions:
    """Of those who answered."""
    ids, rows = torch.tensor(list(answers), dtype=torch.int64), list(answers.values())
    if rows and isinstance(rows[0], MaskedBatch):
        sealed = MaskedBatch.join(rows)
        flags = torch.tensor([[words is not None for words in row] for row in sealed.words])
        return Contributions(ids, {}, torch.ones(len(ids)), flags.float(), {SEALED: sealed})
    return Contributions(ids, {}, torch.ones(len(ids)), torch.ones(len(ids), 1), notes=tuple(rows))


def _adverts(adverts: Mapping[int, bytes]) -> dict[int, Advert]:
    return {client: Advert.from_bytes(advert) for client, advert in adverts.items()}


# -- the server's part ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenedSums:
    """What the server knows after the four requests."""

    values: Tensor  # (slots, length) float64; zeros where a cluster was left out
    counts: Tensor  # (slots,) how many clients are in each sum
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def leaves(self) -> dict[str, Tensor]:
        """(slots, ...)"""
        return Layout({name: torch.Size(shape) for name, shape in self.shapes.items()}).unflatten(self.values)


def secure_sums(
    ask: Ask[State], turn: Turn, settings: PairwiseMasks
) -> Generator[Ask[State], Replies, OpenedSums | None]:
    """The conversation; None if the round was left out."""
    dropped: dict[int, str] = {}
    adverts, membership = _announced((yield ask), dropped)
    if not adverts:
        _left_out(turn, "nobody announced itself", dropped)
        return None
    ids = sorted(adverts)
    roster = Roster.of(ids, torch.stack([membership[client] for client in ids]), settings.neighbours)
    common = encode((roster, {client: adverts[client].to_bytes() for client in ids}))
    boxes = _notes((yield ask.sub(SHARES, torch.tensor(ids), common)), dropped, lambda box: isinstance(box, bytes))
    for client in [client for client, sealed in boxes.items() if sealed.keys() != set(ids) - {client}]:
        dropped[client] = "it has no box for somebody, or one for a stranger"
        del boxes[client]
    sharing = sorted(boxes)
    if len(sharing) < roster.threshold:
        _left_out(turn, f"{len(sharing)} of {len(ids)} shared their secrets", dropped)
        return None
    roster = roster.masked_by(sharing)
    if not any(roster.members):
        _left_out(turn, f"no cluster has {LEAST} members", dropped)
        return None
    each = {
        holder: encode({sender: boxes[sender][holder] for sender in sharing if holder in boxes[sender]})
        for holder in sharing
    }
    replies = yield ask.sub(MASKED, torch.tensor(sharing), encode(tuple(sharing)), each)
    total = _added(replies, roster, dropped)
    needed = max(roster.threshold, settings.least)
    if total is None or len(total.ids) < needed or roster.exposed(total.ids):
        _left_out(turn, "too few masked answers came in", dropped)
        return None
    survivors = sorted(total.ids)
    shares = _notes((yield ask.sub(OPEN, torch.tensor(survivors), encode(tuple(survivors)))), dropped, shamir.is_share)
    masked = {client for members in roster.members for client in members}
    complete = {holder: found for holder, found in shares.items() if masked <= found.keys()}
    if len(complete) < roster.threshold:
        _left_out(turn, f"{len(complete)} of {len(survivors)} helped to open the sums", dropped)
        return None
    if dropped:
        _warn(f"round {turn.round}, {turn.kind}: dropped {listed(dropped)}", ClientsDropped)
    counts = torch.tensor([len(total.ids.intersection(members)) for members in roster.members])
    try:
        return OpenedSums(total.open(Opening(roster, adverts, complete)), counts, total.shapes)
    except InvalidInput as problem:  # somebody's shares were wrong
        _left_out(turn, str(problem), dropped)
        return None


def _announced(
    replies: Iterable[Contributions], dropped: dict[int, str]
) -> tuple[dict[int, Advert], dict[int, Tensor]]:
    """Who is here with which keys, and in which clusters."""
    adverts: dict[int, Advert] = {}
    membership: dict[int, Tensor] = {}
    for part in replies:
        if len(part.notes) != len(part):
            dropped |= dict.fromkeys(part.ids.tolist(), "it announced no keys")
            continue
        for client, note, row in zip(part.ids.tolist(), part.notes, part.membership, strict=True):
            try:
                binary(row.unsqueeze(0), [client])
                adverts[client], membership[client] = Advert.from_bytes(note), row
            except InvalidInput as problem:
                dropped[client] = str(problem)
    usual = Counter(len(row) for row in membership.values()).most_common(1)
    for client in [client for client, row in membership.items() if len(row) != usual[0][0]]:
        dropped[client] = f"it announced itself for {len(membership.pop(client))} clusters, unlike most"
        del adverts[client]
    return adverts, membership


def _notes(
    replies: Iterable[Contributions], dropped: dict[int, str], right: Callable[[Said], bool]
) -> dict[int, dict[int, Said]]:
    """What each client noted: by client, what it says of each other client, if all of that is of the right kind."""
    found: dict[int, dict[int, Said]] = {}
    for part in replies:
        if len(part.notes) != len(part):
            dropped |= dict.fromkeys(part.ids.tolist(), "it noted nothing")
            continue
        for client, note in zip(part.ids.tolist(), part.notes, strict=True):
            try:
                said = decode(note)
                fits = isinstance(said, dict) and all(isinstance(key, int) and right(one) for key, one in said.items())
                require(fits, "note", type(said).__name__, "must say of each client what was asked for")
                found[client] = said
            except CoterieError as problem:
                dropped[client] = str(problem)
    return found


def _added(replies: Iterable[Contributions], roster: Roster, dropped: dict[int, str]) -> MaskedSum | None:
    total: MaskedSum | None = None
    for part in replies:
        batch = part.sealed.get(SEALED)
        own = isinstance(batch, MaskedBatch) and list(batch.ids) == part.ids.tolist()
        if not isinstance(batch, MaskedBatch) or not own or not set(batch.ids) <= set(roster.ids):
            dropped |= dict.fromkeys(part.ids.tolist(), "its answer is not masked, or not its own")
            continue
        expected = torch.tensor([[client in members for members in roster.members] for client in batch.ids])
        try:
            found, why = add_intact(batch, expected)
            assert isinstance(found, MaskedSum)
            total = found if total is None else total + found
            dropped |= why
        except (InvalidInput, AttributeError, TypeError) as problem:  # words that are none
            dropped |= dict.fromkeys(batch.ids, str(problem))
    return total


def _left_out(turn: Turn, why: str, dropped: Mapping[int, str]) -> None:
    reasons = f" ({listed(dropped)})" if dropped else ""
    _warn(f"round {turn.round}, {turn.kind}: {why}{reasons}; the round was left out", RoundLeftOut)


def _warn(text: str, category: type[Warning]) -> None:
    warnings.warn(text, category, stacklevel=3)


def listed(dropped: Mapping[int, str]) -> str:
    return "; ".join(f"client {client}: {why}" for client, why in sorted(dropped.items()))


# -- as a defence of its own ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskingClient(ClientGuard):
    settings: PairwiseMasks

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        """Everybody is in every slot, with zeros where it adds nothing: which slot a client chose is masked too."""
        if not sent.values:  # an answer that says nothing has nothing to hide
            return sent
        slots = sent.membership.shape[1]
        shares = (sent.membership * sent.weights.unsqueeze(1)).double()  # (clients, slots)
        values = flatten(sent.values, leading=2).double() * shares.unsqueeze(2)
        leaves = {name: leaf[:, :1] for name, leaf in sent.values.items()} | {WEIGHT: torch.zeros(len(sent), 1, 1)}
        everybody = torch.ones(len(sent), slots)
        return advertise(sent, torch.cat([values, shares.unsqueeze(2)], 2), everybody, leaves, cohort)

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        return follow_up(asked, cohort, self.settings)


@dataclass(frozen=True)
class MaskingServer(ServerGuard):
    settings: PairwiseMasks

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        opened = yield from secure_sums(ask, turn, self.settings)
        if opened is None:
            return Sums.nothing()
        leaves = opened.leaves
        weights = leaves.pop(WEIGHT)[:, 0]
        return Sums(leaves, weights, opened.counts)


@dataclass(frozen=True)
class SecureSums(Defence):
    """The server learns the sums over all clients of a round and nothing else of any of them; no noise is added.

    Sums of few clients still say much, and what sums over many rounds say of one client is not hidden. Values are
    rounded to a grid of 2^-24.
    """

    masks: PairwiseMasks = field(default_factory=PairwiseMasks)

    @property
    def seals(self) -> bool:
        return True

    @property
    def client(self) -> ClientGuard:
        return MaskingClient(self.masks)

    @property
    def server(self) -> ServerGuard:
        return MaskingServer(self.masks)

    def fits(self, protocol: AnyProtocol) -> str:
        return f"the server needs {protocol.looks}, and sees sums alone" if protocol.looks else ""

    def guarantee(self, run: RunFacts) -> Guarantee:
        why = "answers are hidden in sums, not by noise, so there is no epsilon"
        return Guarantee.none(why, Level.CLIENT, Trust.SECURE_SUMS)
