"""Membership in models and canaries, as families of the audit: what they ask, what they find, and where they cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.ring import blobs

from coterie.attacks.shadows import Seat
from coterie.audit.case import Subject, parse
from coterie.audit.families.model_membership import BY_SPAN
from coterie.audit.plugins import find
from coterie.audit.rehearsals import Game, _took_part, looks_of, updates_of
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome
from coterie.measure.findings import Finding
from coterie.measure.verdicts import Verdict
from coterie.measure.witness import Witness
from coterie.rng import Rng

NONE = Choice(kind="none")
OVERFITTED: dict[str, Any] = {
    "name": "overfitted",
    "seed": 5,
    "partition": {"kind": "label_sets", "clients": 4, "sets": 2, "test_share": 0.5},
    "model": {"kind": "fcnn", "hidden": 32},
    "trainer": {
        "kind": "ifca",
        "clusters": 2,
        "candidates": 4,
        "rounds": 15,
        "local": {"epochs": 5, "batch_size": 10, "lr": 0.05},
    },
    "audit": {"seeds": 1, "model_membership": {"rehearsals": 12}, "canaries": {"count": 100}},
}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Labels that nothing explains: whoever gets them right has learnt them by heart."""
    path, draw = tmp_path_factory.mktemp("noise") / "noise.npz", np.random.default_rng(0)
    np.savez(path, x=draw.normal(size=(400, 40)).astype(np.float32), y=draw.integers(0, 4, 400))
    return {"data": {"kind": "arrays", "path": str(path)}}


def subject(noise: dict[str, Any], **more: Any) -> Subject:
    return parse({**OVERFITTED, **noise, **more}, "test")


def by_name(findings: Any, seat: Seat) -> dict[tuple[str, str], Finding]:
    return {(one.attack, one.measure): one for one in findings if one.adversary == seat.value}


def test_the_game_asks_about_rows_that_were_trained_on_and_rows_that_were_not() -> None:
    federation = blobs((12, 9, 0, 12))
    clusters = torch.tensor([0, 1, 0, 1])
    game = Game.of(federation, clusters, 100, Rng.seeded(0))
    held = {int(row): client for client in range(4) for row in federation.train[client]}
    for number, yes in game.truth.answers.items():
        assert isinstance(number, int)
        row = int(game.asked.rows[number])
        assert (row in held) == yes
        assert not bool(game.asked.known[number])
        if yes:
            assert held[row] == int(game.asked.clients[number])
    assert bool((game.asked.clusters == clusters[game.asked.clients]).all())
    known = game.asked.rows[game.asked.known].tolist()
    assert known
    assert not set(known) & set(held)
    for cluster in (0, 1):  # either side has the other's labels
        for label in range(3):
            there = [
                game.truth.answers[one]
                for one in game.truth.answers
                if isinstance(one, int)
                and int(game.asked.clusters[one]) == cluster
                and int(federation.examples.y[game.asked.rows[one]]) == label
            ]
            assert there.count(True) <= 3 * there.count(False)


def test_a_copy_of_what_was_trained_on_is_no_other_record() -> None:
    """It would be found, and count as a false alarm; and what is there ten times is asked about once."""
    federation = blobs((12, 9, 0, 12))
    examples, rows = federation.examples, federation.train.rows
    held = federation.test.rows
    x, y = examples.x.clone(), examples.y.clone()
    x[held[0]], y[held[0]] = x[rows[0]], y[rows[0]]
    x[rows[2]], y[rows[2]] = x[rows[1]], y[rows[1]]
    copied = replace(federation, examples=replace(examples, x=x, y=y))
    asked = Game.of(copied, torch.tensor([0, 1, 0, 1]), 100, Rng.seeded(0)).asked.rows.tolist()
    assert int(held[0]) not in asked
    assert len({int(rows[1]), int(rows[2])} & set(asked)) == 1


