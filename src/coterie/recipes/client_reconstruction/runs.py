"""What the jobs of paper 004's tables do: one attack inside a federation, one count of costs."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from coterie.attacks.base import Pictures
from coterie.attacks.cgan import CganReconstruction, eavesdropper
from coterie.audit.curves import as_png
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation, Shards
from coterie.defences.adaptive_ldp import AdaptiveLdp, Budget, PlainLdp, strengths
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.flow.ask import AnyAsk
from coterie.flow.guard import Defence
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.generative.duel import Bout
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.measure.cost import forget_peak, peak_memory
from coterie.measure.likeness import (
    OTHERS,
    STRANGERS,
    Holders,
    Likeness,
    collapse,
    difference,
    identified,
    recognised,
)
from coterie.measure.utility import evaluate
from coterie.protocols.base import AnyTrainer
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.recipes.client_reconstruction.setups import ATTACKER, Setup
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.messages import TRAIN
from coterie.wire.view import Entries, ThreatModel

DELTA = 1e-5
SHOWN = 3  # pictures of a class in a gallery
SKETCHED = (1, 4, 10, 30)  # rounds after which one of each class is shown


@dataclass(frozen=True)
class Sizes:
    """How large everything is. The paper has no word on batch sizes or optimisers; these are ours."""

    each: int  # pictures a client
    rounds: int
    local: Local
    width: int  # of the network
    bout: Bout
    halved: bool  # 14 pixels a side in place of 28

    def model(self, federation: Federation) -> StridedCnn:
        """With one output to spare, as the paper's discriminator has."""
        channels, rows, columns = federation.examples.x.shape[1:]
        return StridedCnn(11, (channels, rows, columns), width=self.width)


SIZES = {
    "quick": Sizes(400, 40, Local(steps=15, batch_size=32, lr=0.15), 16, Bout(steps=10, batch=40), halved=True),
    "paper": Sizes(8000, 100, Local(epochs=2, batch_size=64, lr=0.1), 32, Bout(steps=100, batch=160), halved=False),
}


def defences(rounds: int) -> Mapping[str, Defence]:
    """Noise is relative to parameters of about 0.05. The proven one has as much as lets anything be learnt."""
    return {
        "none": Defence(),
        "plain": PlainLdp(1.0, 0.01),
        "adaptive": AdaptiveLdp(Budget(2.0, 0.5, rounds), 0.01),
        "clipped": ClippedLdp(1.0, 0.03),
    }


def reconstructed(
    data: str,
    clients: int,
    method: str,
    share: float,
    seed: int,
    scale: str,
    folder: str | None = None,
    defence: str = "none",
    entries: str = Entries.RANDOM.name,
    control: bool = False,
    active: bool = True,
    victim: int = 1,
    strength: float = 1.0,
    finer: int = 1,
    to_be_read: bool = False,
) -> Result:
    """One federation with one attacker in it, and all scores of what it draws."""
    sizes = SIZES[scale]
    sizes = replace(sizes, bout=replace(sizes.bout, steps=finer * sizes.bout.steps, batch=finer * sizes.bout.batch))
    setup = Setup(data, clients, sizes.each, sizes.halved, victim, control, folder)
    federation, truth = setup.federation(seed)
    if method == "CFL" and scale == "quick":  # of so few pictures the server does not find the clusters
        federation = first_half(federation)
    model, guard = sizes.model(federation), stronger(defences(sizes.rounds)[defence], strength)
    trainer = protocol("FL" if federation.clients < clients else method, sizes)
    threat = eavesdropper(ATTACKER, victim, share, Entries[entries])
    attack = attack_on(federation, model, sizes, threat, victim, active)
    attack = attack.to_be_read() if to_be_read else attack
    ring: AnyRing = Ring(trainer, federation, model, guard, Roots.seeded(seed), adversaries=[attack])
    started, sketches = time.monotonic(), Sketches(attack, ring, seed)
    with ring:
        state = ring.run(before_ask=sketches.note)
        accuracy = evaluate(ring, state)
    guess = sketches.now()
    promise = guard.guarantee(trainer.facts(federation, DELTA))
    there = [name for name in guess.of if len(truth.victim[name])]
    return {
        **scores(guess, truth),
        "accuracy": accuracy.mean,
        "cluster": together(ring, state, setup),
        "angle": ring.memory[-1].get("angle"),
        "losses": [list(map(float, row)) for row in ring.memory[-1]["losses"]],
        "sketches": [[round, [as_png(drawn[name][0]) for name in there]] for round, drawn in sketches.by_round.items()],
        "seconds": time.monotonic() - started,
        "epsilon": promise.epsilon if promise is not None and promise.proven else None,
        "true": [as_png(truth.victim[name][0]) for name in there],
        "drawn": [[as_png(one) for one in guess.of[name][:SHOWN]] for name in there],
    }


