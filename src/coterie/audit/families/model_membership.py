"""Membership in the models of the configured (clustered) federation: LiRA and RMIA, from three seats."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.shadows import KNOWS, METHODS, Asked, Rehearsed, Seat, ShadowMembership, final, seen
from coterie.attacks.span_membership import SpanMembership, spans
from coterie.attacks.update_membership import UpdateMembership
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.recorded import Recording
from coterie.audit.reference import ReferenceRun
from coterie.audit.rehearsals import Game, Rehearsals, clusters_used, looks_of, updates_of
from coterie.config.schema import Choice
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.learn.models.model import Model
from coterie.measure import members
from coterie.measure.exhibits import Chart, Suspected
from coterie.measure.findings import Finding
from coterie.measure.judge import YesNo, judge
from coterie.measure.roc import Curve
from coterie.protocols.base import Trainer
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

BY_UPDATES, BY_SPAN = "gradients in updates", "span of updates"
FIRST = next(iter(METHODS))
"""The comparison that rates at few false alarms, controls and curves over rounds are told of: fixed beforehand."""


class ModelMembership(Family):
    name = "membership in models"
    limit = "model_membership_auc"
    chance = 0.5
    paper = "LiRA (Carlini et al., S&P 2022) and RMIA (Zarifzadeh et al., ICML 2024), on cluster models"
    question = "Does anybody learn that a record was among those that a cluster's model was trained on?"
    threat = "A recipient of the final models; a curious client, which is given the models of every round; the server."
    method = (
        "The adversary holds the records in question and trains federations of its own on random parts of them: so it "
        "knows how sure a model is of each record where it was in and where it was out. Members are training rows, "
        "others the rows that clients are tested on; a record is compared with others of its cluster. The server looks "
        "at what the record's client sent. Whoever sees updates also solves for the weight with which each record's "
        "gradient is in them and, where the model is dense from its input on, asks whether the record lies in the span "
        "of what the first layer moved by. The control has only records that nobody trained on."
    )

    def admits(self, subject: Subject) -> str:
        return "" if isinstance(subject.launched, Trainer) else "needs a trainer of models"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("dpsgd", clip=1.0, noise_multiplier=1.0)]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return [seat.threat() for seat in Seat]

    def read(self, run: ReferenceRun) -> Evidence:
        case, settings, rng = run.case, run.subject.audit.model_membership, run.rng.child("members")
        assert isinstance(case.protocol, Trainer)
        assert case.model is not None
        views = {seat: run.view(seat.threat()) for seat in Seat}
        ran = min(case.protocol.rounds, views[Seat.UPLOADS].last() + 1)  # patience may have ended it
        examples, rounds = case.federation.examples, looks_of(ran)
        game = Game.of(case.federation, run.done.scores.choices.argmax(1), settings.records, rng)
        rehearsals = Rehearsals(
            replace(case.protocol, rounds=ran),
            examples,
            lambda rows: run.subject.dealt(examples, rows, case.seed),
            case.model,
            case.defence.unsealed,  # what is sealed adds up to the same models
            settings.share,
            settings.rehearsals,
        )
        attacker = Attacker(case.model, examples, game, rounds, views, case.defence.client.example_clip)
        attacker.rehearse(rehearsals, rng)
        found = [attacker.findings(seat, rng) for seat in Seat]
        shown = run.first and run.choice.kind == "none"
        charts = attacker.charts(found) if shown else []
        evidence = run.evidence([one for seat in found for one in seat.findings], charts=charts)
        return replace(evidence, suspected=attacker.exposed(found) if shown else ())

    def admits_recording(self, recording: Recording) -> str:
        if why := self.admits(recording.subject):
            return why
        if not recording.has_published:
            return "needs published models, and none was recorded"
        held, tested = recording.truth.held, recording.truth.tested
        if not held:
            return "needs to know who holds which rows (held in the truth) to ask about them"
        if not any(tested.values()):
            return "needs to know which rows clients kept for their tests (tested in the truth) to compare members with"
        last, rows = (
            max(max(part, default=0) for part in (*held.values(), *tested.values())),
            len(recording.subject.examples(recording.subject.seed)),
        )
        return "" if last < rows else f"clients held rows up to {last}, and [data] is others, 0 to {rows - 1}"

    def replay(self, recording: Recording, seed: int) -> Evidence:
        """The rows of ``[data]`` are asked about; who held which, and who kept which for its tests, is the truth's."""
        subject, rng = recording.subject, Rng.seeded(seed).child("members")
        settings, trainer = subject.audit.model_membership, recording.trainer
        examples = subject.examples(seed)
        client = recording.options.adversary[0]
        seats = [seat for seat in Seat if seat is not Seat.UPLOADS or recording.has_uploads]
        views = {seat: recording.view(seat.threat(client)) for seat in seats}
        model = recording.model(views[seats[0]], examples)
        federation = recording.truth.federation(examples)
        used = clusters_used(views[seats[0]], model, federation)
        last = max(view.last() for view in views.values()) + 1  # not every client is asked in the last round
        game = Game.of(federation, used, settings.records, rng)
        guard = recording.defence
        rehearsals = Rehearsals(
            replace(trainer, rounds=last),
            examples,
            lambda rows: subject.dealt(examples, rows, seed),
            model,
            guard.unsealed,
            settings.share,
            settings.rehearsals,
            tuple(seats),
        )
        attacker = Attacker(model, examples, game, looks_of(last), views, guard.client.example_clip)
        attacker.rehearse(rehearsals, rng)
        found = [attacker.findings(seat, rng) for seat in seats]
        findings = [one for seat in found for one in seat.findings]
        return Evidence.of_recording(findings, attacker.exposed(found), attacker.charts(found))


