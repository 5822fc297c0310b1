"""The clients' half of mingling. It alone holds the key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.defences.mingling.fuzzy_tags import (
    ClusterKeys,
    Counting,
    GroupSets,
    IdentitySets,
    SampledSets,
    TagRule,
)
from coterie.defences.mingling.rebuilding import Rebuilding
from coterie.defences.secure_sums import Own, PairwiseMasks, Smallest, Veil, advertise, follow_up, shapes_of
from coterie.errors import InvalidInput, require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, Params, flatten
from coterie.seal.cipher import Cipher, Key
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher
from coterie.seal.veil import GroupKey, HiddenSum
from coterie.wire.messages import CHOOSE, TRAIN, Contributions, Down, Published
from coterie.wire.sealed import SEALED, SealedBatch

RESEAL = "reseal"  # the request to seal the former models anew
KEPT = "kept"  # and the name under which they travel
MINGLED = "mingled"  # model and identity vector, as one
VOTES = "votes"  # the name under which the sum of a vote travels


@dataclass(frozen=True)
class Decoys:
    """How identity sets are drawn, whatever the number of clusters."""

    rate: float | None  # this and the next are None: everybody joins everything
    threshold: int | None
    counting: Counting
    partition: bool
    keys: ClusterKeys | None

    def rule(self, clusters: int) -> TagRule:
        if self.rate is None or self.threshold is None:
            return TagRule(clusters, threshold=clusters, partition=self.partition)
        return TagRule(clusters, self.rate, self.threshold, self.counting, self.partition)

    def everywhere(self, clusters: int) -> bool:
        """Whether every set is all of so many clusters."""
        return self.threshold is None or self.threshold + (self.counting is Counting.DECOYS) >= clusters

    def sets(self, clusters: int) -> IdentitySets:
        rule = self.rule(clusters)
        return SampledSets(rule) if self.keys is None else GroupSets(rule, self.keys)


@dataclass(frozen=True)
class MinglingClient(ClientGuard):
    """The clients' half. It alone holds the key."""

    decoys: Decoys
    cipher: Cipher | PairwiseMasks
    key: Key = field(repr=False)
    exact: bool
    rebuilding: Rebuilding
    smallest: Smallest
    unit: float = 1.0

    @property
    def reveals(self) -> str:
        return ""

    def receive(self, published: Published, turn: Turn) -> Published:
        """Algorithm 2. Beside the models, what the true members of each cluster weigh, or how many they are."""
        if not published.sealed:
            return published
        if VOTES in published.sealed:
            counted = published.sealed[VOTES]
            assert isinstance(counted, HiddenSum)
            return Published({**published.values, **counted.leaves(self.voting)})
        origin, total = published.origin, published.sealed[SEALED]
        if origin is None:
            raise InvalidInput("published sums=sealed came without the models before them; ask the server again")
        layout = Layout.of(origin.values, leading=1)
        opened = total.open(self.key)  # (clusters, length + clusters)
        require(
            opened.shape == (origin.slots, layout.length + origin.slots),
            "opened sums of shape",
            tuple(opened.shape),
            f"must be those of {origin.slots} models of {layout.length} parameters; ask the server again",
        )
        sums, counts = opened.split([layout.length, origin.slots], dim=1)
        before, sizes = self._before(published, origin), counts.diagonal().clone()
        weights = sizes  # of those who trained in the round
        if isinstance(total, HiddenSum):
            models = _divided(sums, sizes, total.known, before)
            sizes = torch.tensor(total.sizes(self.key))
            made = [new and self.smallest.allows(size) for new, size in zip(total.fresh, sizes.tolist(), strict=True)]
            weights = weights * torch.tensor(made if any(made) else total.fresh)
        else:
            models = self.rebuilding.rebuild(sums, counts, before)
        found = {name: leaf.to(origin.values[name].dtype) for name, leaf in layout.unflatten(models).items()}
        return Published({**found, **_averaged(found, published.shared, weights)}, sizes)

    def _before(self, published: Published, origin: Published) -> Callable[[], Tensor]:
        """The models that these sums came after: as a client sealed them anew, or the first ones, which were plain."""
        if KEPT in published.sealed:
            return lambda: published.sealed[KEPT].open(self.key)
        return lambda: flatten(origin.values).double()

    @property
    def voting(self) -> GroupKey:
        """What veils votes: a key that follows from the clients', so that no other sum opens as a vote, whose winner
        they name."""
        return GroupKey.after(self.key.to_bytes())

    @property
    def masks(self) -> PairwiseMasks:
        """The votes on a start are summed under masks, whatever the models are sealed with."""
        return self.cipher if isinstance(self.cipher, PairwiseMasks) else PairwiseMasks()

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        turn = cohort.turn
        if turn.kind != TRAIN:
            values = flatten(sent.values, leading=2)
            return advertise(sent, values, sent.membership, shapes_of(sent.values), cohort, self.masks)
        one_hot = _one_hot(sent.membership)  # (clients, clusters)
        sets = self.decoys.sets(one_hot.shape[1])
        true = one_hot.int().argmax(1)
        mingled = sets.membership(sent.ids, true, turn.roots.secrets.child("mingling").rng())
        models = flatten(sent.values, leading=2)[:, 0]  # (clients, length)
        vectors = torch.cat([models, one_hot.to(models.dtype)], 1).double()
        vectors.mul_((sent.weights.double() / self.unit).unsqueeze(1))
        self._require_room(vectors, sent.weights)
        if isinstance(self.cipher, PairwiseMasks):
            former = flatten(cohort.given)  # (clusters, length)
            before = torch.cat([former, torch.eye(len(former), dtype=former.dtype)], 1)
            own = [Own(cluster, before) for cluster in true.tolist()]
            return advertise(
                sent, vectors.unsqueeze(1), mingled, {MINGLED: (vectors.shape[1],)}, cohort, self.cipher, own
            )
        ids = sent.ids.tolist()
        if self.exact:
            return _message(sent, mingled, self.cipher.seal_for_one(vectors, one_hot, self.key, ids, mingled))
        return _message(sent, mingled, self.cipher.seal(vectors, self.key, ids))

    def _require_room(self, vectors: Tensor, weights: Tensor) -> None:
        """The cipher would refuse as well, but it does not know about weights."""
        if isinstance(self.cipher, Ckks | MockCipher):
            largest = float(max(vectors.max(), -vectors.min()))
            require(
                largest <= self.cipher.largest or float(weights.max()) <= self.unit,
                "largest weighted value",
                largest,
                f"must be at most {self.cipher.largest:.6g} to be sealed; give weights in a larger unit, "
                f"Mingling(unit={float(weights.max()):g}), or weigh clients alike, Ifca(weighting='equal')",
            )

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        if asked.kind.part == RESEAL:
            return self._reseal(asked, cohort)
        veil = None
        if asked.kind.name == CHOOSE.name:
            veil = Veil(self.voting, None)
        elif isinstance(self.key, GroupKey) and asked.kind.name == TRAIN.name:
            veil = Veil(self.key, self.smallest)
        return follow_up(asked, cohort, self.masks, veil)

    def _reseal(self, asked: Down, cohort: Cohort) -> Contributions:
        """The models of this request, sealed again for whoever comes later."""
        assert isinstance(self.cipher, Cipher)
        models = flatten(self.receive(asked.published, cohort.turn).values).double().unsqueeze(0)
        everywhere = torch.ones(len(cohort), models.shape[1])
        batch = self.cipher.seal(models, self.key, cohort.ids.tolist(), everywhere)
        return Contributions(cohort.ids, {}, torch.ones(len(cohort)), everywhere, {KEPT: batch})


