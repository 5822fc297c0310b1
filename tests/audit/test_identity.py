"""A defence is its settings and not its words, and a result is kept as long as nothing that it depends on changes."""

from __future__ import annotations

from typing import Any

from tests.audit.toy import FAMILY, noise, subject

from coterie.audit import engine, work
from coterie.audit.case import label
from coterie.config.schema import Choice

NONE = Choice(kind="none")


def test_settings_whose_words_are_alike_are_two() -> None:
    alike = [Choice.model_validate({"kind": "noise", "folder": name}) for name in ("a", "b")]
    assert len({label(choice) for choice in alike}) == 1
    close = [noise(1.0), noise(1.0000001)]
    assert len({label(choice) for choice in close}) == 2
    for pair in (alike, close):
        assert len({work.key_of("toy", choice, 0) for choice in pair}) == 2
    asked = subject(defence={"kind": "noise", "strength": 1.0000001})
    assert [choice.options.get("strength") for choice in engine.settings(FAMILY, asked)] == [None, 1.0000001, 1.0, 4.0]


def test_the_configured_defence_is_not_run_twice() -> None:
    asked = subject(defence={"kind": "noise", "strength": 4})
    assert engine.settings(FAMILY, asked) == [NONE, noise(4.0), noise(1.0)]


def jobs_made_anew(**changed: Any) -> int:
    """How many jobs of the undefended toy and its reference run are not those of the plainest subject."""
    plan = work.Plan([(FAMILY, NONE)], [NONE])
    return sum(
        job.fingerprint != plain.fingerprint
        for job, plain in zip(work.jobs_of(plan, subject(**changed)), work.jobs_of(plan, subject()), strict=True)
    )


def test_what_no_measurement_depends_on_makes_none_anew() -> None:
    for beside in (
        {"name": "other"},
        {"limits": {"max_epsilon": 1.0}},
        {"defence": {"kind": "noise", "strength": 4.0}},
        {"audit": {"compare": [{"kind": "noise", "strength": 2.0}]}},
    ):
        assert jobs_made_anew(**beside) == 0
    assert jobs_made_anew(trainer={"kind": "fedavg"}) == 6
    assert jobs_made_anew(audit={"property": {"tag": "age"}}) == 3  # which training knows nothing of
