"""The families on a small federation of digits: what is known to leak leaks, and defences do what they claim."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from coterie.audit.case import Subject, parse, read
from coterie.audit.clusterings import PLACES, as_pictures, noise
from coterie.audit.engine import audit
from coterie.audit.evidence import Evidence
from coterie.audit.families import property_inference
from coterie.audit.families.property_inference import FAMILY, PropertyInference, VictimsLeftOut
from coterie.audit.plugins import all_families, find
from coterie.audit.starter import Wishes
from coterie.commands.auditing import example_text, init
from coterie.config import builders
from coterie.config.schema import Choice
from coterie.data.federation import Federation
from coterie.data.partition.property import Control
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.regularise import Dropout
from coterie.errors import InvalidInput
from coterie.measure.claims import Outcome
from coterie.measure.judge import YesNo
from coterie.measure.verdicts import Verdict
from coterie.measure.witness import Witness
from coterie.rng import Rng

DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"kind": "digits"},
    "partition": {"kind": "label_sets", "clients": 10, "sets": 5},
    "model": {"kind": "fcnn", "hidden": 16},
    "trainer": {"kind": "ifca", "clusters": 5, "rounds": 8, "local": {"steps": 3, "batch_size": 16, "lr": 0.3}},
}
NONE = Choice(kind="none")
LLOYD: dict[str, Any] = {
    "public": {"rows": 100},
    "trainer": {"kind": "federated_lloyd", "clusters": 10, "level": "record", "steps": 2, "bound": 3.0},
}


def clustered(**more: Any) -> Subject:
    return subject(**LLOYD | more)


def subject(**more: Any) -> Subject:
    return parse(DIGITS | more, "test")


def scores(evidence: Evidence, adversary: str = "") -> dict[str, float]:
    return {one.attack: one.score for one in evidence.findings if adversary in one.adversary and not one.control}


def test_every_family_says_what_it_is_and_can_be_found_by_name() -> None:
    families = all_families()
    assert len(families) >= 5
    assert len({family.name for family in families}) == len(families)
    shared = len({family.limit for family in families}) + 1  # a property's, as configured and as a stress test
    assert shared == len(families)
    for family in families:
        assert find(family.name) is family
        assert all((family.paper, family.question, family.threat, family.method))


def test_profiling_names_everybody_and_mingling_hides_them() -> None:
    family = find("preference profiling")
    assert scores(family.measure(subject(), NONE, 0), "curious server")["profiling by identity"] == 1.0
    mingled = Choice.model_validate({"kind": "mingling", "cipher": "mock"})
    undefended = family.measure(subject(), NONE, 0)
    assert [round for round, _ in undefended.history] == list(range(1, 9))
    assert undefended.history[-1][1] == undefended.utility.mean > undefended.history[0][1]
    assert undefended.utility.units == 10  # clients
    curve = undefended.findings[0].by_round
    assert [round for round, _ in curve] == list(range(8))
    assert curve[-1][1] == undefended.findings[0].score
    evidence = family.measure(subject(), mingled, 0)
    alone = scores(evidence, "curious server")["profiling by identity"]
    assert alone < 0.7  # expected 0.35, of 10 clients
    assert scores(evidence, "server with one client")["profiling by identity"] > alone  # one key opens everything


def test_reconstruction_depends_on_who_adds_the_noise() -> None:
    family = find("reconstruction from k-means")
    every = {"nobody": NONE, "server": noise("server"), "shared": noise("shared"), "client": noise("client")}
    found = {place: family.measure(clustered(), choice, 0) for place, choice in every.items()}
    cosine = {place: scores(evidence)["reconstruction"] for place, evidence in found.items()}
    assert cosine["nobody"] > 0.999
    assert cosine["server"] > 0.999  # a curious server sees what it is sent before it adds the noise
    assert abs(cosine["shared"]) < 0.5
    assert abs(cosine["client"]) < 0.5
    for evidence in found.values():
        (control,) = [one for one in evidence.findings if one.control]
        assert abs(control.score) < 0.35  # of five


@pytest.mark.parametrize(
    "trainer",
    [
        {"kind": "kfed", "clusters": 4},
        {"kind": "federated_lloyd", "clusters": 4, "steps": 3},
        {"kind": "feddp_kmeans", "clusters": 4, "steps": 1},
        {"kind": "feddp_kmeans", "clusters": 4, "level": "client"},
    ],
)
def test_every_clustering_tells_its_server_everything_without_noise(trainer: dict[str, Any]) -> None:
    evidence = find("reconstruction from k-means").measure(clustered(trainer=trainer), NONE, 0)
    assert scores(evidence)["reconstruction"] > 0.9
    assert evidence.utility_measure == "k-means cost"


def levels(pictures: Sequence[str]) -> NDArray[np.int64]:
    return np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(one))), np.int64) for one in pictures])


def test_pictures_are_shown_beside_what_was_made_of_them() -> None:
    """Undefended, the server's picture is the client's own but for rounding; with noise it is another one."""
    family = find("reconstruction from k-means")
    shown = family.measure(clustered(), NONE, 0).pictures
    assert len(shown["private"]) == len(shown["rebuilt"]) == 5
    assert np.abs(levels(shown["private"]) - levels(shown["rebuilt"])).max() <= 1
    hidden = family.measure(clustered(), noise("client"), 0).pictures
    assert hidden["private"] == shown["private"]
    assert np.abs(levels(hidden["private"]) - levels(hidden["rebuilt"])).mean() > 50
    digits = subject().examples()
    assert len(as_pictures(digits, [torch.zeros(64)])) == 1
    assert as_pictures(replace(digits, x=digits.x.flatten(1)), [torch.zeros(64)]) == []  # a row of a table is none


FEW = {"kmeans_membership": {"trials": 100}}


@pytest.mark.parametrize("level", ["record", "client"])
def test_membership_is_certain_without_noise_and_bounded_with_it(level: str) -> None:
    family, asked = find("membership in a clustering"), clustered(audit=FEW)
    asked = asked.model_copy(update={"trainer": asked.trainers[0].model_copy(update={"level": level})})
    assert scores(family.measure(asked, NONE, 0))["membership test"] == 1.0
    for place in PLACES:
        evidence = family.measure(asked, noise(place), 0)
        real, control = evidence.findings
        assert (0.5 if level == "record" else 0.4) < real.score < 0.85  # a client may move sums by far less than 1
        assert 0.35 < control.score < 0.65  # 100 and 100: a deviation of 0.04
        assert evidence.promise is not None
        assert evidence.promise.outcome is Outcome.HOLDS
        assert evidence.promise.lower_bound is not None
        assert evidence.promise.lower_bound <= evidence.promise.epsilon == pytest.approx(1.0, rel=0.01)
        assert evidence.spent == pytest.approx(evidence.promise.epsilon, rel=0.01)


def test_membership_without_noise_leaks_beside_a_control_that_has_nothing_to_say(tmp_path: Path) -> None:
    values = {**FEW, "seeds": 1, "families": ["membership in a clustering"], "compare": [NONE.model_dump()]}
    result = audit(clustered(audit=values), tmp_path, processes=1)
    assert "this federation leaks to 1 kind of attack (membership in a clustering)" in result.headline


def test_masks_leave_membership_what_it_is() -> None:
    """They open to the same noisy sums: what has masks is not judged as if it had no noise."""
    family, asked = find("membership in a clustering"), clustered(audit={"kmeans_membership": {"trials": 20}})
    masked = Choice.model_validate({**noise("shared").model_dump(), "masks": True})
    assert family.misfit(asked, masked) == ""
    assert scores(family.measure(asked, masked, 0)) == scores(family.measure(asked, noise("shared"), 0))


def test_a_broken_mechanism_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It states the noise of epsilon 1 and adds a tenth of it."""

    class Sloppy(CentralNoise):
        @property
        def server(self) -> Any:
            return CentralNoise({name: scale / 10 for name, scale in self.noise.items()}).server

    monkeypatch.setattr(builders, "CentralNoise", Sloppy)
    promise = find("membership in a clustering").measure(clustered(audit=FEW), noise("server"), 0).promise
    assert promise is not None
    assert promise.outcome is Outcome.VIOLATED
    assert promise.lower_bound is not None
    assert promise.lower_bound > 1.0


