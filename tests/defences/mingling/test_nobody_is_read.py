"""Whatever drops out or lies: with all that passes, late messages and one client's key, no client's vector opens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.defences.mingling.test_faults import LIES, SIGNED, Lying, defence, quiet, run

from coterie.defences.secure_sums import AGREE, MASKED, OPEN, SHARES, TALLY, WAITING
from coterie.flow.client import Answer
from coterie.seal import shamir
from coterie.seal.masked import MaskedBatch
from coterie.seal.pairwise import Advert, Party, context_of
from coterie.seal.roster import Roster
from coterie.seal.streams import add_stream, agree, derive, public, signed, unpack
from coterie.seal.veil import GroupKey, unveil
from coterie.wire.codec import decode
from coterie.wire.messages import TRAIN, Down
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape


@dataclass
class Transcript:
    """All that was said in a round, also what never arrived: it may come late."""

    announced: Roster | None = None
    sharing: tuple[int, ...] = ()
    adverts: dict[int, Advert] = field(default_factory=dict)
    masked: dict[int, MaskedBatch] = field(default_factory=dict)
    opened: dict[int, Mapping[int, shamir.Shares]] = field(default_factory=dict)  # by holder
    parties: dict[int, Party] = field(default_factory=dict)  # for the control alone

    def note(self, asked: Down, answer: Answer) -> None:
        sent, part = answer.up.sent, asked.kind.part
        if asked.kind.name != TRAIN.name:
            return
        if part == SHARES:
            self.announced, keys = decode(asked.common)
            self.adverts = {client: Advert.from_bytes(advert) for client, advert in keys.items()}
        if part == TALLY:
            self.sharing = decode(asked.common)
        if part == MASKED and len(sent):
            batch = sent.sealed[SEALED]
            assert isinstance(batch, MaskedBatch)
            self.masked |= {client: batch.pick([at]) for at, client in enumerate(batch.ids)}
            waiting = zip(answer.ids, answer.memory, strict=True)
            self.parties |= {client: memory[WAITING].party for client, memory in waiting}
        if part == OPEN:
            self.opened |= {client: decode(said) for client, said in zip(sent.ids.tolist(), sent.notes, strict=True)}

    def secrets(self) -> dict[int, bytes]:
        """What holders' shares give: of each client its seed, or its mask key."""
        roster, found = self.announced, {}
        assert roster is not None
        for client in roster.ids:
            said = [one for one in roster.holders(client) if client in self.opened.get(one, {})]
            if len(said) >= roster.needed(client):
                shares = np.stack([self.opened[one][client] for one in said])[:, None]
                found[client] = shamir.combine([roster.number(one) for one in said], shares)[0]
        return found

    def read(self, key: GroupKey, seeds: Mapping[int, bytes], mask_keys: Mapping[int, bytes]) -> list[tuple[int, int]]:
        """The (client, cluster) whose vector opens to numbers that a model could have."""
        if self.announced is None or not self.masked:
            return []
        roster, found = self.announced.masked_by(self.sharing), []
        for client, batch in self.masked.items():
            for slot, packed in enumerate(batch.words[0]):
                if packed is None:
                    continue
                words = unpack(packed, batch.width)
                if client in seeds:
                    add_stream(words, seeds[client], slot, subtract=True)
                for partner in roster.partners(client, slot):
                    if partner in mask_keys:
                        pair = agree(mask_keys[partner], self.adverts[client].masks, b"mask")
                        add_stream(words, pair, slot, subtract=partner > client)
                unveil(words, key.of_round(context_of(self.announced)), slot, [roster.positions[slot][client]])
                if float(np.abs(signed(words, batch.width)).max()) < 2.0**40:
                    found.append((client, slot))
        return found

    def attacked(self, key: GroupKey) -> list[tuple[int, int]]:
        found = self.secrets()
        seeds = {one: secret for one, secret in found.items() if derive(secret, b"seed") == self.adverts[one].seed_hash}
        masks = {one: secret for one, secret in found.items() if public(secret) == self.adverts[one].masks}
        return self.read(key, seeds, masks)


@quiet
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie.part or 'adverts'}, {len(lie.note)} bytes")
def test_a_lie_opens_nobody(lie: Lying) -> None:
    said, mingling = Transcript(), defence()
    run(mingling, tape=Tape([lie.threat]), adversaries=[lie], witness=said.note)
    assert said.attacked(mingling.key) == []


@quiet
@pytest.mark.parametrize("part", ["", SHARES, TALLY, MASKED, AGREE, OPEN])
@pytest.mark.parametrize("gone", [[1], [1, 2, 3], range(6)], ids=["one", "three", "half"])
def test_drop_outs_open_nobody(part: str, gone: Collection[int]) -> None:
    said, mingling = Transcript(), defence(SIGNED)
    run(mingling, lost=lambda asked: gone if asked.kind.part == part else (), witness=said.note)
    assert said.attacked(mingling.key) == []


@quiet
def test_whoever_had_all_keys_would_read_everybody() -> None:
    """So that the attack could succeed: with seeds and mask keys each vector opens, and with either alone none."""
    said, mingling = Transcript(), defence()
    run(mingling, witness=said.note)
    seeds = {client: party.seed for client, party in said.parties.items()}
    masks = {client: party.mask_key for client, party in said.parties.items()}
    assert len(said.read(mingling.key, seeds, masks)) == 12 * 3
    assert said.read(mingling.key, seeds, {}) == said.read(mingling.key, {}, masks) == []
    assert said.read(GroupKey(), seeds, masks) == []
    assert len(said.secrets()) == 12  # and the round did open
