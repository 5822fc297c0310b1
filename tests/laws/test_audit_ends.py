"""Law 8, in part: the audit ends for every registered trainer with every registered defence, and what it says about the
federation as configured is what training it says."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.test_families import coterie

from coterie.audit import reference
from coterie.audit.case import Subject, label, parse
from coterie.audit.engine import admitted, audit
from coterie.audit.numerics import numerics_of
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.toml import document
from coterie.config import registry
from coterie.config.schema import Choice
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.measure.claims import Promise
from coterie.measure.findings import AuditResult
from coterie.measure.numerics.audit import NumericsAudit
from coterie.report.html import render
from coterie.report.values import ledger
from coterie.rng import Rng
from coterie.run.folder import RunFolder
from coterie.run.training import train

TRAINERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "fedem": {"components": 2},
    "ifca": {"clusters": 2, "candidates": 2},
    "local_only": {},
    "sattler": {},
    "cosine_kmeans": {"clusters": 2},
    "kfed": {"clusters": 3},
    "federated_lloyd": {"clusters": 3, "level": "record", "steps": 2},
    "feddp_kmeans": {"clusters": 3, "level": "record"},
    "vertical_kmeans": {"clusters": 3, "steps": 2, "start_on": "records"},
    "weighted_grid": {"clusters": 3, "local": 2, "steps": 2, "sketches": 64},
}
CLUSTERINGS = ("kfed", "federated_lloyd", "feddp_kmeans", "vertical_kmeans", "weighted_grid")
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "dropout": {"rate": 0.2},
    "l2": {"penalty": 0.01},
    "dpsgd": {"clip": 1.0, "noise_multiplier": 8.0},  # the less noise there is, the longer the accountant takes
    "adaptive_ldp": {"bout": {"steps": 1, "batch": 4}},
    "plain_ldp": {},
    "clipped_ldp": {"noise_multiplier": 8.0},
    "mingling": {"cipher": "mock", "exact": True},
    "secure_sums": {},
    "noisy_sums": {"added_by": "shared"},
    "randomised_response": {"epsilon": 2.0, "bound": 200.0},
    "perturb_once": {"epsilon": 2.0},
    "blinded_sums": {},
    "ckks_sums": {},
    "proven_sums": {"bound": 40.0, "sampled": 2},
    "private_grid": {"epsilon": 8.0},
    "robust": {"rule": "krum", "bound": 1.0},
}
PRICED = ("dpsgd", "clipped_ldp", "noisy_sums", "randomised_response", "perturb_once", "private_grid")
CHOICES = [Choice.model_validate({"kind": kind, **options}) for kind, options in DEFENCES.items()]

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {"kind": "faces", "count": 160, "label": "hair", "rows": 12, "columns": 12, "rates": {"hat": [0.6, 0.4]}},
    "partition": {"kind": "label_sets", "clients": 6, "sets": 2},
    "model": {"kind": "fcnn", "hidden": 4},
}
AUDIT: dict[str, Any] = {
    "seeds": 1,
    "property": {"tag": "hat"},
    "compare": [{"kind": kind, **options} for kind, options in DEFENCES.items()],
    "property_inference": {"warmup": 1, "scored": 4, "victims": 1},
    "property_of_clients": {"looks": 1, "imagined": 8},
    "model_acquisition": {"join": 2},
    "preference_profiling": {"retrain": 1},
    "kmeans_membership": {"trials": 20},
    "kmeans_reconstruction": {"victims": 1},
    "gradient_inversion": {"victims": 2, "pictures": 1, "iterations": 2},
    "client_reconstruction": {"rounds": 2, "steps": 1},
    "model_membership": {"rehearsals": 4, "records": 40},
    "canaries": {"count": 12},
}


def subject(trainer: str, *, poisson: bool = True, **more: Any) -> Subject:
    local = {"steps": 2, "batch_size": 8, "lr": 0.1, "poisson": poisson}
    training = {} if trainer in CLUSTERINGS else {"rounds": 2, "local": local}
    chosen = {"kind": trainer, **training, **TRAINERS[trainer]}
    if trainer in ("vertical_kmeans", "weighted_grid"):
        more = {"partition": {"kind": "vertical", "parties": 3}, **more}
    return parse({**TINY, "public": {"rows": 40}, "trainer": chosen, "audit": AUDIT, **more}, "test")


@pytest.fixture(scope="module", autouse=True)
def numerics_are_looked_at_once() -> Iterator[None]:
    """What is found of DP-SGD's numerics, in seconds, is the same whoever trains: jobs are forked with it."""
    asked = subject("fedavg", defence={"kind": "dpsgd", **DEFENCES["dpsgd"]})
    case, look = asked.case(asked.trainers[0]), numerics_of
    found = look(case.promise, case.defence, Rng.seeded(case.seed).child("attack"))
    assert found is not None

    def recalled(promise: Promise | None, defence: Defence, rng: Rng, seed: int) -> NumericsAudit | None:
        proven = promise is not None and promise.guarantee.proven
        return found if proven and defence == case.defence else look(promise, defence, rng, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "numerics_of", recalled)
        yield


def test_no_trainer_and_no_defence_is_missing() -> None:
    assert TRAINERS.keys() == registry.TRAINERS.keys()
    assert DEFENCES.keys() == registry.DEFENCES.keys()