def test_newcomers_obtain_more_models_than_honest_ones() -> None:
    family = find("model acquisition")
    evidence = family.measure(subject(partition={"kind": "label_sets", "clients": 15, "sets": 5}), NONE, 0)
    attacked, honest = evidence.findings
    assert (attacked.control, honest.control) == (False, True)
    assert attacked.score > honest.score


def test_property_inference_attacks_the_configured_federation_where_it_has_a_victim() -> None:
    """Then it is no stress test, and the attacks that are asked for are run, each beside its controls and both ways."""
    wanted = {"attacks": ["passive", "scaled"], "controls": ["absent"], "victims": 2}
    asked: dict[str, Any] = {"property_inference": wanted}
    configured = subject(
        data={"kind": "faces", "count": 400, "label": "male", "rows": 12, "columns": 12},
        partition={"kind": "property", "clients": 3, "tag": "hat", "every": 2, "warmup": 2},
        trainer={"kind": "fedavg", "rounds": 9, "local": {"steps": 1, "batch_size": 16, "lr": 0.1}},
        audit=asked,
    )
    family = find("property inference")
    assert family.admits(configured) == ""
    assert family.differs(configured) == ""
    found = family.measure(configured, NONE, 0).findings
    assert [(one.attack, one.control) for one in found] == [
        (f"{name} inference{way}{of}", bool(of))
        for name in ("passive", "scaled")
        for of in ("", " of what is absent")
        for way in ("", " by magnitudes")
    ]
    assert {(one.units, one.unit) for one in found} == {(2, "victims")}
    stressed = subject(audit={"property": {"tag": "hat"}, **asked})
    assert "clients with shares of all data" in family.differs(stressed)


