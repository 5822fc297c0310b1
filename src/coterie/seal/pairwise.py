"""Sums without a shared key: pairwise masks among the members of each cluster (Bonawitz et al., CCS 2017).

Client i sends for each of its clusters, in whole numbers modulo 2^64,

    y_i = x_i + PRG(b_i) + sum over partners j of sign(i, j) PRG(s_ij),

where s_ij is agreed by X25519 and PRG is ChaCha20. The pairwise masks cancel in the sum. Drop-outs are recovered, not
repeated: every client shares its seed b_i and its mask key among all clients of the round (Shamir, two thirds must
answer). For a survivor the others reveal b_i, for a drop-out its mask key, and never both, so that a message that
comes late stays masked. (To repeat the round without the drop-out would let the server subtract two sums when the
late message arrives.)

Whoever colludes with the server knows only its own masks: any two honest members of a cluster still share one that
hides them, as long as masks connect those who are left, which each client checks before it answers. What the server
does learn is the sum itself, in the clear, unlike with CKKS. A cluster with fewer than three members is left out,
since one colluding member could subtract itself and read the other.

All parties follow the protocol here (honest but curious); the server is trusted to relay public keys unchanged.
Keys live for one round. A ``Party`` is one client's state from one exchange to the next.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher as StreamCipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal import shamir
from coterie.seal.cipher import binary
from coterie.wire.codec import register

Words = npt.NDArray[np.uint64]
LEAST = 3  # members of a cluster
KEY = 32  # bytes of a public key
_TRIAL = bytes(range(KEY))  # any private key: to find out whether a public one is of use
_BLOCK = 1 << 15  # words masked at a time, so that they stay in the cache
_ZEROS = bytes(8 * _BLOCK)


@register
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
            tuple(sorted(client for client, inside in zip(ids, column.tolist(), strict=True) if inside))
            for column in flags.T
        )
        return Roster(members, tuple(sorted(ids)), neighbours)

    def __post_init__(self) -> None:
        require(len(set(self.ids)) == len(self.ids), "ids", list(self.ids), "must all be different")
        for slot, members in enumerate(self.members):
            require(
                len(set(members)) == len(members) and set(members) <= set(self.ids),
                f"members of cluster {slot}",
                list(members),
                "must be different, and of those who take part",
            )
        require(
            self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0),
            "neighbours",
            self.neighbours,
            "must be even and at least 2, or None for all pairs",
        )

    def masked_by(self, present: Iterable[int]) -> Roster:
        """Those of the clients that can mask, cluster by cluster; one with fewer than three of them is left out."""
        here = set(present)
        kept = [tuple(client for client in members if client in here) for members in self.members]
        return Roster(tuple(members if len(members) >= LEAST else () for members in kept), self.ids, self.neighbours)

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

    def exposed(self, survivors: Iterable[int]) -> str:
        """What the sums over these survivors would give away; empty if nothing but themselves."""
        here = set(survivors)
        for slot, members in enumerate(self.members):
            left = [client for client in members if client in here]
            if 0 < len(left) < LEAST:
                return f"cluster {slot} has {len(left)} left, fewer than {LEAST}"
            if left and not self._connected(left, slot):
                return f"cluster {slot} falls apart into groups that share no mask"
        return ""

    def _connected(self, left: Sequence[int], slot: int) -> bool:
        here, reached, todo = set(left), {left[0]}, [left[0]]
        while todo:
            fresh = here.intersection(self.partners(todo.pop(), slot)) - reached
            reached |= fresh
            todo += fresh
        return reached == here


@dataclass(frozen=True)
class Advert:
    """A client's two public keys, one for masks and one for the shares it is sent, and the hash of its seed."""

    masks: bytes
    shares: bytes
    seed_hash: bytes  # by which a wrong seed, put together from wrong shares, is noticed

    def to_bytes(self) -> bytes:
        return self.masks + self.shares + self.seed_hash

    @staticmethod
    def from_bytes(data: bytes) -> Advert:
        require(len(data) == 3 * KEY, "bytes of an advert", len(data), f"must be {3 * KEY}")
        found = Advert(data[:KEY], data[KEY : 2 * KEY], data[2 * KEY :])
        try:  # a key of low order would end everybody else's agreement
            for key in (found.masks, found.shares):
                _agree(_TRIAL, key, b"trial")
        except ValueError:
            raise InvalidInput("public keys of an advert=low order agree on nothing; leave this client out") from None
        return found


