"""Paper 000, Appendix A: obtaining all clusters' models from Sattler's server, and property inference on top of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.attacks.acquisition import ModelAcquisition, acquisition_threat
from coterie.attacks.others import Rules
from coterie.attacks.property import PassiveProperty
from coterie.attacks.updates import Imitation, directions, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation, Shards
from coterie.data.partition.property import Control, PropertySplit
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.measure.judge import ClusterCounts, judge
from coterie.measure.witness import Witness
from coterie.protocols.sattler import Sattler
from coterie.recipes.property_inference.runs import Size, size
from coterie.recipes.property_inference.tasks import Task, task
from coterie.recipes.settings import Scale
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

CLUSTERS = 3
CLIENTS = 6


def with_newcomers(federation: Federation, count: int, first_round: int) -> Federation:
    """Further clients of the attacker's, who hold its data and come one a round."""
    rows = [federation.train[client] for client in range(federation.clients)]
    own = rows[PropertySplit.attacker]
    tests = [federation.test[client] for client in range(federation.clients)]
    joins = torch.tensor([0] * federation.clients + [first_round + number for number in range(count)])
    return replace(
        federation,
        train=Shards.of([*rows, *[own] * count]),
        test=Shards.of([*tests, *[tests[PropertySplit.attacker]] * count]),
        groups=torch.cat([federation.groups, torch.full((count,), -1)]),
        joins=joins,
    )


@dataclass(frozen=True)
class Siege:
    """Some newcomers against one server."""

    newcomers: int
    control: str
    size: Size
    rng: Rng

    def run(self, data: str | None) -> Result:
        chosen = task("C", data, self.size.detail, self.rng.child("data"))
        split = PropertySplit(
            CLIENTS, chosen.tag, chosen.value, 0.2, self.size.every, self.size.warmup, control=Control(self.control)
        )
        base = split.split(chosen.examples, self.rng.child("partition"))
        federation = with_newcomers(base, self.newcomers, self.size.warmup - self.newcomers - 1)
        attack = ModelAcquisition(acquisition_threat(frozenset(range(CLIENTS, CLIENTS + self.newcomers))))
        view, witness = self.train(chosen, federation, attack)
        auxiliary = split.auxiliary(base)
        obtained = judge(attack.infer(view, auxiliary, self.rng), ClusterCounts(witness.slots), attack.threat.name)
        return {
            "task": chosen.words,
            "clusters": witness.slots[max(witness.slots)],
            "obtained": obtained.score,
            **self.inferred(chosen, view, witness, federation, auxiliary),
        }

    def train(self, chosen: Task, federation: Federation, attack: ModelAcquisition) -> tuple[View, Witness]:
        rounds = self.size.warmup + self.size.scored + 1
        eager = {"progress": 0.0, "least": 1, "most": CLUSTERS, "separation": 1.0}
        protocol = Sattler(rounds, self.size.local, weighting="equal", **eager)  # type: ignore[arg-type]
        witness, roots = Witness(), Roots.same(self.rng)
        ring = Ring(
            protocol,
            federation,
            chosen.model,
            roots=roots,
            tape=Tape([attack.threat]),
            adversaries=[attack],
            witness=witness,
            processes=0,
        )
        with ring:
            ring.run()
        return ring.view(attack.threat), witness

    def inferred(
        self, chosen: Task, view: View, witness: Witness, federation: Federation, auxiliary: Auxiliary
    ) -> Result:
        """Property inference on the models obtained: only what is seen can be scored."""
        attack = PassiveProperty(
            Imitation(chosen.model, self.size.local),
            view.threat,
            warmup=self.size.warmup,
            others=self.size.others,
            each=self.size.each,
            pairs=self.size.pairs,
            rules=Rules((1, CLIENTS + self.newcomers)),
        )
        truth = witness.property_truth(federation)
        guesses = attack.infer_by(view, auxiliary, self.rng.child("attack"), (magnitudes, directions))
        asked = [key for key, answer in truth.answers.items() if answer and key[0] >= self.size.warmup]  # type: ignore[index]
        reached = sum(key in guesses[0].scores for key in asked)
        scores = [judge(guess, replace(truth, strata=None)).score for guess in guesses]
        return {"auc": scores[0], "signed_auc": scores[1], "reached": reached / max(len(asked), 1)}


def besieged(newcomers: int, control: str, seed: int, scale: str, data: str | None) -> Result:
    return Siege(newcomers, control, size(Scale(scale), "C"), Rng.seeded(seed)).run(data)
