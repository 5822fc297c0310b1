"""A client of the victim's cluster that learns to draw the victim's data (paper 004, Algorithm 2).

Every round the insider makes a discriminator of the cluster's model and of what it tapped of the victim's last upload,
gives it one more class for what is made up, and trains a conditional generator against it. In its active phase it puts
pictures that the generator made, under the wrong label, among its own training data, so that the others' models learn
to tell them from theirs, and tell the generator how.

Where the paper is silent or cannot be followed:

- The ``x`` of its Equations 2 to 4 is "ground truth", which no attacker has: here it is the attacker's *own* samples.
- The discriminator is loaded anew every round, and trained locally on the attacker's own samples and on fakes.
- A generator against a frozen classifier draws noise. What draws the victim's pictures is everything else that the view
  holds: how the victim's model moved in each round that was tapped, which the pictures must explain (as in gradient
  inversion, by one generator for all rounds), and what the attacker's own pictures look like patch by patch (``Bout``).
  Where nothing is tapped, how the cluster's model moved stands in for the victim's.
- The victim may hold its pictures otherwise than the attacker: with ``turns``, its own samples stand for ``x`` turned
  by the angle at which they explain best how the victim's model moved.
- What is tapped was sent in the round before: when the insider answers, the victim has not yet.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.attacks.base import Pictures
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import InvalidInput, NotPermitted, require, require_count
from coterie.learn.generative.duel import Bout, Kept, Moved, Samples, fight, imagine, last_layer, with_one_more_class
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.generative.turning import angles, strains, turned
from coterie.learn.models.model import Model, outputs
from coterie.learn.params import Params, map_leaves, pick, subtract
from coterie.learn.sgd import Local
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.messages import TRAIN, Contributions, Down, Up
from coterie.wire.view import OVERHEARD, Entries, ThreatModel, View

TRIED = 100  # samples of its own that are turned to find the angle, at most
EARLY = 3  # rounds after which the angle is no longer doubted
FIRST = 1  # rounds whose distance from the samples sets the threshold of the hybrid loss


def eavesdropper(attacker: int, victim: int, share: float, entries: Entries = Entries.RANDOM) -> ThreatModel:
    return ThreatModel(
        f"client {attacker} that taps {share:.0%} of client {victim}",
        clients=frozenset({attacker}),
        taps=frozenset({victim}) if share else frozenset(),
        share=share,
        entries=entries,
        knows="its own data, the model and how clients train",
    )


@dataclass(frozen=True)
class CganReconstruction:
    """``data`` is the attacker's own. ``fake`` is the model's output for what is made up, if it has one to spare;
    without, the attacker's copy is given one, and its uploads label fakes as the class after their own.

    ``active_from`` is the round from which it poisons its uploads with at most ``poison`` of fakes; None: never.
    ``beyond`` moves the discriminator past what was tapped, away from where the victim set out: 0 takes it as it is.
    ``recall`` rounds are remembered to be explained, from the first: early updates are of all pictures alike.
    ``to_be_read`` draws what a person can read, and less of what is the victim's alone.
    """

    threat: ThreatModel
    victim: int
    model: Model
    local: Local
    data: Auxiliary = field(repr=False)
    bout: Bout = field(default_factory=Bout)
    fake: int | None = None
    active_from: int | None = 2
    poison: float = 0.25
    beyond: float = 1.0
    recall: int = 12
    turns: int = 1  # angles round a full turn at which its own samples are tried; 1: they stay as they are
    latent: int = 64
    width: int = 24
    each: int = 10  # pictures of a class in its guess

    def __post_init__(self) -> None:
        require(0 <= self.poison < 1, "poison", self.poison, "must lie in [0, 1): a share of what it trains on")
        require(self.beyond >= 0, "beyond", self.beyond, "must not be negative")
        require(self.recall >= 0, "recall", self.recall, "must not be negative: a number of rounds")
        require_count("turns", self.turns, 1, 360)
        own = self.data.whole()
        require(own.x.dim() == 4, "data", tuple(own.x.shape), "must be pictures (examples, channels, rows, columns)")

    def to_be_read(self, turns: int = 24) -> CganReconstruction:
        """The same attacker, who draws its own samples of a class as the victim would hold them."""
        bout = replace(self.bout, likeness=5.0, every=4, smooth=0.2, contrast=0.3, averaged=0.99)
        return replace(self, bout=bout, turns=turns)

    # -- what it does ------------------------------------------------------------------------------------------------

    def answer(self, asked: Down, honest: Contributions, memory: Memory, rng: Rng) -> Contributions:
        """Learns from what it was given and overheard, and in the active phase sends something else."""
        if asked.kind != TRAIN:
            return honest
        given = own_model(asked, honest)
        heard = memory.get(OVERHEARD, {}).get(self.victim)
        self.learn(given, upload_of(heard), asked.round, memory, rng)
        if self.active_from is None or asked.round < self.active_from:
            return honest
        sent = self.poisoned(given, memory["generator"], rng)
        return replace(honest, values={name: sent[name].expand_as(leaf) for name, leaf in honest.values.items()})

    def learn(self, given: Params, tapped: Params | None, round: int, memory: Memory, rng: Rng) -> None:
        """One bout of the generator against what is known of the victim's model now."""
        start, fake = mixed(given, tapped, memory.get("given"), self.beyond), self.fake
        if "given" in memory and len(memory.get("seen", [])) < self.recall:
            moved = subtract(given if tapped is None else tapped, memory["given"])
            memory["seen"] = [*memory.get("seen", []), (memory["given"], moved)]
            if self.turns > 1:
                self.turn(memory)
        if fake is None:
            start, fake = with_one_more_class(start, memory.get("fakes"))
        after = fight(
            self.bout,
            self.generator,
            memory.get("generator"),
            self.discriminate,
            start,
            turned(self.samples, memory.get("angle", 0.0)),
            fake,
            memory.get("threshold", float("inf")),
            rng,
            [Moved(*one) for one in memory.get("seen", [])],
        )
        memory["generator"], memory["given"] = after.generator, dict(given)
        if self.fake is None:
            memory["fakes"] = {name: after.discriminator[name][-1] for name in last_layer(given) if name}
        if round < FIRST or "threshold" not in memory:
            memory["threshold"] = after.apart
        memory["losses"] = [*memory.get("losses", []), (round, after.generator_loss, after.discriminator_loss)]

    def turn(self, memory: Memory) -> None:
        """Finds how the victim holds its pictures: by the first updates, in which there is most of it."""
        seen, by = memory["seen"], angles(self.turns, self.samples)
        if len(seen) <= EARLY:
            some = Samples(self.samples.x[:TRIED], self.samples.y[:TRIED])
            found = strains(Moved(*seen[-1]), self.discriminate, some, by)
            memory["strains"] = memory.get("strains", 0.0) + found
            memory["angle"] = by[int(memory["strains"].argmin())]

    def poisoned(self, given: Params, kept: Kept, rng: Rng) -> dict[str, Tensor]:
        """What training on its own data and on fakes under a wrong label makes of the model."""
        own = self.data.whole()
        count = int(len(own) * self.poison / (1 - self.poison))
        each = -(-count // own.classes)
        made = imagine(self.generator, kept, max(each, 1), rng.child("fakes"))
        labels = torch.arange(own.classes).repeat_interleave(made.shape[1])
        chosen = torch.randperm(len(labels), generator=rng.child("chosen").torch())[:count]
        wrong = (labels + 1) % own.classes if self.fake is None else torch.full_like(labels, self.fake)
        x, y = torch.cat([own.x, made.flatten(0, 1)[chosen]]), torch.cat([own.y, wrong[chosen]])
        merged = Examples(x, y, max(own.classes, int(y.max()) + 1), "own and made up")
        rows = batches(len(merged), self.local, rng.child("batches"))
        update = Imitation(self.model, self.local).train(given, merged, rows, rng.child("training"))
        return map_leaves(lambda leaf, moved: leaf + moved[0], given, update)

    @property
    def samples(self) -> Samples:
        own = self.data.whole()
        return Samples(own.x, own.y)

    def discriminate(self, params: Params, x: Tensor) -> Tensor:
        return outputs(self.model, params, x)

    @property
    def generator(self) -> PictureGenerator:
        own = self.data.whole()
        channels, rows, columns = own.x.shape[1:]
        span = (float(own.x.min()), float(own.x.max()))
        return PictureGenerator(own.classes, (channels, rows, columns), self.latent, self.width, span)

    # -- what it says ------------------------------------------------------------------------------------------------

    def pictures(self, memory: Memory, rng: Rng) -> Pictures:
        """What it takes the victim's classes to look like, by what it has learnt while it took part."""
        if "generator" not in memory:
            raise InvalidInput("memory has no generator: the attacker was never asked to train")
        made = imagine(self.generator, memory["generator"], self.each, rng.child("pictures"))
        of: dict[Hashable, Tensor] = dict(enumerate(made))
        return Pictures(of)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Pictures:
        """The same from what was seen alone, afterwards: a recording will do."""
        view.last()
        memory: Memory = {}
        tapped: dict[str, Tensor] | None = None
        for round in view.rounds():
            sent = view.sent(round) if view.has_sent(round) else None
            mine = (
                [] if sent is None else [at for at, one in enumerate(sent.ids.tolist()) if one in self.threat.clients]
            )
            if sent is None or not mine:
                continue
            received = view.received(round)
            slot = int(sent.membership[mine[0]].argmax())
            given = pick(received.values, received.slots.tolist().index(slot))
            self.learn(given, tapped, round, memory, rng.child("round", round))
            theirs = [at for at, one in enumerate(sent.ids.tolist()) if one == self.victim]
            if theirs and self.victim in view.threat.parties:
                tapped = {name: leaf[theirs[0], 0] for name, leaf in sent.values.items()} or None
        if not memory:
            raise NotPermitted(f"{view.threat.name} sees nothing of a client of its own; the attack is an insider's")
        return self.pictures(memory, rng)


def own_model(asked: Down, honest: Contributions) -> dict[str, Tensor]:
    """The model that its client trains: of the slots that it was given, the one that it answers for."""
    numbers = asked.slots(torch.arange(len(asked.clients))).tolist()
    return pick(asked.published.values, numbers.index(int(honest.membership[0].argmax())))


def upload_of(heard: Up | None) -> dict[str, Tensor] | None:
    """One client's upload as it was overheard, NaN where it was not read; None if it was sealed, or nothing was."""
    if heard is None or heard.kind != TRAIN or not heard.sent.values:
        return None
    return {name: leaf[0, 0] for name, leaf in heard.sent.values.items()}


def mixed(given: Params, tapped: Params | None, before: Params | None, beyond: float) -> dict[str, Tensor]:
    """The victim's entries where they were read, the cluster's where not."""
    if tapped is None:
        return dict(given)
    mixture = {}
    for name, leaf in given.items():
        theirs = tapped[name].to(leaf.dtype)
        if beyond and before is not None:
            theirs = theirs + beyond * (theirs - before[name])
        mixture[name] = torch.where(theirs.isnan(), leaf, theirs)
    return mixture


def batches(size: int, local: Local, rng: Rng) -> Tensor:
    """(1, steps, batch) rows: shuffled passes over the data, cut into whole batches."""
    width = min(local.batch_size, size)
    steps = local.steps if local.epochs is None else local.epochs * max(1, size // width)
    draws = rng.torch()
    passes = -(-steps * width // size)
    order = torch.cat([torch.randperm(size, generator=draws) for _ in range(passes)])
    return order[: steps * width].reshape(1, steps, width)
