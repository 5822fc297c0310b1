"""Preference profiling by a curious server (MingledPie, Zhang et al., NDSS 2025, Section III-B).

A1 goes by the clusters that a client joins, A2 by its model (after Zhou et al., NDSS 2023). Both try first to open what
the client sealed; whoever holds no key for it goes on with what is left, and with nothing left guesses at random.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.base import Attributions
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.learn.params import Layout, Params, pick
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
class Rankings:
    """All labels for each of several questions, the likeliest first: a client's classes, the favourite in front."""

    orders: Mapping[int, tuple[int, ...]]


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


@dataclass(frozen=True)
class SensitivityProfiling:
    """A2: rank a client's classes by how little its model moves when it is trained further on each.

    A model that has seen a class has little left to learn about it. The distance moved is divided by the mean over the
    round's clients, which takes out what the start of the round owes to each class. Zhou et al. train a meta-classifier
    on the sensitivities of shadow models; here the ranking is read off them directly.
    """

    imitation: Imitation  # how to train further: model, steps, batch size, learning rate
    classes: int
    threat: ThreatModel = CURIOUS_SERVER
    round: int | None = None  # which round's models; None: the last

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Rankings:
        round = view.last() if self.round is None else self.round
        sent = view.sent(round)
        models = self.models(view, sent)
        if models is None:
            return Rankings(self.at_random(sent, rng))
        moved = torch.stack([self.sensitivities(model, auxiliary, rng) for model in models])  # (clients, classes)
        order = (moved / moved.mean(0)).argsort(1)
        return Rankings({client: tuple(row) for client, row in zip(sent.ids.tolist(), order.tolist(), strict=True)})

    def models(self, view: View, sent: Contributions) -> list[Params] | None:
        """Each client's model, from its plain answer or from what the keys open; None if neither is to be had."""
        if sent.values:
            return [{name: leaf[at, 0] for name, leaf in sent.values.items()} for at in range(len(sent))]
        opened = open_answers(view, sent)
        if opened is None:
            return None
        layout, slots = Layout.of(self.imitation.model.init(0)), sent.membership.shape[1]
        weights = opened[:, -slots:].sum(1, keepdim=True)
        flat = (opened[:, : layout.length] / weights).float()
        return [pick(layout.unflatten(flat), at) for at in range(len(sent))]

    def sensitivities(self, model: Params, auxiliary: Auxiliary, rng: Rng) -> Tensor:
        """(classes,): how far the model moves under training on each class alone; the same examples for all clients."""
        examples = auxiliary.whole()
        local = self.imitation.local
        rows = torch.stack([self._rows(auxiliary, label, rng) for label in range(self.classes)])
        rows = rows.view(self.classes, local.steps, local.batch_size)
        updates = self.imitation.train(model, examples, rows, rng.child("retraining"))
        return torch.stack([leaf.flatten(1).square().sum(1) for leaf in updates.values()]).sum(0).sqrt()

    def _rows(self, auxiliary: Auxiliary, label: int, rng: Rng) -> Tensor:
        rows = (auxiliary.whole().y == label).nonzero().flatten()
        require(len(rows) > 0, "label", label, "has no auxiliary examples; give the adversary some of each class")
        local = self.imitation.local
        chosen = rng.child("examples", label).numpy().integers(len(rows), size=local.steps * local.batch_size)
        return rows[torch.from_numpy(chosen)]

    def at_random(self, sent: Contributions, rng: Rng) -> dict[int, tuple[int, ...]]:
        return {
            client: tuple(rng.child("client", client, "guess").numpy().permutation(self.classes).tolist())
            for client in sent.ids.tolist()
        }
