"""What sealed training is worth where only some clients take part in a round. All arguments are plain values."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from coterie.data.partition import LabelSets
from coterie.data.sources.embedded import Digits
from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import ClusterLeftOut, PairwiseMasks, RoundLeftOut, Smallest
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import train
from coterie.seal.mock import MockCipher

CLUSTERS, NEIGHBOURS = 5, 20
SEALED: dict[str, Callable[[], Defence]] = {
    "IFCA": Defence,
    "shared key": lambda: Mingling(cipher=MockCipher()),
    "group key, clusters of one too": lambda: Mingling(cipher=PairwiseMasks(NEIGHBOURS), smallest=Smallest(1)),
    "default": lambda: Mingling(cipher=PairwiseMasks(NEIGHBOURS)),
}


def taking_part(method: str, participation: float, clients: int, rounds: int, seed: int) -> Result:
    """The mean test accuracy in percent, with two classes of digits a client."""
    federation = LabelSets(clients, CLUSTERS).split(Digits().load(), Rng.seeded(seed).child("partition"))
    protocol = Ifca(rounds, Local(steps=5, batch_size=8, lr=0.2), participation, clusters=CLUSTERS)
    with warnings.catch_warnings():
        for told in (ClusterLeftOut, RoundLeftOut):
            warnings.simplefilter("ignore", told)
        outcome = train(
            protocol, federation, Dense((64, 10)), seed=seed, defence=SEALED[method](), evaluate_every=rounds
        )
    return {"accuracy": 100 * outcome.accuracy, "sizes": outcome.cluster_sizes}
