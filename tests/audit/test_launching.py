"""What `coterie init` proposes to launch with: which epsilon is proven of it, and what must change for one to be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.audit.test_starter import hospital

from coterie.audit.case import Subject, parse
from coterie.audit.launching import delta_for
from coterie.audit.starter import Wishes, fitted
from coterie.config.attainable import within_reach
from coterie.config.schema import Choice
from coterie.defences.dpsgd import DpSgd
from coterie.errors import CoterieError
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Whom
from coterie.protocols.base import Trainer
from coterie.protocols.ifca import Ifca

DPSGD = Choice.of("dpsgd", clip=1.0, noise_multiplier=2.0)


def written(path: Path, *, public: bool = False, epsilon: float | None = None) -> Subject:
    """``public``: as if somebody had put numbers there that are known without the rows."""
    text = fitted(path, Wishes(epsilon=epsilon)).text
    said = "\n".join(line for line in text.splitlines() if not (public and line.startswith("scale_guessed")))
    return parse(tomllib.loads(said), "written")


def said(subject: Subject, defence: Choice, seed: int = 0) -> Guarantee:
    promise = subject.case_of(defence, seed).promise
    assert promise is not None
    return promise.guarantee


def test_the_epsilon_that_was_asked_for_is_proven_in_every_seed_once_the_scale_is_public(tmp_path: Path) -> None:
    subject = written(hospital(tmp_path), public=True, epsilon=3.0)
    assert subject.limits == {"max_epsilon": 3.0}
    for seed in range(subject.seeds):
        found = said(subject, subject.defence, seed)
        assert found.proven
        assert 2.9 < found.epsilon <= 3.0  # no more noise than it takes
        assert (found.delta, found.level, found.neighbours) == (1e-5, Level.RECORD, Neighbours.ZERO_OUT)
        assert {one.whom for one in found.against} >= {Whom.SERVER, Whom.PARTICIPANT, Whom.PUBLIC}
        assert (
            "taken to be known to all: the numbers of [data] scale and which values 'gender', 'outcome' may have"
            in (found.provisos)
        )


def test_a_guessed_scale_proves_nothing_and_says_what_a_public_one_would(tmp_path: Path) -> None:
    path = hospital(tmp_path)
    guessed, public = (written(path, public=known, epsilon=3.0) for known in (False, True))
    found = said(guessed, guessed.defence)
    assert not found.proven
    assert "[data] scale, which were guessed from all rows" in found.why_not
    (way,) = found.attainable
    (change,) = way.changes
    assert "delete scale_guessed" in change
    assert way.guarantee.epsilon == said(public, public.defence).epsilon


def test_under_a_choice_by_raw_data_what_other_trainers_would_prove_is_what_they_prove(tmp_path: Path) -> None:
    subject = written(hospital(tmp_path), public=True)
    assert isinstance(subject.launched, Trainer)
    assert subject.launched.local.poisson
    found = said(subject, DPSGD)
    assert not found.proven
    assert [way.changes for way in found.attainable] == [
        ("the trainer fedavg, one model for all",),
        ("the trainer cosine_kmeans, whose clusters follow from what clients send anyway",),
    ]
    options = {name: value for name, value in subject.trainers[0].options.items() if name != "clusters"}
    for way, more in zip(found.attainable, ({}, {"clusters": 2}), strict=True):
        trainer = Choice.of(way.changes[0].removeprefix("the trainer ").split(",")[0], **options, **more)
        proven = said(subject.model_copy(update={"trainer": trainer}), DPSGD)
        assert proven.proven
        assert proven.epsilon == way.guarantee.epsilon
        assert proven.provisos == way.guarantee.provisos


def test_nothing_is_attainable_of_what_proves_nothing_anywhere(tmp_path: Path) -> None:
    subject = written(hospital(tmp_path), public=True)
    federation = subject.federation()

    def reach(defence: DpSgd, local: Local) -> int:
        return len(within_reach(defence, Ifca(clusters=2, local=local), federation, 1e-5))

    assert reach(DpSgd(1.0, 1.0), Local(steps=3)) == 2
    assert reach(DpSgd(1.0, 0.0), Local(steps=3)) == 0  # no noise
    assert reach(DpSgd(1.0, 1.0), Local(epochs=1)) == 0  # how many steps that would be, nobody has said


def test_arrays_that_nobody_standardises_have_their_epsilon_at_once(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    np.savez(tmp_path / "points.npz", x=draws.normal(size=(120, 5)), y=np.arange(120) % 3)
    subject = written(tmp_path / "points.npz", epsilon=8.0)
    assert 7.5 < said(subject, subject.defence).epsilon <= 8.0
    assert said(subject, subject.defence).proven


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, float("nan"), float("inf"), 1e9])
def test_an_epsilon_that_is_none_is_refused_before_anything_is_read(tmp_path: Path, epsilon: float) -> None:
    with pytest.raises(CoterieError, match=r"--epsilon=.* must be above 0 and at most 1e\+06; leave it out"):
        fitted(tmp_path / "nowhere.csv", Wishes(epsilon=epsilon))


def test_delta_gives_no_record_away() -> None:
    assert [delta_for(count) for count in (100, 10_000, 100_001, 5_000_000)] == [1e-5, 1e-5, 1e-7, 1e-8]


def test_what_is_proposed_is_explained_beside_it(tmp_path: Path) -> None:
    text = fitted(hospital(tmp_path), Wishes(epsilon=3.0)).text
    assert "[data.scale]\nGröße" not in text  # a name beyond ASCII is quoted
    assert '[data.scale]\n"Größe" = [170, 10]\nBlutdruck = [120, 10]\n' in text
    assert "epsilon 3 at delta 1e-05, once the numbers of [data.scale] are public.\n" in text
    assert "`coterie init --epsilon 3`" in fitted(hospital(tmp_path)).text
    assert text.endswith("max_epsilon = 3.0\n")
