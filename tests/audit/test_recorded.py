"""Attacks on what was written down: they score as they do on the living federation, and say what they lack."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.audit.test_families import DIGITS, NONE, coterie, subject

from coterie.audit.engine import audit
from coterie.audit.families.preference_profiling import of_each_class
from coterie.audit.families.property_inference import DENSE, FAMILY
from coterie.audit.plugins import find
from coterie.audit.recorded import (
    DESCRIPTION,
    RECORDER,
    TRUTH,
    Recording,
    clusters_stand_for,
    open_recording,
    truth_of,
)
from coterie.audit.toml import document
from coterie.commands import training as session
from coterie.commands.auditing import run_audit
from coterie.commands.training import free_recording
from coterie.config.schema import Choice
from coterie.data.federation import Examples
from coterie.data.partition.property import PROPERTY, PropertySplit
from coterie.data.sources.faces import Faces
from coterie.errors import CoterieError, DataMissing, InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.bundled import fcnn
from coterie.learn.sgd import Local
from coterie.measure.findings import AuditResult
from coterie.measure.intervals import proportion
from coterie.measure.judge import judge
from coterie.measure.preferences import Preferences
from coterie.measure.verdicts import Verdict
from coterie.measure.witness import Witness
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.run.folder import RunFolder
from coterie.run.training import train
from coterie.wire import recording
from coterie.wire.codec import encode
from coterie.wire.recording import load
from coterie.wire.tape import Tape


def write_arrays(path: Path, examples: Examples) -> None:
    tags = {name: values.numpy() for name, values in examples.tags.items()}
    np.savez(path, allow_pickle=False, x=examples.x.numpy(), y=examples.y.numpy(), **tags)


def audited(folder: Path, recording: Path) -> AuditResult:
    return audit(open_recording(recording, None), folder / "jobs", processes=1)


# -- preference profiling -------------------------------------------------------------------------------------------


def write_down(folder: Path, defence: dict[str, Any]) -> Path:
    """The federation of the live attack with the seed 0, written down with what its server knows."""
    asked = subject(defence=defence)
    federation = asked.federation(0)
    held = of_each_class(federation, 20, Rng.seeded(0).child("attack"))
    protocol: Any = asked.protocol(asked.trainers[0])
    tape, witness = Tape([RECORDER], folder), Witness()
    model, guard = asked.built_model(federation.examples), asked.built_defence(asked.defence, protocol)
    outcome = train(protocol, federation, model, seed=0, defence=guard, tape=tape, witness=witness)
    served = clusters_stand_for(outcome.scores.choices.argmax(1), federation.groups)
    tables = {key: DIGITS[key] for key in ("name", "model", "trainer")}
    tables["defence"] = defence
    tables["data"] = {"kind": "arrays", "path": "held/held.npz"}  # as seen from the recording's folder
    tables["recorded"] = {"truth": TRUTH, "serves": {str(key): value for key, value in served.items()}}
    (folder / DESCRIPTION).write_text(document(tables))
    (folder / TRUTH).write_text(truth_of(federation, witness).model_dump_json())
    (folder / "held").mkdir()
    write_arrays(folder / "held/held.npz", held)
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_down(tmp_path_factory.mktemp("digits"), {"kind": "none"})


@pytest.fixture(scope="module")
def of_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audited(tmp_path_factory.mktemp("audit"), digits)


def test_a_recording_is_scored_as_the_living_federation_is(of_digits: AuditResult) -> None:
    live = find("preference profiling").measure(subject(), NONE, 0).findings
    alone = {row.attack: row.score for row in live if row.adversary == "curious server"}
    assert {one.attack: one.score for one in of_digits.findings} == alone  # the controls, too
    assert [one.control for one in of_digits.findings] == [False, False, True, True]
    assert all(one.beyond is not None for one in of_digits.findings if not one.control)
    assert alone["profiling by identity"] == 1.0
    said = (
        "As recorded, this federation leaks to 1 kind of attack (preference profiling). 12 kinds of attack were not run"
    )
    assert of_digits.headline.startswith(said)


def test_recorded_ciphertexts_stay_closed(tmp_path: Path) -> None:
    mingled = {"kind": "mingling", "cipher": "mock"}
    result = audited(tmp_path, write_down(tmp_path / "messages", mingled))
    live = find("preference profiling").measure(subject(), Choice.model_validate(mingled), 0).findings
    alone = {row.attack: row.score for row in live if row.adversary == "curious server"}
    assert {one.attack: one.score for one in result.findings} == alone
    assert {one.defence for one in result.findings} == {"mingling (cipher mock)"}
    assert max(alone.values()) < 0.7  # of 10 clients; undefended it is 1


def test_who_prefers_what_is_written_down_where_nobody_is_in_a_group() -> None:
    federation = subject(partition={"kind": "dirichlet", "clients": 10, "alpha": 0.1}).federation(0)
    assert int(federation.groups.max()) < 0
    truth = truth_of(federation, Witness())
    assert not truth.groups
    assert truth.preferences(10) == Preferences.of(federation)


def test_a_recording_that_was_cut_off_says_so(digits: Path, tmp_path: Path, of_digits: AuditResult) -> None:
    assert "the recording" not in of_digits.warned
    cut = tmp_path / "cut"
    shutil.copytree(digits, cut)
    last = Recording(open_recording(cut, None)).subject.launched.rounds - 1  # type: ignore[attr-defined]
    for path in cut.glob("*.npz"):
        if recording.load(path).round == last:
            path.unlink()
    assert f"1 of {last + 1} rounds of training" in audited(tmp_path, cut).warned["the recording"]


def test_the_interval_is_over_what_was_observed(of_digits: AuditResult) -> None:
    identity = of_digits.findings[0]
    assert identity.interval == proportion(10, 10)
    assert (identity.seeds, identity.units, identity.verdict) == (1, 10, Verdict.LEAKS)


def test_what_needs_to_take_part_is_left_out_and_says_so(of_digits: AuditResult) -> None:
    reasons = {one.family: one.reason for one in of_digits.left_out}
    assert "needs to take part" in reasons["model acquisition"]
    assert "needs a clustering" in reasons["reconstruction from k-means"]
    assert "again and again" in reasons["membership in a clustering"]
    assert "audit.property" in reasons["property inference"]


def test_without_truth_suspicions_are_reported_without_a_score(digits: Path, tmp_path: Path) -> None:
    text = (digits / DESCRIPTION).read_text().replace(f'truth = "{TRUTH}"', "")
    blind = tmp_path / "blind.toml"
    blind.write_text(text.replace('path = "held', f'path = "{digits}/held'))
    result = audit(open_recording(digits, blind), tmp_path / "jobs", processes=1)
    assert {one.verdict for one in result.findings} == {Verdict.NOT_SCORED}
    assert "no truth" in result.headline
    identity, ranked = result.suspected
    assert [client for client, _ in identity.answers] == [f"client {number}" for number in range(10)]
    truth = json.loads((digits / TRUTH).read_text())
    assert [int(guess) for _, guess in identity.answers] == list(truth["groups"].values())
    first = {client: order.split(", ")[0] for client, order in ranked.answers}
    assert int(first["client 0"]) in truth["preferred"]["0"]


def test_other_words_are_another_job(digits: Path) -> None:
    whole = open_recording(digits, None)
    assert whole.recorded is not None
    blind = whole.model_copy(update={"recorded": whole.recorded.model_copy(update={"truth": None})})
    assert whole.fingerprint != blind.fingerprint
    assert whole.fingerprint == open_recording(digits, None).fingerprint


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("hidden = 16", "hidden = 17", r"model 'fcnn' has leaves .*\(17, 64\).* holds .*\(16, 64\)"),
        (f'truth = "{TRUTH}"', 'truth = "lies.json"', r"lies\.json does not exist; leave it out"),
        (f'truth = "{TRUTH}"', 'truth = "../../secrets.json"', r"lies outside .*; copy it into there"),
        (f'truth = "{TRUTH}"', 'truth = "/etc/passwd"', r"lies outside"),
        (f'truth = "{TRUTH}"', 'truth = "."', r"is no file; leave it out"),
        (f'truth = "{TRUTH}"', f'truth = "{DESCRIPTION}"', r"is not valid JSON"),
        ('[recorded]', '[recorded]\nwamup = 3', r"recorded\.wamup"),
        ('[recorded]', '[recordings]', r"key 'recordings' is unknown; did you mean 'recorded'"),
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_an_error(
    digits: Path, tmp_path: Path, line: str, instead: str, message: str
) -> None:
    path = tmp_path / "other.toml"
    text = (digits / DESCRIPTION).read_text().replace('path = "held', f'path = "{digits}/held')
    assert line in text
    path.write_text(text.replace(line, instead))
    with pytest.raises(CoterieError, match=message):
        audit(open_recording(digits, path), tmp_path / "jobs", processes=1)


def test_a_truth_that_points_elsewhere_is_not_read(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(digits, folder)
    (folder / TRUTH).unlink()
    (tmp_path / "mine.json").write_text("{}")
    (folder / TRUTH).symlink_to(tmp_path / "mine.json")
    with pytest.raises(InvalidInput, match="lies outside"):
        _ = Recording(open_recording(folder, None)).truth


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"held": {str(10**12): [0]}}, r"held\.1000000000000\.\[key\]"),  # counted up to it, this would never end
        ({"groups": {"0": 10**12}}, r"groups\.0="),
        ({"preferred": {"-1": [0]}}, r"preferred\.-1\.\[key\]"),
    ],
)
def test_a_truth_of_impossible_clients_is_refused(
    part: dict[str, object], said: str, digits: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(digits, folder)
    (folder / TRUTH).write_text(json.dumps(part))
    with pytest.raises(InvalidInput, match=said):
        _ = Recording(open_recording(folder, None)).truth


def test_folders_without_a_recording_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere' is not a folder"):
        open_recording(tmp_path / "nowhere", None)
    with pytest.raises(DataMissing, match=r"recording\.toml does not exist; it says which model"):
        open_recording(tmp_path, None)
    (tmp_path / DESCRIPTION).write_text('name = "empty"')
    with pytest.raises(InvalidInput, match="holds no messages"):
        audited(tmp_path, tmp_path)


@pytest.mark.parametrize("more", ["", 'folder = "elsewhere"'])
def test_a_description_without_its_folder_is_no_federation_to_train(more: str, tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION).write_text(f"[recorded]\nwarmup = 2\n{more}")
    with pytest.raises(InvalidInput, match=r"describes a recording; say where it is: .* --recorded FOLDER"):
        run_audit(tmp_path / DESCRIPTION, tmp_path)


# -- property inference ---------------------------------------------------------------------------------------------


def test_property_inference_from_published_models_alone(tmp_path: Path) -> None:
    """What the server published and nothing else, as any framework may have written it."""
    recording = tmp_path / "recording"
    settings = {"count": 600, "label": "hair", "rows": 12, "columns": 12, "rates": {"sunglasses": [0.7, 0.3]}}
    examples = Faces(**settings).load(rng=Rng.seeded(0).child("data"))  # type: ignore[arg-type]
    split = PropertySplit(4, "sunglasses", 1, every=2, warmup=4)
    federation = split.split(examples, Rng.seeded(0).child("partition"))
    local, model = (
        Local(steps=2, batch_size=16, lr=0.1),
        fcnn(inputs=examples.x[0].numel(), hidden=8, classes=examples.classes),
    )
    trainer: Any = FedAvg(16, local)
    witness = Witness()
    train(trainer, federation, model, seed=0, tape=Tape([RECORDER], recording), witness=witness)
    truth = truth_of(federation, witness)
    for path in recording.glob("*.npz"):
        with np.load(path) as message:
            if "ids" in message.files:
                path.unlink()

    live = replace(FAMILY.attack(3, model, trainer, Defence(), federation.clients), warmup=4)
    held = split.auxiliary(federation)
    view = Tape([live.threat], recording).view(live.threat)
    guesses = live.infer_by(view, held, Rng.seeded(0).child("attack"), tuple(DENSE.values()))

    write_arrays(tmp_path / "held.npz", held.whole())
    description = {
        "name": "faces",
        "data": {"kind": "arrays", "path": str(tmp_path / "held.npz")},
        "model": {"kind": "fcnn", "hidden": 8, "classes": examples.classes},
        "trainer": {"kind": "fedavg", "rounds": 16, "local": {"steps": 2, "batch_size": 16, "lr": 0.1}},
        "audit": {"property": {"tag": PROPERTY, "value": 1}},
        "recorded": {"truth": TRUTH, "warmup": 4},
    }
    (recording / DESCRIPTION).write_text(document(description))
    (recording / TRUTH).write_text(truth.model_dump_json())
    result = audited(tmp_path, recording)
    expected = Recording(open_recording(recording, None)).truth.used_property()
    assert expected is not None
    assert {key for key, used in expected.answers.items() if used} == {(round, 0) for round in (4, 6, 8, 10, 12, 14)}
    for finding, guess in zip(result.findings, guesses, strict=True):
        assert finding.score == judge(guess, expected).score
        assert finding.unit == "victims"
        assert finding.verdict is Verdict.UNDECIDED  # one victim, whose rows are the same in all of its rounds
        assert finding.roc is not None
        assert finding.roc.area == pytest.approx(finding.score, abs=1e-12)
    assert "needs what clients sent" in {one.family: one.reason for one in result.left_out}["preference profiling"]
    for suspected, guess in zip(result.suspected, guesses, strict=True):
        assert [float(score) for _, score in suspected.answers] == sorted(
            (round(score, 3) for score in guess.scores.values()), reverse=True
        )


def test_the_truth_of_a_property_is_who_used_it_in_which_cluster() -> None:
    examples = Examples(torch.randn(40, 3), torch.arange(40) % 2, 2, "toy", {"mark": (torch.arange(40) // 2) % 2})
    split = PropertySplit(3, "mark", 1, every=3, warmup=3)
    federation = split.split(examples, Rng.seeded(0))
    witness = Witness()
    train(FedAvg(8, Local(steps=1, batch_size=4)), federation, fcnn(inputs=3, hidden=2, classes=2), witness=witness)
    used = {round: flag for round, slot, flag in truth_of(federation, witness).property}
    assert used == {round: round in (3, 6) for round in range(8)}


# -- from the command line ------------------------------------------------------------------------------------------


def test_train_writes_a_recording_that_audit_attacks(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(document(DIGITS))
    done = coterie(tmp_path, "train", "c.toml", "--record", "messages")
    assert done.returncode == 0, done.stderr
    with pytest.raises(InvalidInput, match="is not empty; name another folder"):
        free_recording(tmp_path / "messages", "ifca", 1)
    assert free_recording(tmp_path / "messages", "ifca", 2) == tmp_path / "messages" / "ifca"
    done = coterie(tmp_path, "audit", "--recorded", "messages", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    identity = next(one for one in result["findings"] if one["attack"] == "profiling by identity")
    assert identity["interval"]["estimate"] == 1.0
    assert result["reproduce"]["command"] == "coterie audit --recorded messages"
    page = (tmp_path / "runs/audit/digits-recorded/report.html").read_text()
    assert "What the attacks suspect" in page


class Stopped(Exception):
    pass


def test_a_recording_that_was_stopped_goes_on_with_its_run(tmp_path: Path) -> None:
    asked = subject()
    federation = asked.federation()
    protocol: Any = asked.protocol(asked.trainers[0])

    def messages(name: str, stops: int | None) -> list[bytes]:
        run = RunFolder(tmp_path / name)
        if not run.path.exists():
            RunFolder.create(run.path, {"config": {}})

        def tell(done: int, newest: object) -> None:
            if done == stops:
                raise Stopped

        tape = Tape([RECORDER], tmp_path / f"{name} messages")
        train(protocol, federation, asked.built_model(federation.examples), folder=run, tape=tape, progress=tell)
        return [encode(load(path)) for path in sorted((tmp_path / f"{name} messages").glob("*.npz"))]

    whole = messages("whole", None)
    with pytest.raises(Stopped):
        messages("stopped", 4)
    assert messages("stopped", None) == whole


def test_resume_finishes_the_description_too(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(document(DIGITS))
    session.train(tmp_path / "c.toml", tmp_path / "runs", None, tmp_path / "messages")
    (run,) = (tmp_path / "runs").iterdir()
    (run / "models.npz").unlink()
    (tmp_path / "messages" / DESCRIPTION).unlink()
    session.resume(run)
    assert open_recording(tmp_path / "messages", None).model == subject().model
