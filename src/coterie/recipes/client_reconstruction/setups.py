"""The federations of paper 004: rotated digits, and Chinese numerals by groups of writers.

A client's pictures are its own; everybody is tested on the same further pictures, turned as its own are. Strangers are
people whom nobody holds, turned as the victim is. Pixels lie in -1..1, from which the network learns faster.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition.features import rotate
from coterie.data.sources.chinese_mnist import ChineseMnist
from coterie.data.sources.embedded import Mnist5k
from coterie.data.sources.mnist import Mnist
from coterie.measure.likeness import Holders
from coterie.rng import Rng

ATTACKER, VICTIM = 0, 1  # the paper's clients 1 and 2

ANGLES = {  # degrees clockwise; the first half of the clients is the attacker's cluster
    ("MNIST", 6): (0, 90, 270, 180, 180, 180),
    ("MNIST", 8): (0, 90, 270, 45, 180, 180, 180, 180),
    ("CMNIST", 6): (0, 0, 0, 180, 180, 180),
    ("CMNIST", 8): (0, 0, 60, 300, 180, 180, 180, 180),
}
"""The paper does not say which further angles the eight clients of MNIST have: 45 degrees is ours."""

TESTED = 200  # pictures that a client is tested on


@dataclass(frozen=True)
class Setup:
    """Which data, how many clients, and whether the victim has anything of its own."""

    data: str = "MNIST"
    clients: int = 6
    each: int = 400  # pictures a client
    halved: bool = True  # 14 pixels a side in place of 28, which takes a quarter of the time
    victim: int = VICTIM
    control: bool = False  # all in the attacker's cluster turn theirs alike and share writers: nothing is anybody's own
    folder: str | None = None  # of data sets, for all but the embedded digits

    def federation(self, seed: int) -> tuple[Federation, Holders]:
        examples, pools = self.dealt(Rng.seeded(seed).child("dealt"))
        xs, ys, start = [], [], 0
        train: list[Tensor] = []
        test: list[Tensor] = []
        for client, angle in enumerate(self.angles):
            for pool, into in ((pools[client], train), (pools[-1][:TESTED], test)):
                xs.append(rotate(examples.x[pool], angle))
                ys.append(examples.y[pool])
                into.append(torch.arange(start, start + len(pool)))
                start += len(pool)
        x, y = torch.cat(xs), torch.cat(ys)
        groups = torch.arange(self.clients) // (self.clients // 2)
        made = Examples(2 * x - 1, y, 11, self.data)  # the last class is nobody's: the models have an output for it
        strangers = pools[self.clients]
        turned = rotate(examples.x[strangers], self.angles[self.victim])
        mine, *others = (by_class(x[train[client]], y[train[client]]) for client in (self.victim, *self.peers))
        beside = {name: [other[name] for other in others] for name in mine}
        holders = Holders(mine, beside, by_class(turned, examples.y[strangers]))
        return Federation(made, Shards.of(train), Shards.of(test), groups), holders

    @property
    def angles(self) -> tuple[int, ...]:
        found = ANGLES[self.data, self.clients]
        if not self.control:
            return found
        return tuple(0 if client < self.clients // 2 else angle for client, angle in enumerate(found))

    @property
    def peers(self) -> list[int]:
        """The other clients of the attacker's cluster, itself among them."""
        return [client for client in range(self.clients // 2) if client != self.victim]

    def dealt(self, rng: Rng) -> tuple[Examples, list[Tensor]]:
        """Pixels in 0..1, and rows for each client, for strangers, and for tests."""
        examples, pools = self.by_writers(rng) if self.data == "CMNIST" else self.at_random(rng)
        if self.halved:
            examples = Examples(avg_pool2d(examples.x, 2), examples.y, 10, examples.name)
        if self.data == "CMNIST":  # thin strokes are faint once they are small: of those no network learnt anything
            brightest = examples.x.amax((1, 2, 3), keepdim=True).clamp_min(1e-3)
            examples = Examples(examples.x / brightest, examples.y, 10, examples.name)
        return examples, pools

    def at_random(self, rng: Rng) -> tuple[Examples, list[Tensor]]:
        examples = Mnist().load(Path(self.folder)) if self.folder else embedded()
        order = torch.randperm(len(examples), generator=rng.torch())
        sizes = [self.each] * (self.clients + 1) + [TESTED]
        return examples, list(order[: sum(sizes)].split(sizes))

    def by_writers(self, rng: Rng) -> tuple[Examples, list[Tensor]]:
        """Chinese MNIST stands in for the paper's own: every client has writers of its own, and so have strangers.

        The paper's two groups are adults and children. Here the second half of the clients is turned round, so that
        there are two groups to find.
        """
        examples = ChineseMnist(digits_only=True, size=32).load(Path(self.folder) if self.folder else None)
        writers = examples.tags["writer"]
        if self.control:  # whoever wrote it: then nobody has a hand of its own
            writers = writers[torch.randperm(len(writers), generator=rng.child("control").torch())]
        known = writers.unique()
        known = known[torch.randperm(len(known), generator=rng.torch())]
        shares = self.clients + 2  # and strangers and tests, a share each
        hands = known[: len(known) // shares * shares].reshape(shares, -1)
        pools = [torch.isin(writers, hand).nonzero().flatten()[: self.each] for hand in hands]
        return examples, pools


@cache
def embedded() -> Examples:
    """Read once a process: it takes as long as a short run does."""
    return Mnist5k().load()


def by_class(x: Tensor, y: Tensor) -> dict[Hashable, Tensor]:
    return {name: x[y == name] for name in range(10)}
