"""What a curious server learns: from identity sets alone (Figure 3), and from the first rounds (Table II)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.attacks.placing import Placing
from coterie.attacks.profiling import CURIOUS_SERVER, IdentityProfiling, colluding_server
from coterie.attacks.profiling_by_model import SensitivityProfiling
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary, reserve
from coterie.data.federation import Federation
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting, GroupSets, IdentitySets, SampledSets, TagRule
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.findings import Finding
from coterie.measure.judge import Labels, judge
from coterie.measure.preferences import Preferences, judge_top_k
from coterie.protocols.ifca import Ifca
from coterie.recipes.mingledpie.runs.training import local, mingling, partition_of, pretrained
from coterie.recipes.mingledpie.setups import SETUPS
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.run.training import train
from coterie.wire.messages import TRAIN, Contributions, Down, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import View

READINGS = {"T counts identities": Counting.IDENTITIES, "T counts decoys": Counting.DECOYS}


def guessed(rate: float, clusters: int, threshold: int, counting: str, sets: int, group: bool, seed: int) -> Result:
    """How often a blind guess from the identity set is right, over this many clients."""
    rng = Rng.seeded(seed).child("figure 3", str(rate), clusters, threshold, counting)
    rule = TagRule(clusters, rate, threshold, READINGS[counting])
    drawn: IdentitySets = SampledSets(rule)
    if group:
        drawn = GroupSets(rule, ClusterKeys.generate(rule, rng.child("keys")))
    true = torch.arange(sets) % clusters
    attack = IdentityProfiling({cluster: cluster for cluster in range(clusters)})
    guess = attack.infer(showing(drawn, true, rng), Auxiliary(), rng.child("attack")).labels
    right = sum(guess[client] == cluster for client, cluster in enumerate(true.tolist()))
    return {"right": right, "sets": sets, "expected": rule.blind_guess(), "printed": rule.printed_guess()}


def showing(drawn: IdentitySets, true: Tensor, rng: Rng) -> View:
    """What a server sees of clients in these clusters: a set of each, and nothing else."""
    tape, everyone = Tape([CURIOUS_SERVER]), torch.arange(len(true))
    joined = drawn.membership(everyone, true, rng.child("clients")).float()
    tape.record(Down(TRAIN, 0, everyone, Published({"w": torch.zeros(joined.shape[1], 1)})))
    tape.record(Up(TRAIN, 0, Contributions(everyone, {}, torch.ones(len(true)), joined)))
    return tape.view(CURIOUS_SERVER)


ATTACKED_ROUNDS = 5


def profiled(name: str, method: str, clients: int, *, data: str | None, seed: int) -> Result:
    """What A1 and A2 get of the first five rounds, the server alone and with a client, in percent."""
    rng = Rng.seeded(seed)
    auxiliary, examples = reserve(SETUPS[name].source().load(data), 20, rng)
    partition = partition_of(examples, name, "homogeneous", 5, clients)
    sets = partition.label_sets(examples, rng.child("partition"))
    examples, begins = pretrained(name, examples, sets, rng)
    federation = partition.split(examples, rng.child("partition"))
    defence, model = mingling(method, 0.5, 2), SETUPS[name].model()
    colluding = colluding_server(0)
    tape = Tape([CURIOUS_SERVER, colluding])
    how = local(name, as_run=True)
    protocol = Ifca(ATTACKED_ROUNDS, how, clusters=5, weighting="equal", begins=begins)
    outcome = train(protocol, federation, model, seed=seed, defence=defence, tape=tape, evaluate_every=1000)
    stands_for = _stands_for(outcome.scores.choices.argmax(1), federation.groups)
    truth = Labels({client: int(group) for client, group in enumerate(federation.groups)}, 5)
    alone, together = outcome.view(CURIOUS_SERVER), outcome.view(colluding)

    def identity(view: View, **options: Any) -> Finding:
        attack = IdentityProfiling(stands_for, view.threat, **options)
        return judge(attack.infer(view, auxiliary, rng.child("A1")), truth)

    found = {f"epoch {epoch}": identity(alone, upto=epoch - 1) for epoch in (1, 3, 5)}
    found["intersection"] = identity(alone, intersect=True)
    found["with a client"] = identity(together)
    for name, view in (("placed", alone), ("placed with a client", together)):
        found[name] = judge(Placing(stands_for, view.threat).infer(view, auxiliary, rng.child("placing")), truth)
    serves = {cluster: _preferred(federation, group) for cluster, group in stands_for.items()}
    views = {"A2": alone, "A2 with a client": together}
    found |= _by_model(model, examples.classes, views, auxiliary, federation, rng, serves)
    return {key: [100 * one.score, 100 * one.interval.low, 100 * one.interval.high] for key, one in found.items()}


def _by_model(
    model: Model,
    classes: int,
    views: dict[str, View],
    auxiliary: Auxiliary,
    federation: Federation,
    rng: Rng,
    serves: dict[int, list[int]],
) -> dict[str, Finding]:
    preferences, found = Preferences.of(federation), {}
    imitation = Imitation(model, Local(steps=5, batch_size=10, lr=0.1))
    for label, view in views.items():
        attack = SensitivityProfiling(imitation, classes, view.threat, serves=serves)
        guess = attack.infer(view, auxiliary, rng.child("A2"))
        found[f"{label}, top-1"] = judge(guess, preferences)
        found[f"{label}, top-k"] = judge_top_k(guess, preferences)
    return found


def _preferred(federation: Federation, group: int) -> list[int]:
    """The classes of a group: those that its first client prefers."""
    first = int((federation.groups == group).nonzero()[0])
    return sorted(Preferences.of(federation).labels[first])


def _stands_for(chosen: torch.Tensor, groups: torch.Tensor) -> dict[int, int]:
    """What each cluster serves: the group of most of its clients. A server that set the task up knows it."""
    serves = {}
    for cluster in range(5):
        members = groups[chosen == cluster]
        serves[cluster] = int(members.mode().values) if len(members) else cluster
    return serves