FACES: dict[str, Any] = {"kind": "faces", "count": 400, "label": "male", "rows": 12, "columns": 12}
SPARSE: dict[str, Any] = {
    "kind": "fedavg",
    "rounds": 9,
    "participation": 0.1,
    "server_step": {"kind": "momentum"},
    "local": {"steps": 1, "batch_size": 16, "lr": 0.1, "momentum": 0.9, "carry": True},
}


def test_a_stress_test_of_property_inference_asks_everybody_and_says_so() -> None:
    """One of four clients a round leaves nothing to look at; carried moments hide from who imagines none."""
    wanted = {"victims": 1, "warmup": 1, "scored": 6, "controls": []}
    asked = {"property": {"tag": "hat"}, "property_inference": wanted}
    stressed = subject(data=FACES, trainer=SPARSE, audit=asked)
    family = find("property inference")
    assert family.admits(stressed) == ""
    ran: Any = family.protocol(stressed)
    assert (ran.participation, ran.local.carry, ran.server_step is not None) == (1.0, False, True)
    said = family.differs(stressed)
    assert "all of whom are asked in every round" in said
    assert "optimisers begin anew" in said
    usual = family.differs(subject(data=FACES, audit=asked))
    assert "asked" not in usual
    assert "anew" not in usual
    (one, _) = family.measure(stressed, NONE, 0).findings
    assert one.units == 1


class Told(Exception):
    """A stub has been told what it was to be told."""