@dataclass(frozen=True)
class FromSeat:
    """What one seat found: the first comparison's guess besides."""

    seat: Seat
    guess: Suspicions
    findings: Sequence[Finding]


class Attacker:
    """One adversary's preparation, and its seats."""

    def __init__(
        self,
        model: Model,
        examples: Examples,
        game: Game,
        rounds: tuple[int, ...],
        views: Mapping[Seat, View],
        clip: float | None = None,
    ) -> None:
        self.model, self.examples, self.game, self.rounds = model, examples, game, rounds
        self.views, self.clip = views, clip
        self.rehearsed: Mapping[Seat, Rehearsed] = {}
        self.by_updates: dict[tuple[Seat, str], Suspicions] = {}

    @property
    def asked(self) -> Asked:
        return self.game.asked

    def rehearse(self, rehearsals: Rehearsals, rng: Rng) -> None:
        real = final(self.views[Seat.FINAL], self.model, self.examples, self.asked)[0]
        self.rehearsed = rehearsals.run(self.asked, real, self.rounds, rng.child("rehearsals"))

    def looks(self, seat: Seat) -> tuple[Seat, Tensor]:
        """How this seat really looks, and what it sees: a server that can read no upload reads published models."""
        view = self.views[seat]
        found = seen(seat, view, self.model, self.examples, self.asked, self.rounds)
        if seat is Seat.UPLOADS and bool(found.isnan().all()):
            return Seat.PUBLISHED, seen(Seat.PUBLISHED, view, self.model, self.examples, self.asked, self.rounds)
        return seat, found

    def findings(self, seat: Seat, rng: Rng) -> FromSeat:
        looking, looks = self.looks(seat)
        found: list[Finding] = []
        guesses = {}
        for method in METHODS:
            attack = ShadowMembership(looking, self.model, self.asked, self.rehearsed[looking], self.rounds, method)
            guess = attack.compare(looks)
            guess = guess if guess.scores else self.nothing()
            guesses[method] = guess
            told = members.findings(guess, self.game.truth, method, KNOWS)
            found += told if method == FIRST else told[:1]
        if seat is not Seat.FINAL:
            found += self._from_updates(seat, rng)
        curve = self._over_rounds(looking, looks)
        found[0] = replace(found[0], by_round=curve)
        found.append(members.control(guesses[FIRST], self.game.truth, FIRST, KNOWS, rng))
        named = [replace(one, adversary=seat.value) for one in found]
        return FromSeat(seat, guesses[FIRST], named)

    def _from_updates(self, seat: Seat, rng: Rng) -> list[Finding]:
        """By what records would have caused in what clients sent or clusters moved by, and by what that is made of."""
        found: list[Finding] = []
        for name in self._on_updates:
            guess = self._read_updates(name, seat, seat, rng)
            if not guess.scores and seat is Seat.UPLOADS:  # a server that can read no upload reads published models
                guess = self._read_updates(name, Seat.PUBLISHED, seat, rng)
            guess = guess if guess.scores else self.nothing()
            self.by_updates[seat, name] = guess
            found += members.findings(guess, self.game.truth, name, KNOWS)
            found.append(members.control(guess, self.game.truth, name, KNOWS, rng))
        return found

    @property
    def _on_updates(self) -> tuple[str, ...]:
        return (BY_UPDATES, BY_SPAN) if spans(self.model) else (BY_UPDATES,)

    def _read_updates(self, name: str, looking: Seat, seat: Seat, rng: Rng) -> Suspicions:
        view, examples = self.views[seat], Auxiliary(self.examples)
        if not view.rounds():
            return self.nothing()  # a client that was never asked
        if name == BY_SPAN:
            return SpanMembership(looking, self.model, self.asked).infer(view, examples, rng.child("span"))
        looked = tuple(updates_of(view.rounds()))
        attack = UpdateMembership(looking, self.model, self.asked, looked, self.clip)
        return attack.infer(view, examples, rng.child("updates"))

    def nothing(self) -> Suspicions:
        """Of who can read nothing at all: it says the same of every record."""
        return Suspicions(dict.fromkeys(self.game.truth.answers, 0.0))

    def _over_rounds(self, looking: Seat, looks: Tensor) -> list[tuple[int, float]]:
        """What it scores from its looks up to each round; of final models there is one look."""
        if looking is Seat.FINAL or bool(looks.isnan().all()):
            return []
        attack = ShadowMembership(looking, self.model, self.asked, self.rehearsed[looking], self.rounds, FIRST)
        guesses = [attack.compare(looks[: count + 1]) for count in range(len(self.rounds))]
        return [
            (round, judge(guess, self.game.truth).score)
            for round, guess in zip(self.rounds, guesses, strict=True)
            if guess.scores  # in early rounds there may be no model yet of what was asked about
        ]

    # -- for people ----------------------------------------------------------------------------------------------

    def charts(self, found: Sequence[FromSeat]) -> list[Chart]:
        """The curve on a log scale, and what each cluster gives away by its size."""
        curves = {f"{one.seat.value}, {FIRST}": _whole_curve(one.guess, self.game.truth) for one in found}
        curves |= {
            f"{seat.value}, {name}": _whole_curve(one, self.game.truth) for (seat, name), one in self.by_updates.items()
        }
        name = ModelMembership.name
        sized = {how: self.by_cluster(one) for (seat, how), one in self.by_updates.items() if seat is Seat.PUBLISHED}
        return [
            members.log_roc(curves, name),
            members.by_size(sized, "Members found, by the size of the cluster", "AUC", 0.5, name),
        ]

    def by_cluster(self, guess: Suspicions) -> list[tuple[int, float]]:
        """(members asked about, AUC), one a cluster of which anything could be said."""
        points, said = [], {key: yes for key, yes in self.game.truth.answers.items() if key in guess.scores}
        for cluster in self.asked.clusters.unique().tolist():
            own = {key: yes for key, yes in said.items() if self._cluster(key) == cluster}
            score = judge(guess, YesNo(own)).score if len({*own.values()}) == 2 else None
            if score is not None:
                points.append((sum(own.values()), score))
        return points

    def _cluster(self, key: object) -> int:
        assert isinstance(key, int)
        return int(self.asked.clusters[key])

    def exposed(self, found: Sequence[FromSeat]) -> list[Suspected]:
        """The clients of whose records most are found, and the records that are surest, from the best seat."""
        (seat, how), guess = list(self.by_updates.items())[-1]  # the seat that sees most, and what finds most
        truth = self.game.truth
        whose: dict[Hashable, int] = {
            key: int(self.asked.clients[key]) for key in truth.answers if isinstance(key, int)
        }
        clients = [
            (one.name, f"{one.score:.1%} of {one.records} records") for one in members.most_exposed(guess, truth, whose)
        ]
        records = [
            (f"row {int(self.asked.rows[key])} of client {whose[key]}", f"{guess.scores[key]:.2f}")
            for key in members.surest(guess, truth)
            if isinstance(key, int)
        ]
        name, who = ModelMembership.name, seat.value
        found_at = "members found at 1 % false alarms"
        return [
            Suspected(name, how, who, "client", found_at, clients),
            Suspected(name, how, who, "record", "deviations above non-members", records),
        ]


def _whole_curve(guess: Suspicions, truth: YesNo) -> Curve:
    scores, answers = members.arrays(guess, truth)
    return Curve.of(scores, answers)


FAMILY = ModelMembership()