def attack_on(
    federation: Federation, model: Model, sizes: Sizes, threat: ThreatModel, victim: int, active: bool
) -> CganReconstruction:
    """With the attacker's own pictures, and an output of the model to spare for what is made up."""
    own = Auxiliary(replace(federation.examples.take(federation.train[ATTACKER]), classes=10))
    active_from = 2 if active else None
    return CganReconstruction(threat, victim, model, sizes.local, own, sizes.bout, fake=10, active_from=active_from)


@dataclass
class Sketches:
    """What the attacker draws after some rounds, with pixels in 0..1."""

    attack: CganReconstruction
    ring: AnyRing
    seed: int
    by_round: dict[int, Mapping[Hashable, Tensor]] = field(default_factory=dict)

    def note(self, ask: AnyAsk) -> None:
        if ask.kind == TRAIN and ask.round in SKETCHED:
            self.by_round[ask.round] = self.now().of

    def now(self) -> Pictures:
        drawn = self.attack.pictures(self.ring.memory[-1], Rng.seeded(self.seed).child("guess"))
        return Pictures({name: (found + 1) / 2 for name, found in drawn.of.items()})


def protocol(method: str, sizes: Sizes) -> AnyTrainer:
    if method == "FL":
        return FedAvg(rounds=sizes.rounds, local=sizes.local)
    return CosineKMeans(rounds=sizes.rounds, local=sizes.local, clusters=2)


def first_half(federation: Federation) -> Federation:
    """The attacker's cluster alone, as it is once the server has found it."""
    there = range(federation.clients // 2)
    train, test = (Shards.of([held[client] for client in there]) for held in (federation.train, federation.test))
    return replace(federation, train=train, test=test, groups=federation.groups[: len(there)])


def stronger(defence: Defence, strength: float) -> Defence:
    """The same with so many times the noise, to compare defences at equal accuracy."""
    if isinstance(defence, AdaptiveLdp | PlainLdp):
        return replace(defence, sensitivity=strength * defence.sensitivity)
    if isinstance(defence, ClippedLdp):
        return replace(defence, noise_multiplier=strength * defence.noise_multiplier)
    return defence


def together(ring: AnyRing, state: object, setup: Setup) -> bool:
    """Whether attacker and victim ended in one cluster."""
    chosen = ring.protocol.choose(ring.models(state), ring.everyone(state)).argmax(1)
    return bool(chosen[ATTACKER] == chosen[setup.victim])


def scores(guess: Pictures, truth: Holders) -> Result:
    likeness = Likeness.of(guess, truth)
    return {
        "similarity": likeness.similarity,
        "disc": likeness.disc,
        "wrong class": likeness.wrong_class,
        "others": likeness.others,
        "strangers": likeness.strangers,
        "own": likeness.own,
        "identified": identified(guess, truth).score,
        "chance": identified(guess, truth).chance,
        "beyond others": difference(guess, truth, OTHERS).score,
        "beyond strangers": difference(guess, truth, STRANGERS).score,
        "recognised": recognised(guess, truth).score,
        "collapse": collapse(guess, truth),
    }


# -- costs ------------------------------------------------------------------------------------------------------------


def cost(defence: str, seed: int, scale: str, folder: str | None = None) -> Result:
    """What a round of one client costs under a defence: operations, seconds, memory, bytes; and the defence alone."""
    sizes = replace(SIZES[scale], rounds=2)
    federation, _ = Setup("MNIST", 6, sizes.each, sizes.halved, folder=folder).federation(seed)
    alone = replace(
        federation,
        train=Shards.of([federation.train[0]]),
        test=Shards.of([federation.test[0]]),
        groups=torch.zeros(1, dtype=torch.int64),
    )
    model, guard = sizes.model(federation), defences(sizes.rounds)[defence]
    forget_peak()
    started, counter = time.process_time(), FlopCounterMode(display=False)
    ring: AnyRing = Ring(FedAvg(rounds=2, local=sizes.local), alone, model, guard, Roots.seeded(seed), processes=0)
    with ring, counter:
        ring.run()
    return {
        "operations": counter.get_total_flops() / 2,
        "seconds": (time.process_time() - started) / 2,
        "memory": float(peak_memory()),
        "bytes": ring.traffic.up_a_client,
        "noised": noised_parameters(guard, model),
    }


def noised_parameters(guard: Defence, model: StridedCnn) -> float:
    """The share of parameters that get noise at its full strength: what the paper's saving is a saving of."""
    leaves = model.init(0)
    total = sum(leaf.numel() for leaf in leaves.values())
    if isinstance(guard, AdaptiveLdp):
        parts = strengths(leaves, guard.layers, guard.lighter)
        strong = [leaf.numel() for name, leaf in leaves.items() if parts[name] == 1]
        return float(sum(strong)) / total
    return 0.0 if type(guard) is Defence else 1.0


def finite(value: float | None) -> float:
    return math.nan if value is None else value