def test_each_attack_of_property_inference_and_each_control_is_what_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is trained: whose property, on which of the victim's rows, with which insider, under whose guard."""
    asked = subject(data=FACES, audit={"property": {"tag": "hat"}, "property_inference": {"victims": 3}})
    family, examples, guard = FAMILY, asked.examples(0), Dropout(0.25)
    given: list[tuple[Any, ...]] = []

    def play(*told: Any) -> None:
        given.append(told)
        raise Told

    monkeypatch.setattr(property_inference, "play", play)
    ran = {}
    for control, name in [(Control.NONE, "passive"), (Control.PLACEBO, "passive"), (Control.ABSENT, "passive"),
                          (Control.NONE, "active"), (Control.PLACEBO, "scaled")]:  # fmt: skip
        with pytest.raises(Told):
            family.attacked(asked, examples, guard, control, name, Rng.seeded(0))
        ran[control, name] = given[-1]
    hat, tags = examples.tags["hat"], {key: one[1].examples.tags["property"] for key, one in ran.items()}
    assert [bool((found == hat).all()) for found in tags.values()] == [True, False, True, True, False]
    assert all(int(found.sum()) == int(hat.sum()) for found in tags.values())  # a placebo is as large
    for (control, name), (_, federation, _, used, _, _, insiders) in ran.items():
        schedule, has = federation.schedules[1], tags[control, name]
        assert bool(has[schedule.marked].all()) == (control is not Control.ABSENT)
        assert not has[schedule.plain].any()
        assert used is guard
        assert [one.gamma for one in insiders] == {"passive": [], "active": [1.0], "scaled": [5.0]}[name]
        assert all(one.imitation.model.random for one in insiders)  # it imagines dropout, which everybody is under

    streams: list[int] = []

    def attacked(*told: Any) -> SimpleNamespace:
        streams.append(told[-1].seed())
        if len(streams) == 3:
            raise Told
        return SimpleNamespace(findings=[])

    monkeypatch.setattr(PropertyInference, "attacked", lambda self, *told: attacked(*told))
    with pytest.raises(Told):
        family.measure(asked, NONE, 0)
    assert len(set(streams)) == 3  # each victim with data dealt anew


def test_victims_that_could_not_be_scored_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is alone in a cluster in its property rounds, and nowhere else in it, gives itself away unscored."""

    def apart(witness: Witness, federation: Federation) -> YesNo:
        keys = [(round, slot) for round, by_slot in witness.members.items() for slot in by_slot]
        marked: dict[Hashable, bool] = {key: federation.schedules[1].is_marked(key[0]) for key in keys}
        return YesNo(marked, marked)  # a cluster for either kind

    monkeypatch.setattr(Witness, "property_truth", apart)
    wanted = {"victims": 2, "warmup": 1, "scored": 6, "controls": []}
    stressed = subject(data=FACES, trainer=SPARSE, audit={"property": {"tag": "hat"}, "property_inference": wanted})
    with pytest.warns(VictimsLeftOut, match="2 of 2 victims are left out"):
        (one, _) = find("property inference").measure(stressed, NONE, 0).findings
    assert one.verdict is Verdict.NOT_SCORED


def test_property_inference_is_not_run_where_finding_nothing_would_bound_nothing() -> None:
    """What the configured federation's clients, or its server, remember and the adversary cannot know."""
    victim = {"kind": "property", "clients": 3, "tag": "hat", "every": 2, "warmup": 2}
    family = find("property inference")

    def why_not(**changed: Any) -> str:
        return family.admits(subject(data=FACES, partition=victim, trainer=SPARSE | changed))

    fresh = SPARSE["local"] | {"carry": False}
    assert "local.carry = false" in why_not()
    assert "participation = 1" in why_not(local=fresh)
    assert why_not(local=fresh, participation=1.0) == ""
    assert why_not(local={**fresh, "carry": True, "momentum": 0.0}, server_step=None) == ""  # it has no moments to keep


def test_property_inference_reads_convolutions_by_contrast() -> None:
    """In the place of the published forest: as many ways, and no more to correct for."""
    configured = subject(
        data={"kind": "faces", "count": 400, "label": "male", "rows": 16, "columns": 16},
        partition={"kind": "property", "clients": 3, "tag": "hat", "every": 2, "warmup": 2},
        model={"kind": "cnn"},
        trainer={"kind": "fedavg", "rounds": 9, "local": {"steps": 1, "batch_size": 16, "lr": 0.1}},
        audit={"property_inference": {"controls": [], "victims": 2}},
    )
    found = find("property inference").measure(configured, NONE, 0).findings
    assert [one.attack for one in found] == ["passive inference", "passive inference by contrast"]
    assert {(one.units, one.unit) for one in found} == {(2, "victims")}


