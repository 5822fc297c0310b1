"""Secure sums in the ring: a few requests after which the server knows sums and nothing else of any client.

1. The request itself. A client computes its answer, keeps it, and sends which clusters it is in and two public keys.
2. ``shares``: everybody is told the keys, and sends sealed boxes with shares of its secrets for others.
3. ``tally``, where sums are veiled: everybody is given its boxes, and shares of the true sizes of the clusters add up
   to sizes that only clients can read.
4. ``masked``: everybody sends its masked answer. A cluster of too few true members is answered for as it was.
5. ``agree``, where clients sign: those who are left sign all that they were told.
6. ``open``: they see the others' signatures, and send the shares that take the masks off the sums.

A client that stops answering before its boxes arrived is left out. After that it is a drop-out, whose masks the others
take away. If fewer than two thirds are left, or a cluster's survivors would be exposed, the round is left out.
"""

from coterie.defences.secure_sums.client import IDENTITY, KNOWN, LAST, WAITING, Own, advertise, follow_up, shapes_of
from coterie.defences.secure_sums.defence import SecureSums
from coterie.defences.secure_sums.server import OpenedSums, hidden_sums, secure_sums
from coterie.defences.secure_sums.settings import (
    AGREE,
    MASKED,
    OPEN,
    SHARES,
    TALLY,
    ClientsDropped,
    ClusterLeftOut,
    PairwiseMasks,
    RoundLeftOut,
    Smallest,
    Veil,
    bearing,
    listed,
)

__all__ = [
    "AGREE",
    "IDENTITY",
    "KNOWN",
    "LAST",
    "MASKED",
    "OPEN",
    "SHARES",
    "TALLY",
    "WAITING",
    "ClientsDropped",
    "ClusterLeftOut",
    "OpenedSums",
    "Own",
    "PairwiseMasks",
    "RoundLeftOut",
    "SecureSums",
    "Smallest",
    "Veil",
    "advertise",
    "bearing",
    "follow_up",
    "hidden_sums",
    "listed",
    "secure_sums",
    "shapes_of",
]
