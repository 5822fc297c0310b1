"""Sums without a key that opens single answers: pairwise masks within each cluster (Bonawitz et al., CCS 2017).

Client i sends for each of its clusters, in whole numbers modulo 2^64,

    y_i = x_i + PRG(b_i) + sum over partners j of sign(i, j) PRG(s_ij),

where s_ij is agreed by X25519 and PRG is AES-256 in counter mode. The pairwise masks cancel in the sum. Drop-outs are
recovered, not repeated: every client shares its seed b_i and its mask key among its holders (Shamir, two thirds of them
must answer). For a survivor the others reveal b_i, for a drop-out its mask key, and never both, so that a message that
comes late stays masked. (To repeat the round without the drop-out would let the server subtract two sums when the late
message arrives.)

Whoever colludes with the server knows only its own masks: any two honest members of a cluster still share one that
hides them, as long as masks connect those who are left, which each client checks before it answers. Without a veil
(``veil``) the server reads the sums. A cluster with fewer than three members is left out, since one colluding member
could subtract itself and read the other.

All parties follow the protocol here (honest but curious). Where clients sign (``signing``) the server cannot put keys
of its own in a client's place; else it is trusted to relay them unchanged. Keys live for one round. A ``Party`` is one
client's state from one exchange to the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.seal import shamir
from coterie.seal.roster import Roster
from coterie.seal.signing import SIGNATURE, sign, signed_by, verify_key
from coterie.seal.streams import KEY, Words, add_streams, agree, derive, public
from coterie.seal.veil import veil
from coterie.wire.codec import register
from coterie.wire.sealed import SecretKey

_TRIAL = bytes(range(KEY))  # any private key: to find out whether a public one is of use
_SHARE = 8 * shamir.LIMBS  # bytes of a share of the seed and of the mask key


@register
@dataclass(frozen=True)
class Advert:
    """A client's two public keys, one for masks and one for the shares it is sent, and the hash of its seed."""

    masks: bytes
    shares: bytes
    seed_hash: bytes  # by which a wrong seed, put together from wrong shares, is noticed
    identity: bytes = b""  # the long-lived key, and what it signed; empty where nobody signs
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        return self.masks + self.shares + self.seed_hash + self.identity + self.signature

    def said(self, request: str, client: int) -> bytes:
        """What is signed: these keys, for this request of this client."""
        return f"{request} {client} ".encode() + self.masks + self.shares + self.seed_hash

    @staticmethod
    def from_bytes(data: bytes) -> Advert:
        whole = 4 * KEY + SIGNATURE
        require(
            len(data) in (3 * KEY, whole),
            "bytes of an advert",
            len(data),
            f"must be {3 * KEY}, or {whole} with a signature",
        )
        masks, shares, seed_hash, identity = (data[start : start + KEY] for start in range(0, 4 * KEY, KEY))
        return Advert(masks, shares, seed_hash, identity, data[4 * KEY :])

    def checked(self) -> Advert:
        """A key of low order would end everybody else's agreement."""
        for key in (self.masks, self.shares):
            agree(_TRIAL, key, b"trial")
        return self


Adverts = Mapping[int, Advert]


def salt_of(adverts: Adverts) -> bytes:
    """What the order on the ring follows from: everybody's keys, which nobody knew before."""
    return derive(
        b"".join(client.to_bytes(8, "little") + adverts[client].to_bytes() for client in sorted(adverts)), b"salt"
    )


@lru_cache(maxsize=8)
def context_of(roster: Roster) -> bytes:
    """The name of this round: boxes that were sealed for another do not open, and no veil comes twice."""
    return derive(roster.salt + repr((roster.members, roster.ids, roster.neighbours)).encode(), b"roster")


