"""Preference profiling by a curious server (MingledPie, Zhang et al., NDSS 2025, Section III-B).

A1 goes by the clusters that a client joins: as the paper has it here, at its strongest in ``placing``. A2 goes by its
model (``profiling_by_model``). Both try first to open what the client sealed; whoever holds no key for it goes on with
what is left.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from coterie.attacks.base import Attributions
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.rng import Rng
from coterie.wire.messages import Contributions
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.view import ThreatModel, View

CURIOUS_SERVER = ThreatModel(
    "curious server", server=True, knows="which preference each cluster serves; examples of every class"
)


def colluding_server(client: int) -> ThreatModel:
    """The server with the keys that this client holds."""
    return ThreatModel(
        f"server with client {client}",
        server=True,
        clients=frozenset({client}),
        keys=frozenset({SHARED_KEY}),
        knows=CURIOUS_SERVER.knows,
    )


@dataclass(frozen=True)
class IdentityProfiling:
    """A1: guess a client's preference from the clusters that it joins.

    ``preferences`` is what each cluster stands for, which a server that set the task up knows. Without more, the guess
    is blind: any member of the newest set. With ``intersect``, only members of all sets since the last that agree with
    it. With ``sizes`` (of the clusters, by their number) the likeliest member is guessed: every member of a set would
    have given that set with the same probability, so it is the one of the largest cluster. ``read_sizes`` takes them
    from the sums that it can open.
    """

    preferences: Mapping[int, int]
    threat: ThreatModel = CURIOUS_SERVER
    upto: int | None = None  # the last round that is looked at; None: all
    intersect: bool = False
    sizes: Mapping[int, float] | None = None
    read_sizes: bool = False

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Attributions:
        rounds = [round for round in view.rounds() if self.upto is None or round <= self.upto]
        require(len(rounds) > 0, "rounds", 0, f"were seen up to round {self.upto}; run at least one")
        sizes = self.sizes if self.sizes is not None or not self.read_sizes else published_sizes(view, rounds[-1])
        labels: dict[Hashable, int] = {}
        for client, candidates in self.candidates(view, rounds).items():
            likeliest = candidates
            if sizes is not None:
                most = max(sizes[cluster] for cluster in candidates)
                likeliest = [cluster for cluster in candidates if sizes[cluster] == most]
            choice = rng.child("client", client, "guess").numpy().integers(len(likeliest))
            labels[client] = self.preferences[likeliest[choice]]
        return Attributions(labels)

    def candidates(self, view: View, rounds: list[int]) -> dict[int, list[int]]:
        """The clusters that each client may be in, after these rounds."""
        found: dict[int, frozenset[int]] = {}
        for round in rounds:
            for client, clusters in identity_sets(view, round):
                common = found.get(client, clusters) & clusters
                found[client] = common if self.intersect and common else clusters
        return {client: sorted(clusters) for client, clusters in found.items()}


def identity_sets(view: View, round: int) -> Iterator[tuple[int, frozenset[int]]]:
    """The clusters that each client joined: the true one alone where the identity vector can be opened."""
    sent = view.sent(round)
    slots = sent.membership.shape[1]
    opened = open_answers(view, sent)
    joined = sent.membership if opened is None else opened[:, -slots:]
    for client, row in zip(sent.ids.tolist(), joined, strict=True):
        yield client, frozenset(row.nonzero().flatten().tolist())


def open_answers(view: View, sent: Contributions) -> Tensor | None:
    """What each client sealed, (clients, length), a zero for each decoy summed away; None without the key to it."""
    if SEALED not in sent.sealed:
        return None
    try:
        key = view.key(SHARED_KEY)
    except (NotPermitted, InvalidInput):  # not held, or this federation has none
        key = None
    try:
        opened = sent.sealed[SEALED].open(key)
    except NotPermitted:
        return None
    return opened.sum(1) if opened.dim() == 3 else opened


def published_sizes(view: View, round: int) -> dict[int, float] | None:
    """The true sizes of the clusters, where this adversary could open the sums of this round; None where not."""
    try:
        published = view.received(round + 1).published
    except NotPermitted:
        return None
    if published.sealed or published.sizes is None:
        return None
    return dict(enumerate(published.sizes.tolist()))
