"""The server's part of secure sums: it carries boxes it cannot open, adds, and takes off the masks of sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.defences.secure_sums.client import too_many_gone
from coterie.defences.secure_sums.settings import (
    AGREE,
    MASKED,
    OPEN,
    SHARES,
    TALLY,
    ClientsDropped,
    PairwiseMasks,
    RoundLeftOut,
    Smallest,
    listed,
    warn,
)
from coterie.errors import CoterieError, InvalidInput, require
from coterie.flow.ask import Ask, Replies, State
from coterie.flow.turn import Turn
from coterie.learn.params import Layout
from coterie.seal import shamir
from coterie.seal.cipher import ByForm, add_intact, binary
from coterie.seal.masked import MaskedBatch, MaskedSum, Opening
from coterie.seal.pairwise import Advert, context_of, salt_of
from coterie.seal.roster import LEAST, Roster, two_thirds
from coterie.seal.streams import Words, pack
from coterie.seal.veil import HiddenSlot, HiddenSum
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions
from coterie.wire.sealed import SEALED

Said = Any  # what a note holds once it is decoded: checked where it is used


@dataclass(frozen=True)
class OpenedSums:
    """What the server knows after the requests."""

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
    """Sums that the server reads; None if the round was left out."""
    done = yield from _conversation(ask, turn, settings, None)
    return None if done is None else OpenedSums(done.total.plain(done.words), done.counts, done.total.shapes)


def hidden_sums(
    ask: Ask[State], turn: Turn, settings: PairwiseMasks, smallest: Smallest | None
) -> Generator[Ask[State], Replies, tuple[HiddenSum, Tensor] | None]:
    """Sums that only clients can open, and how many clients announced themselves for each; None if left out.

    ``smallest`` is None where true sizes are not tallied.
    """
    done = yield from _conversation(ask, turn, settings, smallest)
    if done is None:
        return None
    total, context = done.total, context_of(done.announced)
    sums: list[HiddenSlot | None] = [None] * total.slots
    for slot, words in done.words.items():
        places = tuple(at for client, at in done.roster.positions[slot].items() if client in total.ids)
        size = 0 if smallest is None else int(done.tally[slot])
        sums[slot] = HiddenSlot(pack(words, total.width), slot, context, places, size)
    return HiddenSum(tuple(sums), total.shapes, total.grid, total.width, context), done.counts


@dataclass(frozen=True)
class _Done:
    """A conversation that came to its end."""

    total: MaskedSum
    words: Mapping[int, Words]  # the sums without their masks
    roster: Roster  # of those who masked
    announced: Roster
    tally: shamir.Shares  # of the clusters' true sizes, hidden; empty where there was none

    @property
    def counts(self) -> Tensor:
        return torch.tensor([len(self.total.ids.intersection(members)) for members in self.roster.members])


class _Failed(Exception):
    """Why the round is left out."""


def _conversation(
    ask: Ask[State], turn: Turn, settings: PairwiseMasks, smallest: Smallest | None
) -> Generator[Ask[State], Replies, _Done | None]:
    dropped: dict[int, str] = {}
    try:
        done = yield from _requests(ask, settings, smallest, dropped)
    except (_Failed, InvalidInput) as problem:
        reasons = f" ({listed(dropped)})" if dropped else ""
        warn(f"round {turn.round}, {turn.kind}: {problem}{reasons}; the round was left out", RoundLeftOut)
        return None
    if dropped:
        warn(f"round {turn.round}, {turn.kind}: dropped {listed(dropped)}", ClientsDropped)
    return done


def _requests(
    ask: Ask[State], settings: PairwiseMasks, smallest: Smallest | None, dropped: dict[int, str]
) -> Generator[Ask[State], Replies, _Done]:
    adverts, membership = _announced((yield ask), dropped)
    _require(bool(adverts), "nobody announced itself")
    ids = sorted(adverts)
    _require_whole(ask, ids, dropped)
    stacked = torch.stack([membership[client] for client in ids])
    announced = Roster.of(ids, stacked, settings.neighbours, salt_of(adverts))
    common = encode((announced, {client: adverts[client].to_bytes() for client in ids}))
    boxes = _notes((yield ask.sub(SHARES, torch.tensor(ids), common)), dropped, lambda box: isinstance(box, bytes))
    _drop_incomplete(boxes, announced, smallest is not None, dropped)
    sharing = sorted(boxes)
    _require_whole(ask, sharing, dropped)
    _require(len(sharing) >= announced.threshold, f"{len(sharing)} of {len(ids)} shared their secrets")
    roster = announced.masked_by(sharing)
    _require(any(roster.members), f"no cluster has {LEAST} members")
    each = {
        holder: encode({sender: boxes[sender][holder] for sender in sharing if holder in boxes[sender]})
        for holder in sharing
    }
    here, told, tally = torch.tensor(sharing), encode(tuple(sharing)), np.empty(0, dtype=np.int64)
    if smallest is None:
        replies = yield ask.sub(MASKED, here, told, each)
    else:
        tally = _tally((yield ask.sub(TALLY, here, told, each)), announced, stacked.shape[1], dropped)
        replies = yield ask.sub(MASKED, here, encode(tally))
    total = _added(replies, roster, dropped)
    needed = max(announced.threshold, settings.least)
    if total is None or len(total.ids) < needed or roster.exposed(total.ids):
        raise _Failed("too few masked answers came in")
    survivors = tuple(sorted(total.ids))
    _require_whole(ask, survivors, dropped)
    gone = "" if smallest is None else too_many_gone(roster, survivors, smallest.spare)
    _require(not gone, gone)
    left = torch.tensor(survivors)
    agreed: dict[int, bytes] = {}
    if settings.signed:
        signatures = _signatures((yield ask.sub(AGREE, left, encode(survivors))), dropped)
        agreed = {
            client: encode({other: signatures[other] for other in roster.holders(client) if other in signatures})
            for client in survivors
        }
    shares = _notes((yield ask.sub(OPEN, left, encode(survivors), agreed)), dropped, shamir.is_share)
    _require(len(shares) >= announced.threshold, f"{len(shares)} of {len(survivors)} helped to open the sums")
    return _Done(total, total.unmasked(Opening(roster, adverts, shares)), roster, announced, tally)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Failed(otherwise)


def _require_whole(ask: Ask[State], here: Iterable[int], dropped: Mapping[int, str]) -> None:
    """Where all must be in the sum, one without somebody is not opened: when it is back, the difference is its own."""
    missing = sorted(set(ask.clients.tolist()) - set(here)) if ask.whole else []
    silent = [client for client in missing if client not in dropped]
    _require(not missing, f"parties {missing} are missing" + (f", {silent} without a word" if silent else ""))


def _drop_incomplete(
    boxes: dict[int, dict[int, bytes]], roster: Roster, tallied: bool, dropped: dict[int, str]
) -> None:
    committee = set(roster.committee) if tallied else set()
    for client in list(boxes):
        if boxes[client].keys() != committee.union(roster.holders(client)) - {client}:
            dropped[client] = "it has no box for somebody, or one for a stranger"
            del boxes[client]


def _signatures(replies: Iterable[Contributions], dropped: dict[int, str]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for part in replies:
        for client, note in zip(part.ids.tolist(), part.notes, strict=False):
            try:
                said = decode(note)
                require(isinstance(said, bytes), "signature", type(said).__name__, "must be bytes")
                found[client] = said
            except CoterieError as problem:
                dropped[client] = str(problem)
    return found


def _tally(replies: Iterable[Contributions], roster: Roster, slots: int, dropped: dict[int, str]) -> shamir.Shares:
    """The clusters' true sizes, hidden from the server; any shares that do not fit together end the round."""
    committee, found = set(roster.committee), {}
    for part in replies:
        if len(part.notes) != len(part):
            dropped |= dict.fromkeys(part.ids.tolist(), "it noted nothing")
            continue
        for client, note in zip(part.ids.tolist(), part.notes, strict=True):
            try:
                said = decode(note)
                if client in committee:
                    require(shamir.is_share(said, slots), "share of the sizes", type(said).__name__, "is none")
                    found[client] = said
            except CoterieError as problem:
                dropped[client] = str(problem)
    needed = two_thirds(len(committee))
    _require(len(found) >= needed, f"{len(found)} of {len(committee)} tallied the sizes of the clusters")
    holders = sorted(found)
    numbers = [roster.number(holder) for holder in holders]
    first, last = (
        shamir.combine_numbers(numbers[part], np.stack([found[holder] for holder in holders[part]]))
        for part in (slice(None, needed), slice(-needed, None))
    )
    _require(bool((first == last).all()), "the shares of the clusters' sizes do not fit together")
    return first


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
                adverts[client], membership[client] = Advert.from_bytes(note).checked(), row
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
    sums = ByForm()
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
            form = f"{dict(sorted(found.shapes.items()))} in words of {found.width} bytes"
            sums.add(form, found, sorted(found.ids))
            dropped |= why
        except (InvalidInput, AttributeError, TypeError) as problem:  # words that are none
            dropped |= dict.fromkeys(batch.ids, str(problem))
    total = sums.most(dropped)[0]
    assert total is None or isinstance(total, MaskedSum)
    return total