def _divided(sums: Tensor, weights: Tensor, known: list[bool], before: Callable[[], Tensor]) -> Tensor:
    """Means of exact sums; the first model where a cluster has had no sum yet."""
    have = torch.tensor(known)
    require(
        bool((weights[have] > 0).all() and weights[have].isfinite().all()),
        "weights of opened sums",
        "others",  # and no more: what a client refuses, and why, the server may hear
        "must be positive; is this the group key of those who made them?",
    )
    means = sums / torch.where(have, weights, 1.0).unsqueeze(1)
    return means if all(known) else torch.where(have.unsqueeze(1), means, before())


def _averaged(models: Params, shared: Sequence[str], weights: Tensor) -> dict[str, Tensor]:
    """The shared leaves, the same for all clusters: the mean over those who trained in the round."""
    shares = (weights / weights.sum()).float() if shared else weights
    means = {name: torch.tensordot(shares.to(models[name].dtype), models[name], 1) for name in shared}
    return {name: mean.expand_as(models[name]).contiguous() for name, mean in means.items()}


def _one_hot(membership: Tensor) -> Tensor:
    chosen = membership == 1
    require(
        bool(((chosen | (membership == 0)).all(1) & (chosen.sum(1) == 1)).all()),
        "membership",
        membership[0].tolist(),
        "must name one cluster a client, which mingling then hides; use it with Ifca",
    )
    return chosen


def _message(sent: Contributions, membership: Tensor, batch: SealedBatch) -> Contributions:
    return Contributions(sent.ids, {}, torch.ones(len(sent)), membership.float(), {SEALED: batch})
