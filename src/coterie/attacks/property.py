"""Property inference from published models (paper 000: Kim et al., RAID 2023, after Melis et al. 2019).

The adversary is a client. From the models published in consecutive rounds it has each cluster's aggregate update, takes
its own upload out of it (``others``), makes aggregates of as many clients with and without the property from auxiliary
data, trains one random forest for all clusters on them, and scores the real ones. One score a (round, cluster).

Where the paper is silent or wrong: Algorithm 3 starts every imagined client from the model of the adversary's own
cluster (``w[i]``); the text's "for each cluster" needs ``w[j]``, which is used here. It does not say that the own
upload is taken out; Melis et al.'s code, which it builds on, does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.contrast import Contrast
from coterie.attacks.label_mix import Mix, label_mixes, mix_read, of_strangers
from coterie.attacks.others import Behind, Beliefs, Own, Rules, own_uploads, who_is_behind
from coterie.attacks.updates import Features, Imitation, Observed, aggregates, cut, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import require
from coterie.learn.params import Params, map_leaves, pick, stack
from coterie.rng import Rng
from coterie.wire.codec import register
from coterie.wire.view import ThreatModel, View

SIZED_BY = 6  # imagined clients by which a cluster's size is read in rounds whose aggregates are not imagined
SCORED_AT_ONCE = 256  # aggregates, so that their features need not lie side by side


def property_threat(attacker: int = 0) -> ThreatModel:
    return ThreatModel(
        "property inference",
        clients=frozenset({attacker}),
        knows="examples like the victim's, labelled with class and property; the architecture; how clients train",
    )


@dataclass(frozen=True)
class Known:
    """The auxiliary examples as one set: the first ``marked`` of them have the property."""

    examples: Examples
    marked: int

    @staticmethod
    def of(auxiliary: Auxiliary) -> Known:
        has, lacks = auxiliary.with_property, auxiliary.without_property
        both = Examples(torch.cat([has.x, lacks.x]), torch.cat([has.y, lacks.y]), has.classes, has.name)
        return Known(both, len(has))


@dataclass(frozen=True)
class PassiveProperty:
    """Algorithm 3, with its parameters' values in Melis et al.'s code where the paper gives none.

    Each round and cluster it imagines ``others`` clients, and ``each`` that are like the victim with and ``each`` that
    are like it without property data. From these it makes ``pairs`` aggregates of either kind, which differ in one
    client. The others' label mixes are first drawn from a Dirichlet of concentration ``skew``, because clients are not
    alike. What these moved tells which mix the real others have, and for a contrast others that have it are imagined in
    their place (``label_mix``). None gives all of them the auxiliary data's mix, as the paper does.

    ``keep_own`` leaves the own upload where it is and adds it to what is imagined, for a size that is drawn from the
    rules' range: worse where the server takes a mean, and here to be compared with.
    """

    imitation: Imitation
    threat: ThreatModel
    warmup: int = 0  # rounds that are not looked at
    imagine_every: int = 1  # so many rounds; all are scored
    others: int = 6
    each: int = 3
    pairs: int = 8
    rules: Rules = field(default_factory=Rules)
    keep_own: bool = False
    mix: tuple[float, float] = (0.2, 1.0)  # the range of the property's share in an imagined client's batch
    skew: float | None = 0.5
    trees: int = 100
    least_leaf: int = 5
    most_features: int = 5000  # a leaf of the model
    most_made: int = 8192  # imagined aggregates that are kept, a fair sample of all: the bound on memory
    most_grown: int = 2048  # of these, evenly chosen, that a forest is grown on
    features: Features = magnitudes  # as published; directions finds more of dense networks, and less of convolutions

    def __post_init__(self) -> None:
        require(self.others >= 1, "others", self.others, "must be at least 1")
        require(self.imagine_every >= 1, "imagine_every", self.imagine_every, "must be at least 1")
        require(self.each >= 1, "each", self.each, "must be at least 1")
        require(self.pairs >= 1, "pairs", self.pairs, "must be at least 1")
        require(self.most_made >= 2 * self.pairs, "most_made", self.most_made, "must hold a round's 2 * pairs")
        require(self.most_grown >= 2, "most_grown", self.most_grown, "must be at least 2")
        require(0 < self.mix[0] <= self.mix[1] <= 1, "mix", self.mix, "must be a range within (0, 1]")
        require(self.skew is None or self.skew > 0, "skew", self.skew, "must be positive, or None for no skew")

    @property
    def leaves_own(self) -> bool:
        """Whether the own upload stays in what is looked at."""
        return self.keep_own or not self.rules.averages

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        return self.infer_by(view, auxiliary, rng, (self.features,))[0]

    def infer_by(self, view: View, auxiliary: Auxiliary, rng: Rng, ways: Sequence[Features]) -> list[Suspicions]:
        """One guess for each way of making features. Imagining, which costs the most, is done once for all."""
        watch = PropertyWatch(self, Known.of(auxiliary), rng, tuple(ways))
        watch.look(view)
        return watch.guesses()

    # -- one round -------------------------------------------------------------------------------------------------

    def imagines(self, round: int) -> bool:
        return (round - self.warmup) % self.imagine_every == 0

    def imagined(self, observed: Observed, known: Known, rng: Rng, whole: bool = True) -> dict[str, Tensor]:
        """Updates (others + 2 each, ...) from the observed start: others, then the likes of the victim without and
        with property data. Not ``whole``: some of those without, enough to compare lengths with."""
        rows = self.rows(known, rng.child("clients").numpy())
        rows = rows if whole else rows[: min(SIZED_BY, self.others + self.each)]
        _, usual = self.imitation.local.shape(len(known.examples))
        return self.imitation.train(observed.start, known.examples, rows, rng.child("training"), observed.round, usual)

    def matched(
        self, observed: Observed, known: Known, updates: Params, seen: Params, behind: Behind, rng: Rng
    ) -> Params:
        """The clients imagined with ``rng``, the others anew with the label mix that is read off what was ``seen``."""
        count, plain = behind.others[1], self.others + self.each
        if self.skew is None or self.leaves_own or count < 2:
            return updates
        labels, classes = known.examples.y, known.examples.classes
        mixes = label_mixes(labels, self.rows(known, rng.child("clients").numpy())[:plain], classes)
        like = label_mixes(labels, torch.arange(known.marked, len(labels)).unsqueeze(0), classes)[0]
        mix = of_strangers(mix_read(pick(updates, torch.arange(plain)), mixes, seen), like, count)
        anew = rng.child("matched")
        rows = self.rows(known, anew.child("clients").numpy(), mix)[: self.others]
        _, usual = self.imitation.local.shape(len(labels))
        made = self.imitation.train(observed.start, known.examples, rows, anew, observed.round, usual)
        return map_leaves(lambda old, new: torch.cat([new, old[self.others :]]), updates, made)

    def aggregated(self, updates: Params, behind: Behind, rng: Rng) -> dict[str, Tensor]:
        """Aggregates (2 pairs, ...) of those who were imagined, the first half with the property."""
        own = behind.own.clients if self.leaves_own and behind.own is not None else 0
        if own:
            assert behind.own is not None
            mine = behind.own.update
            updates = {name: torch.cat([leaf, mine[name].unsqueeze(0)]) for name, leaf in updates.items()}
        weights = torch.from_numpy(self.averages(rng.child("aggregates").numpy(), behind.others, own)).float()
        return map_leaves(lambda leaf: torch.tensordot(weights, leaf, 1), updates)  # weights (2 pairs, clients)

    def behind(
        self,
        seen: Sequence[Observed],
        own: dict[int, Own],
        known: Known,
        updates: dict[int, Params],
        rng: Rng,
        beliefs: Beliefs,
    ) -> dict[int, Behind]:
        """Who stands behind each of a round's aggregates; ``updates`` are those imagined already, by cluster."""
        if self.leaves_own:
            low, high = self.rules.sizes
            return {
                observed.slot: Behind(here, 0.0, (max(low - mine, 1), max(high - mine, 1)))
                for observed in seen
                for here in (own.get(observed.slot),)
                for mine in (here.clients if here is not None else 0,)
            }

        def strangers(observed: Observed) -> Params:
            if observed.slot in updates:
                return pick(updates[observed.slot], torch.arange(self.others + self.each))
            return self.imagined(observed, known, rng.child("slot", observed.slot), whole=False)

        return who_is_behind(seen, own, self.rules, strangers, beliefs)

    def rows(self, known: Known, draws: np.random.Generator, mix: Mix | None = None) -> Tensor:
        """(others + 2 each, steps, batch): others, then the likes of the victim without and with property data.

        The others' label mixes are drawn, or are all ``mix``, the share of each class.
        Each holds as many records as the adversary does, where it depends on that how many steps it takes, or how much
        its batches differ in size: a negative row is none.
        """
        labels = known.examples.y.numpy()
        marked, plain = np.split(np.arange(len(labels)), [known.marked])
        steps, _ = self.imitation.local.shape(len(labels))
        sizes = self.imitation.batch_sizes(len(labels), (self.others + 2 * self.each, steps), draws)
        shape = (steps, int(sizes.max()))
        parts = [draws.choice(plain, shape, p=self.preference(labels[plain], draws, mix)) for _ in range(self.others)]
        parts += [draws.choice(plain, shape) for _ in range(self.each)]
        for share, size in zip(draws.uniform(*self.mix, self.each), sizes[-self.each :], strict=True):
            mixed = draws.choice(plain, shape)
            counts = np.rint(share * size).clip(1).astype(int)[:, None]  # (steps, 1)
            most = int(counts.max())
            has = draws.choice(marked, (steps, most))
            mixed[:, :most] = np.where(np.arange(most) < counts, has, mixed[:, :most])
            parts.append(mixed)
        return cut(np.stack(parts), sizes)

    def preference(
        self, labels: NDArray[np.int64], draws: np.random.Generator, mix: Mix | None = None
    ) -> NDArray[np.float64] | None:
        """With which probability an imagined other draws each row."""
        if self.skew is None:
            return None
        present, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weights = (draws.dirichlet(np.full(len(present), self.skew)) if mix is None else mix[present]) + 1e-9
        chances = (weights / counts)[which]
        shares: NDArray[np.float64] = chances / chances.sum()
        return shares

    def averages(self, draws: np.random.Generator, behind: tuple[int, int], own: int = 0) -> NDArray[np.float64]:
        """(2 pairs, imagined clients [and the adversary's own]): whose mean each imagined aggregate is.

        Where more stand behind it than are imagined, some stand in for several.
        """
        weights = np.zeros((2 * self.pairs, self.others + 2 * self.each + (own > 0)))
        for number, row in enumerate(weights):
            strangers = int(draws.integers(behind[0], behind[1] + 1)) - 1
            np.add.at(row, draws.choice(self.others, strangers, replace=strangers > self.others), 1)
            first = self.others + (self.each if number < self.pairs else 0)
            row[first + draws.integers(self.each)] = 1
            if own:
                row[-1] = own
        means: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
        return means

    def forest(self, made: Tensor, has: Tensor, rng: Rng):  # type: ignore[no-untyped-def]
        from sklearn.ensemble import RandomForestClassifier

        seed = rng.child("forest").seed() % 2**32
        forest = RandomForestClassifier(self.trees, min_samples_leaf=self.least_leaf, random_state=seed, n_jobs=1)
        return forest.fit(made.numpy(), has.numpy())


