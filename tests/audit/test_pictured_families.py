"""Families that rebuild pictures, on small digits: what leaks comes back, and what is sealed does not."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.attacks.base import Pictures
from coterie.audit.case import Subject, parse
from coterie.audit.families.client_reconstruction import holders, pair, without_the_victim
from coterie.audit.plugins import find
from coterie.audit.recorded import Recording
from coterie.config.schema import Choice
from coterie.measure.judge import judge

NONE, SEALED = Choice(kind="none"), Choice(kind="secure_sums")
QUICK: dict[str, Any] = {
    "seeds": 1,
    "gradient_inversion": {"pictures": 1, "victims": 3, "iterations": 20},
    "client_reconstruction": {"rounds": 4, "steps": 2},
}


def subject(**more: Any) -> Subject:
    local = {"steps": 2, "batch_size": 16, "lr": 0.3}
    said: dict[str, Any] = {
        "name": "digits",
        "data": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 6},
        "model": {"kind": "fcnn", "hidden": 16},
        "trainer": {"kind": "fedavg", "rounds": 4, "local": local},
        "audit": QUICK,
    }
    return parse(said | more, "test")


def test_a_dense_network_hands_its_pictures_to_the_server() -> None:
    family = find("gradient inversion")
    evidence = family.measure(subject(), NONE, 0)
    real, control = evidence.findings
    assert real.score > 0.95
    assert real.chance < 0.6
    assert control.control
    assert control.score < real.score - 0.3
    assert len(evidence.pictures["private"]) == len(evidence.pictures["rebuilt"]) == 3
    assert "one round" in family.differs(subject())


def test_what_is_sealed_leaves_the_server_with_what_anybody_would_say() -> None:
    real, _ = find("gradient inversion").measure(subject(), SEALED, 0).findings
    assert real.score == pytest.approx(real.chance)


@pytest.mark.parametrize("name", ["client reconstruction", "property inference"])
def test_a_claim_is_stated_at_the_configured_delta(name: str) -> None:
    quick = {"property_inference": {"clients": 3, "warmup": 1, "scored": 6, "victims": 1, "controls": []}}
    faces = {"kind": "faces", "count": 120, "label": "male", "rows": 12, "columns": 12}
    local = {"steps": 1, "batch_size": 4, "lr": 0.1, "poisson": True}
    trainer = {"kind": "fedavg", "rounds": 2, "local": local}
    asked = subject(delta=1e-3, data=faces, trainer=trainer, audit={**QUICK, **quick, "property": {"tag": "hat"}})
    dpsgd = Choice.model_validate({"kind": "dpsgd", "clip": 1.0, "noise_multiplier": 1.0})
    promise = find(name).measure(asked, dpsgd, 0).promise
    assert promise is not None
    assert promise.guarantee.delta == 1e-3


def test_a_client_draws_another_s_classes() -> None:
    evidence = find("client reconstruction").measure(subject(), NONE, 0)
    real, beyond, control = evidence.findings
    assert (real.measure, beyond.measure) == ("share nearest to the victim", "cosine difference")
    assert real.chance == pytest.approx(1 / 7)  # victim, attacker, four others and strangers
    assert (control.control, control.chance) == (True, 0.5)
    assert len(evidence.pictures["rebuilt"]) == 10


@pytest.mark.parametrize("name", ["gradient inversion", "client reconstruction"])
def test_tables_are_no_pictures(name: str) -> None:
    rows = subject(data={"kind": "gaussians", "count": 300}, model={"kind": "dense", "sizes": [100, 10]})
    assert "needs pictures" in find(name).admits(rows)
    assert find(name).admits(subject()) == ""


def test_the_user_s_own_pictures(tmp_path: Path) -> None:
    """A folder of coloured PNG files that are not square: both families rebuild pictures of that very shape."""
    draws = np.random.default_rng(0)
    for level, name in enumerate(("cats", "dogs", "newts")):
        (tmp_path / name).mkdir()
        for number in range(60):
            levels = draws.integers(60 * level, 60 * level + 100, (12, 10, 3)).astype(np.uint8)
            Image.fromarray(levels).save(tmp_path / name / f"{number}.png")
    data = {"kind": "images", "path": str(tmp_path), "rows": 12, "columns": 10}
    own = subject(data=data, model={"kind": "strided_cnn", "width": 4})
    for name in ("gradient inversion", "client reconstruction"):
        family = find(name)
        assert family.admits(own) == ""
        evidence = family.measure(own, NONE, 0)
        assert all(-1 <= finding.score <= 1 for finding in evidence.findings)
        assert len(evidence.pictures["private"]) == len(evidence.pictures["rebuilt"]) == 3
        png = Image.open(BytesIO(base64.b64decode(evidence.pictures["rebuilt"][0].split(",")[-1])))
        assert png.size == (10, 12)
        assert png.mode == "RGB"


def test_in_the_control_pools_are_strangers_alone() -> None:
    federation = subject().case_of(NONE, 0).federation
    attacker, victim, others = pair(federation)
    assert len({attacker, victim, *others}) == 6
    truth = holders(federation, victim, [attacker, *others])
    control = without_the_victim(truth)
    for name, pool in control.victim.items():
        both = torch.cat([pool, control.strangers[name]])
        assert torch.equal(both, truth.strangers[name])
    guess = Pictures({name: pool[:1] for name, pool in control.victim.items()})
    assert judge(guess, control).score >= 0.9  # a digit may be there twice


def test_inversion_reads_a_recording_of_small_updates(tmp_path: Path) -> None:
    """What is recorded says how many pictures an update is of; more than a few are refused before anything is run."""
    large = subject(recorded={"folder": str(tmp_path)})
    (tmp_path / "0.npz").touch()
    recording = Recording(large)
    family = find("gradient inversion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recording, "has_uploads", True)
        patch.setattr(Recording, "has_published", True)
        assert "too many to tell any" in family.admits_recording(recording)