def test_property_inference_needs_a_property() -> None:
    assert "audit.property" in find("property inference").admits(subject())


def test_noise_on_sums_has_no_place_in_training_and_the_other_way_round() -> None:
    assert "no sums in which a unit's share" in find("preference profiling").misfit(subject(), noise("client"))
    family, asked = find("membership in a clustering"), clustered()
    assert "no gradients" in family.misfit(asked, Choice.model_validate({"kind": "dpsgd", "clip": 1.0}))
    assert not family.misfit(asked, noise("client"))
    unbounded = clustered(trainer={"kind": "federated_lloyd", "clusters": 4})
    assert "must be bounded" in family.misfit(unbounded, noise("client"))
    assert list(family.defences(unbounded)) == []


def test_noise_added_by_nobody_known_is_an_error() -> None:
    wrong = Choice.model_validate({"kind": "noisy_sums", "added_by": "sever"})
    with pytest.raises(InvalidInput, match=r"added_by='sever' must be 'server', 'shared' or 'client'"):
        clustered().why_not(wrong, clustered().launched)


def test_the_example_is_valid_and_commented() -> None:
    text = example_text()
    assert text.count("#") > 10
    assert set(parse(tomllib.loads(text), "example").audit.model_fields_set) >= {"seeds", "property"}


# -- from the command line -----------------------------------------------------------------------------------------

FILE = """
name = "digits"
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
sets = 5
[public]
rows = 100
[audit]
seeds = 2
families = ["membership in a clustering", "reconstruction from k-means"]
[audit.kmeans_membership]
trials = 20
[[audit.compare]]
kind = "noisy_sums"
added_by = "shared"
[trainer]
kind = "federated_lloyd"
clusters = 4
level = "record"
steps = 1
[limits]
{limit}
"""


def coterie(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from coterie.commands.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_an_audit_writes_a_report_and_the_gate_decides_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE.format(limit="max_cost = 1e6"))
    done = coterie(tmp_path, "audit", "a.toml", "--json", "--junit", "gate.xml")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["checks"][0]["passed"] is True
    assert {row["family"] for row in result["findings"]} == set(read(tmp_path / "a.toml").audit.families)
    page = (tmp_path / "runs/audit/digits/report.html").read_text()
    assert "membership in a clustering" in page
    assert "<testsuite" in (tmp_path / "gate.xml").read_text()
    (tmp_path / "a.toml").write_text(FILE.format(limit="max_membership_auc = 0.51"))
    again = coterie(tmp_path, "audit", "a.toml")
    assert again.returncode == 1, again.stderr
    assert "breaks" in again.stdout


def test_an_audit_goes_on_with_what_was_finished(tmp_path: Path) -> None:
    values = {"audit": {"seeds": 2, "families": ["reconstruction from k-means"]}}
    first = audit(clustered(**values), tmp_path, processes=1)
    kept = sorted(tmp_path.rglob("*.json"))
    kept[0].unlink()
    before = {path: path.stat().st_mtime_ns for path in kept[1:]}
    assert audit(clustered(**values), tmp_path, processes=1).findings == first.findings
    assert {path: path.stat().st_mtime_ns for path in kept[1:]} == before


def test_init_writes_a_file_that_can_be_audited_and_overwrites_none(tmp_path: Path) -> None:
    init(tmp_path / "federation.toml")
    assert read(tmp_path / "federation.toml").name == "faces"
    with pytest.raises(InvalidInput, match=r"federation\.toml exists already; name another file"):
        init(tmp_path / "federation.toml")
    with pytest.raises(InvalidInput, match=r"--label is about columns of what file\?"):
        init(tmp_path / "other.toml", wishes=Wishes("kind"))
