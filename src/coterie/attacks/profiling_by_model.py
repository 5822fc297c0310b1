"""A2: preference profiling by models (after Zhou et al., NDSS 2023; MingledPie, NDSS 2025, Section III-B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.attacks.placing import Placing
from coterie.attacks.profiling import CURIOUS_SERVER, open_answers
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted, require
from coterie.learn.params import Layout, Params, pick
from coterie.rng import Rng
from coterie.wire.messages import Contributions, Published
from coterie.wire.view import ThreatModel, View


@dataclass(frozen=True)
class Rankings:
    """All labels for each of several questions, the likeliest first: a client's classes, the favourite in front."""

    orders: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class SensitivityProfiling:
    """A2: rank a client's classes by how little its model moves when it is trained further on each.

    A model that has seen a class has little left to learn about it. The distance moved is divided by the mean over the
    round's clients, which takes out what the start of the round owes to each class. Zhou et al. train a meta-classifier
    on the sensitivities of shadow models; here the ranking is read off them directly.

    Where clients' models cannot be opened, a client's classes are those of the clusters that it may be in, weighed by
    how likely it is in each (``placing``): as read off the clusters' own models, where those can be opened, or as the
    server knows them (``serves``). With neither, the guess is at random.
    """

    imitation: Imitation  # how to train further: model, steps, batch size, learning rate
    classes: int
    threat: ThreatModel = CURIOUS_SERVER
    round: int | None = None  # which round's models; None: the last
    serves: Mapping[int, Sequence[int]] = field(default_factory=dict)  # the classes of each cluster, where known

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Rankings:
        round = view.last() if self.round is None else self.round
        sent = view.sent(round)
        models = self.models(view, sent)
        if models is None:
            return Rankings(self.by_clusters(view, round, auxiliary, rng))
        order = self.relative(models, auxiliary, rng).argsort(1)
        return Rankings({client: tuple(row) for client, row in zip(sent.ids.tolist(), order.tolist(), strict=True)})

    def relative(self, models: Sequence[Params], auxiliary: Auxiliary, rng: Rng) -> Tensor:
        """(models, classes): how far each moves under each class, relative to the others."""
        moved = torch.stack([self.sensitivities(model, auxiliary, rng) for model in models])
        return moved / moved.mean(0)

    def by_clusters(self, view: View, round: int, auxiliary: Auxiliary, rng: Rng) -> dict[int, tuple[int, ...]]:
        beliefs = Placing({}, self.threat, upto=round).beliefs(view, rng.child("placing"))
        told = self.of_clusters(view, round, auxiliary, rng)  # (clusters, classes)
        orders = {}
        for client in view.sent(round).ids.tolist():
            scores = rng.child("client", client, "guess").numpy().random(self.classes) * 1e-6  # ties at random
            if told is not None:
                scores += sum(chance * told[cluster].numpy() for cluster, chance in beliefs[client].items())
            orders[client] = tuple((-scores).argsort().tolist())
        return orders

    def of_clusters(self, view: View, round: int, auxiliary: Auxiliary, rng: Rng) -> Tensor | None:
        """(clusters, classes): how much each cluster is for each class; None if nothing is known of it."""
        try:
            given = view.received(round + 1).published
        except NotPermitted:
            given = Published({})
        if given.values and not self.serves:
            slots = [pick(given.values, slot) for slot in range(given.slots)]
            return torch.softmax(-10 * self.relative(slots, auxiliary, rng), 1)
        if not self.serves:
            return None
        told = torch.zeros(max(self.serves) + 1, self.classes)
        for cluster, classes in self.serves.items():
            told[cluster, list(classes)] = 1.0
        return told

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
