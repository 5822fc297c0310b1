"""One federation trained, attacked and judged: the job that every table and figure of paper 000 is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.attacks.base import Suspicions
from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.property_active import ActiveProperty
from coterie.attacks.updates import Imitation, directions, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.data.partition.property import Control, PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.defences.regularise import L2, Dropout
from coterie.errors import require
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.sgd import Local
from coterie.measure.aggregates import consecutive_cosines, pictured
from coterie.measure.judge import YesNo, judge
from coterie.measure.main_task import main_task_auc
from coterie.measure.witness import Witness
from coterie.protocols.base import ModelTrainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.recipes.property_inference.tasks import REVIEWS, Detail, Task, task
from coterie.recipes.settings import Scale
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

CLUSTERS = 2  # the paper never says how many
CLIP = 1.0  # nor at what norm DP-SGD clips
DELTA = 1e-5


@dataclass(frozen=True)
class Plan:
    """One cell of a table. ``gamma=None`` is the passive attack, 1 the active one, more the scaled-up one."""

    task: str
    method: str  # FL or CFL
    clients: int
    control: str = "none"
    gamma: float | None = None
    dropout: float = 0.0
    penalty: float = 0.0
    sigma: float = 0.0
    purity: float = 1.0  # the share of property data in the victim's property batches

    @property
    def key(self) -> str:
        parts = [self.task, self.method, f"{self.clients}clients", self.control]
        parts += [f"gamma{self.gamma:g}"] if self.gamma is not None else []
        for name in ("dropout", "penalty", "sigma"):
            parts += [f"{name}{getattr(self, name):g}"] if getattr(self, name) else []
        return "-".join(parts + ([f"purity{self.purity:g}"] if self.purity < 1 else []))

    @property
    def defence(self) -> Defence:
        chosen = [
            defence
            for used, defence in (
                (self.dropout, Dropout(self.dropout)),
                (self.penalty, L2(self.penalty)),
                (self.sigma, DpSgd(CLIP, self.sigma)),
            )
            if used
        ]
        require(len(chosen) <= 1, "defences", [type(one).__name__ for one in chosen], "must be one at a time")
        return chosen[0] if chosen else Defence()


@dataclass(frozen=True)
class Size:
    """How long and how finely one cell is run."""

    detail: Detail
    warmup: int
    scored: int
    every: int  # a property batch every so many rounds
    local: Local
    imagine_every: int
    others: int
    each: int


def size(scale: Scale, letter: str) -> Size:
    """Quick: small pictures or short texts, a higher learning rate, a property batch every third round.

    Not every other one: consecutive aggregates of a fast-learning model tend to oppose each other, and a schedule of
    the same period takes that for the property.
    """
    rate = {True: 0.05, False: 0.01}[letter in REVIEWS]  # the paper's Table 1
    if scale is Scale.PAPER:
        rounds = {True: 500, False: 5000}[letter in REVIEWS]
        return Size(Detail(None), 100, rounds - 100, 5, Local(1, None, 32, rate), 1, 6, 3)
    fast = Local(1, None, 32, {True: 0.5, False: 0.1}[letter in REVIEWS])
    return Size(Detail(16, tokens=30, vocabulary=2000), 150, 120, 3, fast, 4, 4, 3)


def attacked(plan: dict[str, Any], seed: int, scale: str, data: str | None, pictures: bool = False) -> Result:
    """Train, attack, judge. ``pictures`` adds the coordinates of Figures 2 and 3."""
    return Cell(Plan(**plan), size(Scale(scale), plan["task"]), Rng.seeded(seed)).run(data, pictures)


@dataclass(frozen=True)
class Cell:
    plan: Plan
    size: Size
    rng: Rng

    def run(self, data: str | None, pictures: bool) -> Result:
        chosen = task(self.plan.task, data, self.size.detail, self.rng.child("data"))
        split = self.split(chosen)
        federation = split.split(chosen.examples, self.rng.child("partition"))
        attack = self.attack(chosen, split.auxiliary(federation))
        start = time.perf_counter()
        view, witness, utility = self.train(chosen, federation, attack)
        trained = time.perf_counter()
        ways = (magnitudes, directions)
        guesses = attack.infer_by(view, split.auxiliary(federation), self.rng.child("attack"), ways)
        inferred = time.perf_counter()
        return {
            "task": chosen.words,
            "main_auc": utility,
            **self.judged(guesses, witness.property_truth(federation)),
            "observations": observations(guesses, witness, federation),
            "cosines": consecutive_cosines(view, self.size.warmup),
            "guarantee": self.guarantee(federation),
            "seconds": {"training": trained - start, "attack": inferred - trained},
            **({"pictures": pictured(view, witness, federation, self.size.warmup, self.rng)} if pictures else {}),
        }

    def split(self, chosen: Task) -> PropertySplit:
        return PropertySplit(
            self.plan.clients,
            chosen.tag,
            chosen.value,
            every=self.size.every,
            warmup=self.size.warmup,
            purity=self.plan.purity,
            control=Control(self.plan.control),
        )

    @property
    def local(self) -> Local:
        return replace(self.size.local, poisson=self.plan.sigma > 0)  # as the accountant needs it

    @property
    def protocol(self) -> ModelTrainer:
        """One round more than is scored: the last aggregate shows in what is published after it."""
        rounds = self.size.warmup + self.size.scored + 1
        if self.plan.method == "FL":
            return FedAvg(rounds, self.local, weighting="equal")
        batch = self.local.batch_size  # the paper's clients choose by the loss on the current batch
        return Ifca(rounds, self.local, weighting="equal", clusters=CLUSTERS, choose_on=batch)

    def attack(self, chosen: Task, auxiliary: Auxiliary) -> PassiveProperty:
        model = chosen.model.with_dropout(self.plan.dropout) if self.plan.dropout else chosen.model
        clip = CLIP if self.plan.sigma else None
        settings: dict[str, Any] = {
            "imitation": Imitation(model, self.size.local, clip, self.plan.sigma),
            "threat": property_threat(PropertySplit.attacker),
            "warmup": self.size.warmup,
            "imagine_every": self.size.imagine_every,
            "others": max(self.size.others, min(self.plan.clients, 6) - 1),
            "each": self.size.each,
            "sizes": (2, max(2, min(self.plan.clients, 6))),
        }
        if self.plan.gamma is None:
            return PassiveProperty(**settings)
        return ActiveProperty(**settings, data=auxiliary, gamma=self.plan.gamma)

    def train(self, chosen: Task, federation: Federation, attack: PassiveProperty) -> tuple[View, Witness, float]:
        witness = Witness()
        ring = Ring(
            self.protocol,
            federation,
            chosen.model,
            self.plan.defence,
            Roots.same(self.rng),
            Tape([attack.threat]),
            [attack] if isinstance(attack, ActiveProperty) else [],
            witness,
            processes=0,
        )
        with ring:
            state = ring.run()
            return ring.view(attack.threat), witness, main_task_auc(ring, state)

    def judged(self, guesses: Sequence[Suspicions], truth: YesNo) -> Result:
        """AUC over all observations, as published, and within clusters; by published features and by signed ones."""
        pooled = replace(truth, strata=None)
        result: Result = {}
        for name, guess in zip(("auc", "signed_auc"), guesses, strict=True):
            finding = judge(guess, pooled)
            result[name] = finding.score
            result[f"{name}_within"] = judge(guess, truth).score
            result[f"{name}_operating"] = vars(finding.operating) if finding.operating else None
        return result

    def guarantee(self, federation: Federation) -> Result | None:
        if not self.plan.sigma:
            return None
        stated = self.plan.defence.guarantee(self.protocol.facts(federation, DELTA))
        assert stated is not None
        return {"epsilon": stated.epsilon, "delta": DELTA, "statement": str(stated)}


def observations(guesses: Sequence[Suspicions], witness: Witness, federation: Federation) -> list[list[float]]:
    """(round, cluster, clients in it, property used, score, signed score) of everything that was scored."""
    answers, sizes = witness.property_truth(federation).answers, witness.sizes()
    published, signed = guesses
    return [
        [*key, sizes[key], int(answers[key]), round(score, 4), round(signed.scores[key], 4)]  # type: ignore[misc,index]
        for key, score in published.scores.items()
        if key in answers
    ]