@register
@dataclass
class Party(SecretKey):
    """One client in one round. Its secrets come from the operating system and die with it."""

    client: int
    mask_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    box_key: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(shamir.SECRET), repr=False)
    held: dict[int, shamir.Shares] = field(default_factory=dict, repr=False)  # of each client: (seed | mask key, limbs)
    tallied: dict[int, shamir.Shares] = field(default_factory=dict, repr=False)  # of each client: (numbers,)
    agreed: dict[int, bytes] = field(default_factory=dict, repr=False)  # with each client, for boxes either way
    pairs: dict[int, bytes] = field(default_factory=dict, repr=False)  # with each partner, for masks
    context: bytes = field(default=b"", repr=False)
    request: str = ""  # which one this round answers
    identity: bytes = field(default=b"", repr=False)  # its long-lived private key; empty: it signs nothing
    known: dict[int, bytes] = field(default_factory=dict, repr=False)  # the long-lived keys that it has seen first
    closed: bool = field(default=False, repr=False)  # whether it was given all of these, and takes no stranger's
    trusted: dict[int, bool] = field(default_factory=dict, repr=False)  # whose keys of this round are theirs
    answered: tuple[int, ...] | None = None  # for which survivors it has opened

    @property
    def advert(self) -> Advert:
        bare = Advert(public(self.mask_key), public(self.box_key), derive(self.seed, b"seed"))
        if not self.identity:
            return bare
        signature = sign(self.identity, bare.said(self.request, self.client))
        return replace(bare, identity=verify_key(self.identity), signature=signature)

    def trust(self, other: int, adverts: Adverts) -> Advert:
        """The other's keys, if they are signed by whom this client knows under that number."""
        advert = adverts[other]
        if self.identity and other not in self.trusted:
            known = self.known.get(other, b"") if self.closed else self.known.setdefault(other, advert.identity)
            if known != advert.identity or not signed_by(known, advert.signature, advert.said(self.request, other)):
                raise NotPermitted(f"keys of client {other} are not signed by the one known to client {self.client}")
            self.trusted[other] = True
        return advert

    # -- shares --------------------------------------------------------------------------------------------------

    def share(self, roster: Roster, adverts: Adverts, numbers: Sequence[int] = ()) -> dict[int, bytes]:
        """Shares of this client's seed and mask key for its holders, and of its numbers for those who add them up.

        One sealed box for each of them but itself.
        """
        self.context = context_of(roster)
        secret = _by_holder(roster, roster.holders(self.client), [self.seed, self.mask_key])
        counted: dict[int, shamir.Shares] = {}
        if numbers:
            committee = roster.committee
            places = [roster.number(client) for client in committee]
            split = shamir.split_numbers(np.array(numbers, dtype=np.int64), places, len(committee) * 2 // 3 + 1)
            counted = dict(zip(committee, split, strict=True))
        self.held |= {self.client: secret.pop(self.client)}
        if self.client in counted:
            self.tallied[self.client] = counted.pop(self.client)
        boxes, own = {}, self.opener
        self.agreed |= {
            holder: agree(own, self.trust(holder, adverts).shares, b"box") for holder in secret.keys() | counted.keys()
        }
        for holder in sorted(secret.keys() | counted.keys()):
            plain = b"".join(part[holder].astype("<u4").tobytes() for part in (secret, counted) if holder in part)
            nonce = self.client.to_bytes(12, "little")
            boxes[holder] = self._box(holder, adverts).encrypt(nonce, plain, self.context)
        return boxes

    @property
    def opener(self) -> X25519PrivateKey:
        """The key that boxes are sealed for, read once for many of them."""
        return X25519PrivateKey.from_private_bytes(self.box_key)

    def receive(
        self,
        sender: int,
        box: bytes,
        adverts: Adverts,
        roster: Roster,
        numbers: int = 0,
        opener: X25519PrivateKey | None = None,
    ) -> None:
        """Keep what is in the box: shares of secrets, of so many numbers, or of both."""
        try:
            opened = self._box(sender, adverts, opener).decrypt(sender.to_bytes(12, "little"), box, self.context)
        except (InvalidTag, KeyError):
            raise InvalidInput(
                f"box of client {sender}={len(box)} bytes was not sealed for client {self.client}; ask for it again"
            ) from None
        holds = _SHARE if self.client in roster.holders(sender) else 0
        counts = 4 * numbers if self.client in roster.committee else 0
        require(len(opened) == holds + counts, "bytes of a share", len(opened), f"must be {holds + counts}")
        values = np.frombuffer(opened, "<u4").astype(np.int64)
        if holds:
            self.held[sender] = values[: 2 * shamir.LIMBS].reshape(2, shamir.LIMBS)
        if counts:
            self.tallied[sender] = values[holds // 4 :]

    def _box(self, other: int, adverts: Adverts, opener: X25519PrivateKey | None = None) -> ChaCha20Poly1305:
        """One key for both directions, told apart by the nonce."""
        if other not in self.agreed:
            self.agreed[other] = agree(opener or self.opener, self.trust(other, adverts).shares, b"box")
        return ChaCha20Poly1305(self.agreed[other])

    def tally(self, sharing: Iterable[int], pads: shamir.Shares) -> shamir.Shares:
        """This client's share of the sum of everybody's numbers, hidden by the pads."""
        missing = [client for client in sharing if client not in self.tallied]
        require(not missing, "boxes", f"none of {missing}", "can be opened; a share of the sum needs all of them")
        total = np.sum([self.tallied[client] for client in sharing], axis=0, dtype=np.int64)
        return np.asarray((total + pads) % shamir.PRIME)

    # -- masks ---------------------------------------------------------------------------------------------------

    def mask(
        self,
        words: Words,
        slot: int,
        roster: Roster,
        adverts: Adverts,
        veiled: bytes | None = None,
        in_place: bool = False,
    ) -> Words:
        """What this client sends for one cluster: uniform to everyone who lacks one of its masks.

        ``veiled`` is the round's key, under which the sum is hidden from the server.
        """
        masked = words if in_place else words.copy()
        partners = roster.partners(self.client, slot)
        if fresh := [partner for partner in partners if partner not in self.pairs]:
            own = X25519PrivateKey.from_private_bytes(self.mask_key)
            self.pairs |= {partner: agree(own, self.trust(partner, adverts).masks, b"mask") for partner in fresh}
        pairs = [(self.pairs[partner], partner < self.client) for partner in partners]
        add_streams(masked, [(self.seed, False), *pairs], slot)
        if veiled is not None:
            veil(masked, veiled, slot, roster.positions[slot][self.client])
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


def _by_holder(roster: Roster, holders: Sequence[int], values: Sequence[bytes]) -> dict[int, shamir.Shares]:
    shares = shamir.split(values, [roster.number(holder) for holder in holders], 2 * len(holders) // 3 + 1)
    return dict(zip(holders, shares, strict=True))


Answers = Mapping[int, Mapping[int, shamir.Shares]]
"""By holder, what it says of each client whose shares it keeps."""


def unmask(
    sums: Mapping[int, Words], roster: Roster, adverts: Adverts, answers: Answers, survivors: Iterable[int]
) -> dict[int, Words]:
    """The server's part: the sums of each cluster, from the masked sums over the survivors.

    Only clients that shared their secrets are in the sums.
    """
    here = set(survivors)
    opened = _opened(roster, answers)
    for client, secret in opened.items():
        kept, expected = (
            (derive(secret, b"seed"), adverts[client].seed_hash)
            if client in here
            else (public(secret), adverts[client].masks)
        )
        require(kept == expected, f"secret of client {client}", "another", "came of wrong shares; leave the round out")
    plain = {slot: words.copy() for slot, words in sums.items()}
    streams: dict[int, list[tuple[bytes, bool]]] = {slot: [] for slot in plain}
    for client, secret in opened.items():
        slots = [slot for slot in roster.slots_of(client) if slot in plain]
        if client in here:
            for slot in slots:
                streams[slot].append((secret, True))
            continue
        keys: dict[int, bytes] = {}
        for slot in slots:
            for partner in here.intersection(roster.partners(client, slot)):
                # The partner's mask towards the drop-out has nothing to cancel it: take it away.
                if partner not in keys:
                    keys[partner] = agree(secret, adverts[partner].masks, b"mask")
                streams[slot].append((keys[partner], partner < client))
    for slot, words in plain.items():
        add_streams(words, streams[slot], slot)
    return plain


def _opened(roster: Roster, answers: Answers) -> dict[int, bytes]:
    """The secret of each client that masked, put together from its holders' shares."""
    together: dict[tuple[int, ...], list[int]] = {}  # those whose shares come from the same holders
    for client in sorted({client for members in roster.members for client in members}):
        said = [holder for holder in roster.holders(client) if holder in answers and client in answers[holder]]
        needed = roster.needed(client)
        require(
            len(said) >= needed,
            f"answers about client {client}",
            len(said),
            f"must be at least {needed}; wait for more clients or repeat the round",
        )
        together.setdefault(tuple(said[:needed]), []).append(client)
    opened: dict[int, bytes] = {}
    for holders, clients in together.items():
        shares = np.stack([np.stack([answers[holder][client] for client in clients]) for holder in holders])
        found = shamir.combine([roster.number(holder) for holder in holders], shares)
        opened |= dict(zip(clients, found, strict=True))
    return opened