@register
@dataclass
class Party:
    """One client in one round. Its secrets come from the operating system and die with it."""

    client: int
    mask_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    box_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(shamir.SECRET), repr=False)
    held: dict[int, shamir.Shares] = field(default_factory=dict, repr=False)  # of each client: (seed | mask key, limbs)
    agreed: dict[int, bytes] = field(default_factory=dict, repr=False)  # with each client, for boxes either way
    context: bytes = field(default=b"", repr=False)  # boxes that were sealed for another roster do not open
    answered: tuple[int, ...] | None = None  # for which survivors it has opened

    @property
    def advert(self) -> Advert:
        return Advert(_public(self.mask_key), _public(self.box_key), _hash(self.seed, b"seed"))

    def share(self, roster: Roster, adverts: Mapping[int, Advert]) -> dict[int, bytes]:
        """Shares of this client's seed and mask key, one sealed box for each other client."""
        told = b"".join(client.to_bytes(8, "little") + adverts[client].to_bytes() for client in roster.ids)
        self.context = _hash(told + repr((roster.members, roster.neighbours)).encode(), b"roster")
        shares = shamir.split([self.seed, self.mask_key], len(roster.ids), roster.threshold)
        boxes = {}
        for holder, share in zip(roster.ids, shares, strict=True):
            if holder == self.client:
                self.held[holder] = share
            else:
                plain = share.astype("<u4").tobytes()
                boxes[holder] = self._box(holder, adverts).encrypt(
                    self.client.to_bytes(12, "little"), plain, self.context
                )
        return boxes

    def receive(self, sender: int, box: bytes, adverts: Mapping[int, Advert]) -> None:
        try:
            opened = self._box(sender, adverts).decrypt(sender.to_bytes(12, "little"), box, self.context)
        except (InvalidTag, KeyError):
            raise InvalidInput(
                f"box of client {sender}={len(box)} bytes was not sealed for client {self.client}; ask for it again"
            ) from None
        require(len(opened) == 8 * shamir.LIMBS, "bytes of a share", len(opened), f"must be {8 * shamir.LIMBS}")
        self.held[sender] = np.frombuffer(opened, "<u4").astype(np.int64).reshape(2, shamir.LIMBS)

    def _box(self, other: int, adverts: Mapping[int, Advert]) -> ChaCha20Poly1305:
        """One key for both directions, told apart by the nonce."""
        if other not in self.agreed:
            self.agreed[other] = _agree(self.box_key, adverts[other].shares, b"box")
        return ChaCha20Poly1305(self.agreed[other])

    def mask(self, words: Words, slot: int, roster: Roster, adverts: Mapping[int, Advert]) -> Words:
        """What this client sends for one cluster: uniform to everyone who lacks one of its masks."""
        masked = words.copy()
        _add_stream(masked, self.seed, slot, subtract=False)
        for partner in roster.partners(self.client, slot):
            key = _agree(self.mask_key, adverts[partner].masks, b"mask")
            _add_stream(masked, key, slot, subtract=partner < self.client)
        return masked

    def answer(self, survivors: Iterable[int], roster: Roster, least: int = 0) -> dict[int, shamir.Shares]:
        """The shares that open the sums over these clients. One question a round: a second one would open more.

        ``least``: how many must be in, where each of them brings a share of noise.
        """
        asked = tuple(sorted(set(survivors)))
        if self.answered is not None and self.answered != asked:
            raise NotPermitted(f"survivors={list(asked)} differ from those first asked about; one answer a round")
        require(
            self.client in asked and len(asked) >= max(roster.threshold, least) and set(asked) <= set(roster.ids),
            "survivors",
            list(asked),
            f"must be at least {max(roster.threshold, least)} of the round's clients; repeat it with fresh keys",
        )
        if exposed := roster.exposed(asked):
            raise NotPermitted(f"survivors={list(asked)} would be read: {exposed}; leave this round out")
        self.answered = asked
        # Index 0 is the seed, given for survivors; index 1 the mask key, given for drop-outs. Never both.
        return {client: shares[0 if client in asked else 1] for client, shares in self.held.items()}


def unmask(
    sums: Mapping[int, Words],
    roster: Roster,
    adverts: Mapping[int, Advert],
    answers: Mapping[int, Mapping[int, shamir.Shares]],
    survivors: Iterable[int],
) -> dict[int, Words]:
    """The server's part: the plain sums of each cluster, from the masked sums over the survivors.

    ``answers`` are by holder; only clients that shared their secrets (whom every holder holds) are in the sums.
    """
    here = set(survivors)
    require(
        len(answers) >= roster.threshold,
        "answers",
        len(answers),
        f"must be at least {roster.threshold}; wait for more clients or repeat the round",
    )
    holders = sorted(answers)[: roster.threshold]
    masked = sorted({client for members in roster.members for client in members})
    shares = np.stack([np.stack([answers[holder][client] for client in masked]) for holder in holders])
    opened = dict(zip(masked, shamir.combine([roster.ids.index(holder) for holder in holders], shares), strict=True))
    for client in masked:
        kept, expected = (
            (_hash(opened[client], b"seed"), adverts[client].seed_hash)
            if client in here
            else (_public(opened[client]), adverts[client].masks)
        )
        require(kept == expected, f"secret of client {client}", "another", "came of wrong shares; leave the round out")
    plain = {slot: words.copy() for slot, words in sums.items()}
    for client in masked:
        slots = [slot for slot in roster.slots_of(client) if slot in plain]
        if client in here:
            for slot in slots:
                _add_stream(plain[slot], opened[client], slot, subtract=True)
            continue
        for slot in slots:
            for partner in here.intersection(roster.partners(client, slot)):
                # The partner's mask towards the drop-out has nothing to cancel it: take it away.
                key = _agree(opened[client], adverts[partner].masks, b"mask")
                _add_stream(plain[slot], key, slot, subtract=partner < client)
    return plain


def _hash(data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY, person=b"coterie " + purpose).digest()


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return hashlib.blake2b(shared, digest_size=32, person=b"coterie " + purpose).digest()


def _add_stream(words: Words, key: bytes, slot: int, subtract: bool) -> None:
    """Add (or subtract) the keystream of this key for this cluster, in place, modulo 2^64."""
    stream = StreamCipher(ChaCha20(key, bytes(8) + slot.to_bytes(8, "little")), mode=None).encryptor()
    block = np.empty(min(_BLOCK, len(words)), dtype="<u8")
    change = np.subtract if subtract else np.add
    for start in range(0, len(words), _BLOCK):
        part = words[start : start + _BLOCK]
        stream.update_into(memoryview(_ZEROS)[: 8 * len(part)], block.data.cast("B")[: 8 * len(part)])
        change(part, block[: len(part)], out=part)
