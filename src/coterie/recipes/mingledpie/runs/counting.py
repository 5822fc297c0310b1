"""A server that counts over rounds, against clients that come late, drop out and take part now and then."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import torch

from coterie.attacks.placing import Placing, of_sizes
from coterie.attacks.profiling import CURIOUS_SERVER, colluding_server
from coterie.data.auxiliary import Auxiliary
from coterie.data.partition import LabelSets
from coterie.data.partition.arrivals import late
from coterie.data.sources.embedded import Digits
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import SampledSets, TagRule
from coterie.defences.secure_sums import ClusterLeftOut, PairwiseMasks, RoundLeftOut
from coterie.flow.client import Answer
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.recipes.mingledpie.runs.attacks import showing
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.messages import TRAIN, Down
from coterie.wire.tape import Tape

CLUSTERS, NEIGHBOURS = 5, 20
LATE, DROPPING = 0.1, 0.05  # of the clients: who join half-way, and of a round's: who never share their secrets
TOGETHER = colluding_server(0)
ALONE, KNOWING, TOGETHER_WITH = "alone", "alone, sizes known", "with a client"
SAME = {cluster: cluster for cluster in range(CLUSTERS)}
DRAWS = 100
VARIANTS: dict[str, Callable[[], Mingling]] = {
    "default": lambda: Mingling(cipher=PairwiseMasks(NEIGHBOURS)),
    "sets, p=0.5, T=2": lambda: Mingling(0.5, 2, cipher=PairwiseMasks(NEIGHBOURS)),
    "one set a cluster": lambda: Mingling(0.5, 2, cipher=PairwiseMasks(NEIGHBOURS), partition=False),
}


def counted(method: str, clients: int, participation: float, rounds: int, seed: int) -> Result:
    """How many clients are named right at the end: by the server alone, by one that knows how many clients each cluster
    has, and with one client's key. ``expected`` is what identity sets give by themselves, to either of the former."""
    rng, defence, chosen = Rng.seeded(seed), VARIANTS[method](), dict[int, int]()
    federation = LabelSets(clients, CLUSTERS).split(Digits().load(), rng.child("partition"))

    def note(asked: Down, answer: Answer) -> None:
        if answer.chosen is not None and asked.kind == TRAIN:
            chosen.update(zip(answer.ids, answer.chosen.argmax(1).tolist(), strict=True))

    def lost(asked: Down) -> list[int]:
        if asked.kind != TRAIN and asked.kind.part == "shares" and asked.kind.name == TRAIN.name:
            coins = rng.child("dropping", asked.round).numpy().random(len(asked.clients))
            return np.array(asked.clients.tolist())[coins < DROPPING].tolist()  # type: ignore[no-any-return]
        return []

    ring = Ring(
        Ifca(rounds, Local(steps=2, batch_size=8, lr=0.2), participation, clusters=CLUSTERS),
        late(federation, LATE, rounds // 2, rng),
        Dense((64, 10)),
        defence,
        Roots.seeded(seed),
        Tape([CURIOUS_SERVER, TOGETHER]),
        witness=note,
        lost=lost,
    )
    with ring, warnings.catch_warnings():
        warnings.simplefilter("ignore", ClusterLeftOut)
        warnings.simplefilter("ignore", RoundLeftOut)
        ring.run()
    sizes = dict(Counter(chosen.values()))
    rule = defence.client.decoys.rule(CLUSTERS)
    expected = {ALONE: rule.blind_guess(), KNOWING: sets_give(rule, chosen, sizes, rng)}
    found: Result = {"units": len(chosen), "expected": {**expected, TOGETHER_WITH: expected[ALONE]}}
    for name, threat in ((ALONE, CURIOUS_SERVER), (KNOWING, CURIOUS_SERVER), (TOGETHER_WITH, TOGETHER)):
        attack = Placing(SAME, threat, sizes=sizes if name == KNOWING else None)
        guess = attack.infer(ring.view(threat), Auxiliary(), rng.child("attack")).labels
        found[name] = sum(guess.get(client) == cluster for client, cluster in chosen.items())
    return found


def uneven(clients: int, seed: int) -> Result:
    """How many are named right from their sets alone, at p=0.5, T=2, by a server that knows no sizes.

    A half, a quarter, an eighth, a twelfth and a twenty-fourth of the clients are in the five clusters.
    """
    rng, rule = Rng.seeded(seed), TagRule(CLUSTERS, 0.5, 2, partition=True)
    sizes = torch.tensor([clients // part for part in (2, 4, 8, 12, 24)])
    true = torch.arange(CLUSTERS).repeat_interleave(sizes)
    view = showing(SampledSets(rule), true, rng)
    guess = Placing(SAME).infer(view, Auxiliary(), rng.child("attack")).labels
    right = sum(guess[client] == cluster for client, cluster in enumerate(true.tolist()))
    return {"units": len(true), "expected": {ALONE: rule.blind_guess()}, ALONE: right}


def sets_give(rule: TagRule, true: Mapping[int, int], sizes: Mapping[int, int], rng: Rng) -> float:
    """How often whoever knows the sizes is right where sets are all that is seen: over sets that are drawn anew."""
    ids, clusters, right = torch.tensor(list(true)), torch.tensor(list(true.values())), 0.0
    for draw in range(DRAWS):
        joined = SampledSets(rule).membership(ids, clusters, rng.child("drawn anew", draw))
        rows = zip(true, joined, strict=True)
        blind = {client: dict.fromkeys(row.nonzero().flatten().tolist(), 1 / int(row.sum())) for client, row in rows}
        for client, chances in of_sizes(blind, sizes).items():
            likeliest = [one for one, chance in chances.items() if chance > max(chances.values()) - 1e-9]
            right += (true[client] in likeliest) / len(likeliest)
    return right / DRAWS / len(true)
