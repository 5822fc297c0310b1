"""Sums without a shared key: pairwise masks among the members of each cluster (Bonawitz et al., CCS 2017).

Client i sends for each of its clusters, in whole numbers modulo 2^64,

    y_i = x_i + PRG(b_i) + sum over partners j of sign(i, j) PRG(s_ij),

where s_ij is agreed by X25519 and PRG is ChaCha20. The pairwise masks cancel in the sum. Drop-outs are recovered, not
repeated: every client shares its seed b_i and its mask key among all clients of the round (Shamir, two thirds must
answer). For a survivor the others reveal b_i, for a drop-out its mask key, and never both, so that a message that
comes late stays masked. (To repeat the round without the drop-out would let the server subtract two sums when the
late message arrives.)

Whoever colludes with the server knows only its own masks: any two honest members of a cluster still share one that
hides them. What the server does learn is the sum itself, in the clear, unlike with CKKS. A cluster with fewer than
three members is refused, since one colluding member could subtract itself and read the other.

All parties follow the protocol here (honest but curious); the server is trusted to relay public keys unchanged.
Keys live for one round.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher as StreamCipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal import shamir as secret_sharing
from coterie.seal.cipher import binary

Words = npt.NDArray[np.uint64]
LEAST = 3  # members of a cluster
_BLOCK = 1 << 15  # words masked at a time, so that they stay in the cache
_ZEROS = bytes(8 * _BLOCK)


@dataclass(frozen=True)
class Roster:
    """Who takes part in the round, and who is in which mingled cluster: public."""

    members: tuple[tuple[int, ...], ...]  # (slots,) clients, in order
    ids: tuple[int, ...]
    neighbours: int | None = None
    """Partners of a member in one cluster: all others, or so many on a ring. On the ring any ``neighbours - 1``
    colluders and drop-outs together leave the others connected, and masking costs that much less."""

    @staticmethod
    def of(ids: Sequence[int], membership: Tensor, neighbours: int | None = None) -> Roster:
        flags = binary(membership, ids)
        members = tuple(
            tuple(sorted(client for client, inside in zip(ids, column.tolist()) if inside)) for column in flags.T
        )
        return Roster(members, tuple(sorted(ids)), neighbours)

    def __post_init__(self) -> None:
        require(len(set(self.ids)) == len(self.ids), "ids", list(self.ids), "must all be different")
        require(
            self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0),
            "neighbours",
            self.neighbours,
            "must be even and at least 2, or None for all pairs",
        )
        self.require_enough(self.ids)

    def require_enough(self, present: Iterable[int]) -> None:
        here = set(present)
        for slot, members in enumerate(self.members):
            count = len(here.intersection(members))
            require(
                count == 0 or count >= LEAST,
                f"members of cluster {slot}",
                count,
                f"must be at least {LEAST}, or one colluding member reads the other; mingle more or skip the cluster",
            )

    @property
    def threshold(self) -> int:
        """How many must answer for the sums to open: more than two thirds."""
        return 2 * len(self.ids) // 3 + 1

    def slots_of(self, client: int) -> list[int]:
        return [slot for slot, members in enumerate(self.members) if client in members]

    def partners(self, client: int, slot: int) -> list[int]:
        members = self.members[slot]
        at, count = members.index(client), len(members)
        if self.neighbours is None or self.neighbours >= count - 1:
            return [other for other in members if other != client]
        reach = self.neighbours // 2
        return [members[(at + step) % count] for step in range(-reach, reach + 1) if step != 0]


@dataclass(frozen=True)
class Advert:
    """A client's two public keys: one for masks, one for the shares it is sent."""

    masks: bytes
    shares: bytes


@dataclass(frozen=True)
class Answer:
    """A survivor's shares: of the seeds of survivors and the mask keys of drop-outs."""

    holder: int
    shares: Mapping[int, secret_sharing.Shares] = field(repr=False)


