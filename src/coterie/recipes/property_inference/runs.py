"""One federation trained, attacked and judged: the job that every table and figure of paper 000 is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.attacks.base import Suspicions
from coterie.attacks.contrast import Contrast
from coterie.attacks.others import Rules
from coterie.attacks.property import Known, PassiveProperty, PropertyNotes, PropertyWatch, property_threat
from coterie.attacks.property_active import ActiveProperty
from coterie.attacks.updates import Features, Imitation, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.data.partition.property import Control, PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.defences.regularise import L2, Dropout
from coterie.errors import require
from coterie.flow.guard import Defence
from coterie.flow.imitated import imitated
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.sgd import Local
from coterie.measure.aggregates import Steadiness
from coterie.measure.judge import YesNo, judge
from coterie.measure.main_task import main_task_auc
from coterie.measure.witness import Witness
from coterie.protocols.base import ModelTrainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.recipes.property_inference.tasks import REVIEWS, Detail, Task, task
from coterie.recipes.property_inference.watched import ROUNDS_HELD, Watched
from coterie.recipes.settings import Scale
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape

CLUSTERS = 2  # the paper never says how many
CLIP = 1.0  # nor at what norm DP-SGD clips
DELTA = 1e-5
GROWN = 1200  # imagined aggregates for a forest: of all of them it would take longer than the rest of a quick cell
READERS: Mapping[str, Features] = {"contrast_auc": Contrast(), "auc": magnitudes}  # by measure
FIGURES = {("C", 5): "2", ("D", 13): "3"}  # by task and clients: the figure that shows its aggregates; 4 has them all


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
    keep_own: bool = False  # leave the adversary's own upload in what it looks at, to compare with
    as_published: bool = False  # labels not matched, a plain random start, the choice on the training batch

    @property
    def key(self) -> str:
        parts = [self.task, self.method, f"{self.clients}clients", self.control]
        parts += [f"gamma{self.gamma:g}"] if self.gamma is not None else []
        for name in ("dropout", "penalty", "sigma"):
            parts += [f"{name}{getattr(self, name):g}"] if getattr(self, name) else []
        parts += [f"purity{self.purity:g}"] if self.purity < 1 else []
        parts += ["own"] if self.keep_own else []
        return "-".join(parts + (["published"] if self.as_published else []))

    @property
    def pictured(self) -> bool:
        """Whether a figure shows it: the passive attack on what a table has, undefended."""
        plain = Plan(self.task, self.method, self.clients, as_published=self.as_published)
        return self == plain and (self.task, self.clients) in FIGURES

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
    others: int
    each: int
    pairs: int


def size(scale: Scale, letter: str) -> Size:
    """Quick: small pictures or short texts, a learning rate that is higher but stable, a property batch every third
    round. Rounds that are not scored cost the attack nothing, so that there are many.
    """
    rate = {True: 0.05, False: 0.01}[letter in REVIEWS]  # the paper's Table 1
    if scale is Scale.PAPER:
        rounds = {True: 500, False: 5000}[letter in REVIEWS]
        return Size(Detail(None), 100, rounds - 100, 5, Local(1, None, 32, rate), 6, 3, 8)
    fast = Local(1, None, 32, {True: 0.2, False: 0.02}[letter in REVIEWS])
    return Size(Detail(16, tokens=30, vocabulary=2000), 150, 75, 3, fast, 8, 8, 24)


def attacked(
    plan: dict[str, Any],
    seed: int,
    scale: str,
    data: str | None,
    rounds: int | None = None,
    kept_in: Path | None = None,
) -> Result:
    """Train, attack, judge; ``rounds`` ends it earlier."""
    whole = size(Scale(scale), plan["task"])
    if rounds is not None:
        fewest = whole.warmup + 2 * whole.every
        require(rounds >= fewest, "rounds", rounds, f"must be at least {fewest}: {whole.warmup} of them are not scored")
        whole = replace(whole, scored=rounds - whole.warmup)
    return Cell(Plan(**plan), whole, Rng.seeded(seed)).run(data, kept_in)


@dataclass(frozen=True)
class Cell:
    plan: Plan
    size: Size
    rng: Rng

    def run(self, data: str | None, kept_in: Path | None = None) -> Result:
        chosen = task(self.plan.task, data, self.size.detail, self.rng.child("data"))
        split = self.split(chosen)
        federation = split.split(chosen.examples, self.rng.child("partition"))
        attack = self.attack(chosen, split.auxiliary(federation))
        watched = self.watched(chosen, federation, attack, kept_in)
        with watched.ring as ring:
            utility = main_task_auc(ring, watched.run())
        truth, guesses = watched.witness.property_truth(federation), watched.guesses()
        plane = {"pictures": watched.steadiness.picture(truth, self.rng)} if self.plan.pictured else {}
        return {
            "task": chosen.words,
            "main_auc": utility,
            **self.judged(guesses, truth),
            "observations": observations(guesses, watched.witness, federation),
            "cosines": watched.steadiness.cosines,
            "sizes_read": sizes_read(watched.watch.notes, watched.witness),
            "guarantee": self.guarantee(federation),
            "cost": watched.cost,
            **plane,
        }

    def watched(
        self, chosen: Task, federation: Federation, attack: PassiveProperty, kept_in: Path | None = None
    ) -> Watched:
        tape, witness = Tape([attack.threat], keep=ROUNDS_HELD), Witness()
        insiders = [attack] if isinstance(attack, ActiveProperty) else []
        ring = Ring(
            self.protocol,
            federation,
            chosen.model,
            self.plan.defence,
            Roots.same(self.rng),
            tape,
            insiders,
            witness,
            processes=0,
        )
        known = Known.of(self.split(chosen).auxiliary(federation))
        watch = PropertyWatch(attack, known, self.rng.child("attack"), tuple(READERS.values()))
        return Watched(ring, tape, watch, Steadiness(self.size.warmup, self.plan.pictured), witness, kept_in)

    def split(self, chosen: Task) -> PropertySplit:
        return PropertySplit(
            self.plan.clients,
            chosen.tag,
            chosen.value,
            every=self.size.every,
            warmup=self.size.warmup,
            purity=self.plan.purity,
            matched=not self.plan.as_published,
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
        batch = self.local.batch_size  # the paper's clients choose by the loss on the current batch; here on another
        plain = self.plan.as_published
        return Ifca(
            rounds,
            self.local,
            weighting="equal",
            clusters=CLUSTERS,
            candidates=0 if plain else Ifca.candidates,
            choose_on=batch,
            choose_on_batch=plain and not self.local.poisson,
        )

    def attack(self, chosen: Task, auxiliary: Auxiliary) -> PassiveProperty:
        guard = self.plan.defence.client
        model = chosen.model.with_dropout(guard.dropout) if guard.dropout else chosen.model
        settings: dict[str, Any] = {
            "imitation": Imitation(model, self.local, imitated(guard)),
            "threat": property_threat(PropertySplit.attacker),
            "warmup": self.size.warmup,
            "others": max(self.size.others, self.plan.clients - 2),
            "each": self.size.each,
            "pairs": self.size.pairs,
            "most_grown": GROWN,
            "rules": Rules.of(self.plan.clients, self.protocol.slots),
            "keep_own": self.plan.keep_own,
            "skew": None if self.plan.as_published else PassiveProperty.skew,
        }
        if self.plan.gamma is None:
            return PassiveProperty(**settings)
        return ActiveProperty(**settings, data=auxiliary, gamma=self.plan.gamma)

    def judged(self, guesses: Sequence[Suspicions], truth: YesNo) -> Result:
        """AUC over all observations, as published, and within clusters, by each way of looking."""
        pooled = replace(truth, strata=None)
        result: Result = {}
        for name, guess in zip(READERS, guesses, strict=True):
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


def sizes_read(notes: PropertyNotes, witness: Witness) -> float | None:
    """In which share of rounds the adversary read the size of its own cluster right; None if it was in none."""
    true = witness.sizes()
    found = [size == true[key] for key, size in zip(notes.keys, notes.sizes, strict=True) if size]
    return sum(found) / len(found) if found else None


def observations(guesses: Sequence[Suspicions], witness: Witness, federation: Federation) -> list[list[float]]:
    """(round, cluster, clients in it, property used, a score by each reader) of everything that was scored."""
    answers, sizes = witness.property_truth(federation).answers, witness.sizes()
    return [
        [*key, sizes[key], int(answers[key]), *(round(guess.scores[key], 4) for guess in guesses)]  # type: ignore[misc,index]
        for key in guesses[0].scores
        if key in answers
    ]