# -- as the rounds go by ----------------------------------------------------------------------------------------------


@register
@dataclass
class PropertyNotes:
    """What the attack keeps of the rounds that it has looked at: of models no more than the server does.

    Of imagined aggregates it keeps a fair sample of bounded size, of real ones the features, for each way of making
    them.
    """

    following: int = 0  # the next round to look at
    keys: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # by key: the own cluster's as it was read; 0 for another cluster
    beliefs: Beliefs = field(default_factory=dict)  # how likely each size of the own cluster is, by the rounds so far
    seen: list[list[Tensor]] = field(default_factory=list)  # for each way, features (1, features) by key
    made: list[Tensor] = field(default_factory=list)  # for each way, (rows, features)
    has: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))  # (rows,)
    count: int = 0  # how many were made in all
    moments: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by cluster: the server's optimiser's
    missed: bool = False  # whether there was a round that was not seen, so that moments may be unknown


@dataclass
class PropertyWatch:
    """The attack as the rounds go by: ``look`` whenever a round has passed, and ``guesses`` at any time.

    Looking round by round at a tape that forgets gives the same as looking once at a tape that has everything.
    """

    attack: PassiveProperty
    known: Known
    rng: Rng
    ways: tuple[Features, ...]
    notes: PropertyNotes = field(default_factory=PropertyNotes)

    def __post_init__(self) -> None:
        every, contrasts = self.attack.imagine_every, any(isinstance(way, Contrast) for way in self.ways)
        require(not contrasts or every == 1, "imagine_every", every, "must be 1: a contrast is with the same round's")

    def look(self, view: View) -> None:
        """At all rounds whose outcome has been published since the last time."""
        warmup, notes = self.attack.warmup, self.notes
        first = max(warmup if self.attack.rules.server is None else 0, notes.following)
        for round, group in groupby(aggregates(view, first), key=lambda observed: observed.round):
            seen = sum(notes.following <= one < round for one in view.rounds())
            notes.missed = notes.missed or seen < round - notes.following
            seen = self.means(list(group))
            if seen and round >= warmup:
                self._note(seen, view)
            notes.following = round + 1

    def means(self, seen: list[Observed]) -> list[Observed]:
        """A round's moves as what the clients' means asked for, before the server's optimiser.

        Where a round was missed, what that remembers is unknown for good, and nothing can be said any more.
        """
        rule, notes = self.attack.rules.server, self.notes
        if rule is None:
            return seen
        found = []
        for observed in () if notes.missed else seen:
            mean, notes.moments[observed.slot] = rule.undone(observed.update, notes.moments.get(observed.slot, {}))
            found.append(replace(observed, update=mean))
        return found

    def guesses(self) -> list[Suspicions]:
        """One for each way of making features."""
        notes = self.notes
        require(
            bool(notes.made) and len(notes.keys) > 0,
            "aggregates",
            len(notes.keys),
            f"were seen after {self.attack.warmup} rounds of warm-up; run more rounds",
        )
        found = []
        for way, made, seen in zip(self.ways, notes.made, notes.seen, strict=True):
            read = self._reader(way, made)
            scores: dict[Hashable, float] = {}
            for start in range(0, len(seen), SCORED_AT_ONCE):
                block = torch.cat(seen[start : start + SCORED_AT_ONCE])
                keys = notes.keys[start : start + SCORED_AT_ONCE]
                scores |= dict(zip(keys, read(block).tolist(), strict=True))
            found.append(Suspicions(scores))
        return found

    def _reader(self, way: Features, made: Tensor) -> Callable[[Tensor], Tensor]:
        kept = min(self.notes.count, self.attack.most_made)
        made, has = made[:kept], self.notes.has[:kept]
        if isinstance(way, Contrast):
            return way.reader(made, has)
        grown = min(kept, self.attack.most_grown)
        chosen = torch.arange(grown) * kept // grown
        forest = self.attack.forest(made[chosen], has[chosen], self.rng)
        return lambda block: torch.from_numpy(forest.predict_proba(block.numpy())[:, 1])

    def _note(self, seen: list[Observed], view: View) -> None:
        attack, round = self.attack, seen[0].round
        streams = self.rng.child("round", round)
        updates: dict[int, Params] = {}
        if attack.imagines(round):
            for observed in seen:
                updates[observed.slot] = attack.imagined(observed, self.known, streams.child("slot", observed.slot))
        behind = attack.behind(seen, own_uploads(view, seen), self.known, updates, streams, self.notes.beliefs)
        for observed in seen:
            here = behind[observed.slot]
            if here.alone:  # it says nothing of anybody else
                continue
            update = observed.update if attack.leaves_own else here.without_own(observed.update)
            rows = self._looked(stack([update]))
            if attack.imagines(round):
                own_streams = streams.child("slot", observed.slot)
                made = self._made(observed, updates[observed.slot], update, here, own_streams)
                levels = [
                    part.mean(0) if isinstance(way, Contrast) else torch.zeros(())
                    for way, part in zip(self.ways, made, strict=True)
                ]
                rows = [part - level for part, level in zip(rows, levels, strict=True)]
                self._keep_made([part - level for part, level in zip(made, levels, strict=True)], own_streams)
            self._keep_seen((round, observed.slot), rows)
            self.notes.sizes.append(here.own.clients + here.others[0] if here.own is not None else 0)

    def _made(self, observed: Observed, updates: Params, seen: Params, behind: Behind, rng: Rng) -> list[Tensor]:
        """The imagined aggregates' features by each way: contrasts are with others of the real ones' labels.

        A forest is shown what the published attack imagines; on the real others' labels it reads now more, now less.
        """
        made = self._looked(self.attack.aggregated(updates, behind, rng))
        if not any(isinstance(way, Contrast) for way in self.ways):
            return made
        matched = self.attack.matched(observed, self.known, updates, seen, behind, rng)
        if matched is updates:  # nothing was read, as published
            return made
        anew = self._looked(self.attack.aggregated(matched, behind, rng))
        return [
            own if isinstance(way, Contrast) else blind for way, own, blind in zip(self.ways, anew, made, strict=True)
        ]

    def _looked(self, updates: Params) -> list[Tensor]:
        """Their features by each way; a contrast of features that are looked at anyway is made of these."""
        found: dict[Features, Tensor] = {}
        for way in self.ways:
            features = way.features if isinstance(way, Contrast) else way
            if features not in found:
                found[features] = features(updates, self.attack.most_features)
        return [way.scaled(found[way.features]) if isinstance(way, Contrast) else found[way] for way in self.ways]

    def _keep_seen(self, key: tuple[int, int], rows: Sequence[Tensor]) -> None:
        self.notes.keys.append(key)
        self.notes.seen = self.notes.seen or [[] for _ in self.ways]
        for row, seen in zip(rows, self.notes.seen, strict=True):
            seen.append(row)

    def _keep_made(self, rows: Sequence[Tensor], rng: Rng) -> None:
        """Vitter's algorithm R: every aggregate ever made is as likely to be among those kept."""
        attack, notes = self.attack, self.notes
        draws = rng.child("kept").numpy()
        has = torch.arange(2 * attack.pairs) < attack.pairs
        for number in range(2 * attack.pairs):
            place = notes.count if notes.count < attack.most_made else int(draws.integers(notes.count + 1))
            notes.count += 1
            if place < attack.most_made:
                self._put(place, [row[number] for row in rows], bool(has[number]))

    def _put(self, place: int, rows: Sequence[Tensor], has: bool) -> None:
        notes = self.notes
        if place >= len(notes.has):  # room for twice as many
            room = min(max(64, 2 * len(notes.has)), self.attack.most_made)
            notes.made = [
                torch.cat([old, torch.zeros(room - len(old), len(row))])
                for old, row in zip(notes.made or [torch.zeros(0, len(row)) for row in rows], rows, strict=True)
            ]
            notes.has = torch.cat([notes.has, torch.zeros(room - len(notes.has), dtype=torch.bool)])
        for made, row in zip(notes.made, rows, strict=True):
            made[place] = row
        notes.has[place] = has