class Party:
    """One client in one round. Its secrets come from the operating system and die with it."""

    def __init__(self, client: int, roster: Roster) -> None:
        self.client, self.roster = client, roster
        self._masks, self._boxes = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(secret_sharing.SECRET)
        self._held: dict[int, secret_sharing.Shares] = {}  # of each client: (seed | mask key, limbs)
        self._agreed: dict[int, bytes] = {}  # with each client: one key for both directions, told apart by the nonce
        self._answered: tuple[frozenset[int], Answer] | None = None
        self.advert = Advert(self._masks.public_key().public_bytes_raw(), self._boxes.public_key().public_bytes_raw())

    def share(self, adverts: Mapping[int, Advert]) -> dict[int, bytes]:
        """Shares of this client's seed and mask key, one sealed box for each other client."""
        both = [self._seed, self._masks.private_bytes_raw()]
        shares = secret_sharing.split(both, len(self.roster.ids), self.roster.threshold)
        boxes = {}
        for holder, share in zip(self.roster.ids, shares):
            if holder == self.client:
                self._held[holder] = share
            else:
                boxes[holder] = self._box(holder, adverts).encrypt(
                    self.client.to_bytes(12, "little"), share.astype("<u4").tobytes(), None
                )
        return boxes

    def receive(self, sender: int, box: bytes, adverts: Mapping[int, Advert]) -> None:
        try:
            opened = self._box(sender, adverts).decrypt(sender.to_bytes(12, "little"), box, None)
        except InvalidTag:
            raise InvalidInput(
                f"box of client {sender}={len(box)} bytes was not sealed for client {self.client}; ask for it again"
            ) from None
        self._held[sender] = np.frombuffer(opened, "<u4").astype(np.int64).reshape(2, secret_sharing.LIMBS)

    def _box(self, other: int, adverts: Mapping[int, Advert]) -> ChaCha20Poly1305:
        if other not in self._agreed:
            self._agreed[other] = _agree(self._boxes, adverts[other].shares, b"box")
        return ChaCha20Poly1305(self._agreed[other])

    def mask(self, words: Words, slot: int, adverts: Mapping[int, Advert]) -> Words:
        """What this client sends for one cluster: uniform to everyone who lacks one of its masks."""
        masked = words.copy()
        _add_stream(masked, self._seed, slot, subtract=False)
        for partner in self.roster.partners(self.client, slot):
            key = _agree(self._masks, adverts[partner].masks, b"mask")
            _add_stream(masked, key, slot, subtract=partner < self.client)
        return masked

    def answer(self, survivors: Iterable[int]) -> Answer:
        """The shares that open the sums over these clients. One question a round: a second one would open more."""
        asked = frozenset(survivors)
        if self._answered is not None and self._answered[0] != asked:
            raise NotPermitted(f"survivors={sorted(asked)} differ from those first asked about; one answer a round")
        require(
            self.client in asked and len(asked) >= self.roster.threshold and asked <= set(self.roster.ids),
            "survivors",
            sorted(asked),
            f"must be at least {self.roster.threshold} of the round's clients; repeat the round with fresh keys",
        )
        self.roster.require_enough(asked)
        # Index 0 is the seed, given for survivors; index 1 the mask key, given for drop-outs. Never both.
        shares = {client: held[0 if client in asked else 1] for client, held in self._held.items()}
        self._answered = (asked, Answer(self.client, shares))
        return self._answered[1]


def unmask(
    sums: Mapping[int, Words],
    roster: Roster,
    adverts: Mapping[int, Advert],
    answers: Sequence[Answer],
    survivors: Iterable[int],
) -> dict[int, Words]:
    """The server's part: the plain sums of each cluster, from the masked sums over the survivors."""
    here = sorted(set(survivors))
    require(
        len(answers) >= roster.threshold,
        "answers",
        len(answers),
        f"must be at least {roster.threshold}; wait for more clients or repeat the round",
    )
    used = sorted(answers, key=lambda answer: answer.holder)[: roster.threshold]
    places = [roster.ids.index(answer.holder) for answer in used]
    shares = np.stack([np.stack([answer.shares[client] for client in roster.ids]) for answer in used])
    opened = dict(zip(roster.ids, secret_sharing.combine(places, shares)))
    plain = {slot: words.copy() for slot, words in sums.items()}
    for client in roster.ids:
        slots = [slot for slot in roster.slots_of(client) if slot in plain]
        if client in here:
            for slot in slots:
                _add_stream(plain[slot], opened[client], slot, subtract=True)
            continue
        private = X25519PrivateKey.from_private_bytes(opened[client])
        for slot in slots:
            for partner in set(roster.partners(client, slot)).intersection(here):
                # The partner's mask towards the drop-out has nothing to cancel it: take it away.
                key = _agree(private, adverts[partner].masks, b"mask")
                _add_stream(plain[slot], key, slot, subtract=partner < client)
    return plain


def _agree(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    return hashlib.blake2b(shared, digest_size=32, person=b"coterie " + purpose).digest()


def _add_stream(words: Words, key: bytes, slot: int, subtract: bool) -> None:
    """Add (or subtract) the keystream of this key for this cluster, in place, modulo 2^64."""
    stream = StreamCipher(ChaCha20(key, bytes(8) + slot.to_bytes(8, "little")), mode=None).encryptor()
    block = np.empty(min(_BLOCK, len(words)), dtype="<u8")
    change: Any = np.subtract if subtract else np.add
    for start in range(0, len(words), _BLOCK):
        part = words[start : start + _BLOCK]
        stream.update_into(memoryview(_ZEROS)[: 8 * len(part)], block.data.cast("B")[: 8 * len(part)])
        change(part, block[: len(part)], out=part)