def test_looks_are_of_the_second_half_and_updates_of_all() -> None:
    assert looks_of(30) == (15, 19, 24, 29)
    assert looks_of(1) == (0,)
    assert updates_of([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) == [0, 3, 6, 9]
    assert updates_of([4]) == [4]


PATIENCE = {"stop": {"measurements": 1, "least": 0.9}, "evaluate_every": 2}


@pytest.mark.parametrize("ends", [{}, PATIENCE])
def test_members_are_looked_for_where_clients_are_not_asked_in_every_round(
    noise: dict[str, Any], ends: dict[str, Any]
) -> None:
    """And where patience ends a run long before its last round: the server still reads what clients sent."""
    trainer = {**OVERFITTED["trainer"], "participation": 1.0 if ends else 0.5}
    quick = {"seeds": 1, "model_membership": {"rehearsals": 4}}
    evidence = find("membership in models").measure(subject(noise, trainer=trainer, audit=quick, **ends), NONE, 5)
    assert (evidence.history[-1][0] < 14) == bool(ends)
    areas = {one.adversary: one.score for one in evidence.findings if (one.attack, one.measure) == ("RMIA", "AUC")}
    assert areas.keys() == {seat.value for seat in Seat}
    assert min(areas.values()) > 0.6
    assert areas[Seat.UPLOADS.value] > max(areas[Seat.PUBLISHED.value], 0.8)


def test_a_curious_client_that_was_never_asked_is_no_failure(noise: dict[str, Any]) -> None:
    trainer = {**OVERFITTED["trainer"], "rounds": 1, "participation": 0.25}
    quick = {"seeds": 1, "model_membership": {"rehearsals": 4}}
    asked = subject(noise, trainer=trainer, audit=quick)
    found = find("membership in models").measure(asked, NONE, 5).findings
    spans = [one for one in found if one.attack == BY_SPAN and one.adversary == Seat.PUBLISHED.value]
    assert spans[0].score == 0.5
    assert "the same of all" in spans[0].sentence
    assert by_name(found, Seat.UPLOADS)["RMIA", "AUC"].score > 0.5


def test_who_took_part_is_known_of_those_who_were_not_asked_last() -> None:
    witness = Witness()
    witness.members = {0: {0: [0, 1], 1: [2]}, 1: {1: [0]}}
    ring: Any = SimpleNamespace(witness=witness, federation=SimpleNamespace(clients=4))
    assert _took_part(ring, 2).tolist() == [[False, True], [True, False], [False, True], [False, False]]


def test_members_of_overfitted_clusters_are_found_and_the_control_finds_nobody(noise: dict[str, Any]) -> None:
    evidence = find("membership in models").measure(subject(noise), NONE, 5)
    for seat in (Seat.FINAL, Seat.PUBLISHED, Seat.UPLOADS):
        found = by_name(evidence.findings, seat)
        assert found["LiRA, online", "AUC"].verdict is Verdict.LEAKS
        assert found["LiRA, online", "AUC"].score > 0.7
        assert found["RMIA", "AUC"].score > 0.6
        control = found["LiRA, online, on non-members alone", "AUC"]
        assert control.control
        assert control.verdict is not Verdict.LEAKS
        assert found["LiRA, online", "TPR at 0.1% FPR"].verdict is Verdict.NOT_SCORED  # too few to tell
    assert {chart.title for chart in evidence.charts} >= {"Members found, by false alarms"}
    clients, records = evidence.suspected
    assert len(clients.answers) == 4
    assert len(records.answers) == 10


def test_canaries_hold_a_claim_of_privacy_and_find_one_that_is_broken(
    noise: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fedavg = {"kind": "fedavg", "rounds": 1, "local": {"steps": 1, "batch_size": 1000, "lr": 0.1}}
    asked = subject(noise, trainer=fedavg, audit={"canaries": {"count": 600}})
    noisy = Choice.model_validate({"kind": "dpsgd", "clip": 1.0, "noise_multiplier": 8.0})
    family = find("canaries")
    evidence = family.measure(asked, noisy, 5)
    assert evidence.promise is not None
    assert evidence.promise.outcome is Outcome.HOLDS
    assert evidence.promise.lower_bound is not None
    assert "had all been, it would have shown" in " ".join(evidence.promise.evidence)
    white = by_name(evidence.findings, Seat.UPLOADS)
    assert white["white box, by other coins", "AUC"].control
    from coterie.defences.dpsgd import DpSgd, NoisyGradients

    monkeypatch.setattr(DpSgd, "client", property(lambda self: NoisyGradients(self.clip, 0.02)))
    broken = family.measure(asked, noisy, 5).promise
    assert broken is not None
    assert broken.outcome is Outcome.VIOLATED


def test_a_recording_is_attacked_with_what_its_truth_says_was_held(noise: dict[str, Any], tmp_path: Path) -> None:
    from coterie.audit.recorded import RECORDER, TRUTH, Recording, describe, open_recording
    from coterie.measure.witness import Witness
    from coterie.run.training import train
    from coterie.wire.tape import Tape

    config, witness = subject(noise), Witness()
    case = config.case(config.trainers[0])
    tape = Tape([RECORDER], tmp_path)
    done = train(case.protocol, case.federation, case.model, seed=5, tape=tape, witness=witness)
    describe(tmp_path, config.model_dump(mode="json"), case, done.scores.choices.argmax(1), witness)
    recorded = open_recording(tmp_path, None)
    recorded = recorded.model_copy(update={"audit": config.audit})
    family, recording = find("membership in models"), Recording(recorded)
    assert not family.admits_recording(recording)
    found = by_name(family.replay(recording, 5).findings, Seat.FINAL)
    assert found["LiRA, online", "AUC"].score > 0.65
    there = recording.truth.federation(case.federation.examples)
    assert torch.equal(there.test.rows, case.federation.test.rows)  # who is compared is the client's own
    path = tmp_path / TRUTH
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "tested": {}}))
    assert "kept for their tests" in family.admits_recording(Recording(recorded))
    path.write_text(json.dumps({**said, "tested": said["held"]}))
    with pytest.raises(InvalidInput, match="rows that are held and tested"):
        Recording(recorded).truth.federation(case.federation.examples)