@pytest.mark.timeout(1200)  # an audit for each defence: a minute or two, on a machine that nobody else uses
@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_pair_is_a_finding_or_a_reason(trainer: str, tmp_path: Path) -> None:
    """With each defence to compare with, and then with each as the one to launch with, from the same results."""
    asked = subject(trainer)
    compared = audit(asked, tmp_path, processes=1)
    accounted_for(asked, compared)
    page = html.unescape(render(compared))
    assert all(one.reason in page for one in compared.left_out)
    for choice in CHOICES:
        asked = subject(trainer, defence=choice.model_dump())
        if asked.why_not(choice, asked.launched):
            with pytest.raises(InvalidInput, match=rf"defence '{choice.kind}' does not fit trainer '{trainer}': "):
                audit(asked, tmp_path, processes=1)
        else:
            result = audit(asked, tmp_path, processes=1)
            accounted_for(asked, result)
            as_trained(asked, result)


def accounted_for(asked: Subject, result: AuditResult) -> None:
    families, _ = admitted(asked)
    assert len(families) >= (1 if asked.trainers[0].kind in CLUSTERINGS else 3)
    assert not [str(one) + one.reason for one in result.left_out if one.failed]
    reasons = {(one.family, one.defence): one.reason for one in result.left_out}
    assert all(reasons.values())
    found = {(one.family, one.defence) for one in result.findings}
    found |= {(one.family, one.defence) for one in result.as_configured}
    nowhere = {family for family, defence in reasons if not defence}  # what cannot be tried even undefended
    assert not nowhere & {family for family, _ in found}
    for name in [AS_CONFIGURED, *(family.name for family in families if family.name not in nowhere)]:
        for choice in CHOICES:
            assert ((name, label(choice)) in found) != ((name, label(choice)) in reasons), (name, label(choice))
    count = sum(bool(one.defence) for one in result.left_out)
    assert f"{count} combinations were left out: " in result.headline


def as_trained(asked: Subject, result: AuditResult) -> None:
    """Utility, epsilon and bytes are those of a training with the same seed."""
    case = asked.case(asked.trainers[0])
    done = train(case.protocol, case.federation, case.model, seed=asked.seed, defence=case.defence)
    (row,) = [one for one in result.as_configured if one.defence == label(asked.defence)]
    assert row.utility_measure == done.scores.measure
    assert row.utility.estimate == done.scores.mean
    assert row.upload_bytes == done.traffic.up_a_client
    assert row.spent == case.spent(done.ledger)
    assert (row.promise and row.promise.epsilon) == (case.promise and case.promise.epsilon)
    assert (row.spent is not None) == (asked.defence.kind in PRICED)


def test_the_audit_and_the_training_command_say_the_same(tmp_path: Path) -> None:
    defence = {"kind": "dpsgd", **DEFENCES["dpsgd"]}
    families = {**AUDIT, "compare": [], "families": ["preference profiling"]}
    limits = {"max_epsilon": 50.0, "min_accuracy": 0.001}
    asked = subject("fedavg", defence=defence, audit=families, seed=3, limits=limits)
    values = asked.model_dump(mode="json", exclude={"audit", "limits", "recorded"})
    (tmp_path / "a.toml").write_text(document(values))
    done = coterie(tmp_path, "train", "a.toml")
    assert done.returncode == 0, done.stderr
    result = audit(asked, tmp_path / "audit", processes=1)
    row = result.as_configured[-1]
    assert row.promise is not None
    assert row.spent is not None
    secret = replace(row.promise.guarantee, simulated=False)  # a real run's noise does not follow from its seed
    assert f"privacy: {secret}; {ledger(row.spent)}" in done.stdout
    epsilon, accuracy = result.checks
    assert epsilon.measured.estimate == max(row.promise.epsilon, row.spent)
    assert accuracy.measured == row.utility
    assert result.passed


def test_without_noise_the_audit_and_the_training_command_measure_the_same(tmp_path: Path) -> None:
    families = {**AUDIT, "compare": [], "families": ["preference profiling"]}
    asked = subject("fedavg", poisson=False, audit=families, seed=3)  # batches that are no secret
    values = asked.model_dump(mode="json", exclude={"audit", "limits", "recorded"})
    (tmp_path / "a.toml").write_text(document(values))
    done = coterie(tmp_path, "train", "a.toml")
    assert done.returncode == 0, done.stderr
    row = audit(asked, tmp_path / "audit", processes=1).as_configured[-1]
    assert row.utility.estimate == RunFolder(tmp_path / "runs/tiny-fedavg-001").history[-1]["accuracy"]


@pytest.mark.parametrize("command", ["train", "audit"])
def test_a_misfit_to_launch_with_is_one_line(command: str, tmp_path: Path) -> None:
    values = subject("fedavg", defence={"kind": "mingling", "cipher": "mock"}).model_dump(mode="json")
    (tmp_path / "a.toml").write_text(document({key: values[key] for key in (*TINY, "trainer", "defence")}))
    done = coterie(tmp_path, command, "a.toml")
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if "coterie:" in line]
    assert re.fullmatch(r"coterie: defence 'mingling' does not fit trainer 'fedavg': .*; change .*", told[-1])
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["a.toml"]
