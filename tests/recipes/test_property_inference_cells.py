"""Cells of property inference, end to end on drawn faces: trained, attacked, judged, and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.data.federation import Examples
from coterie.data.partition.property import PropertySplit
from coterie.errors import InvalidInput
from coterie.learn.sgd import Local
from coterie.measure.reproduced import Key
from coterie.protocols.ifca import Ifca
from coterie.recipes.property_inference import RECIPES, tables, watched
from coterie.recipes.property_inference.acquisition import Siege
from coterie.recipes.property_inference.runs import Cell, Plan, Size, attacked, size
from coterie.recipes.property_inference.tasks import Detail, by_hair, task
from coterie.recipes.settings import Scale, Settings
from coterie.rng import Rng
from coterie.run.fingerprint import digest

OURS = {recipe.table: recipe for recipe in RECIPES}
TINY = Size(Detail(8, tokens=5, vocabulary=50, drawn=600), 4, 8, 2, Local(1, None, 8, 0.1), 4, 2, 4)


@pytest.mark.parametrize(
    "plan",
    [
        Plan("C", "FL", 5),
        Plan("C", "CFL", 3, control="placebo", gamma=5.0),
        Plan("B", "CFL", 4, control="absent", dropout=0.1),
        Plan("C", "FL", 3, sigma=4.0, purity=0.5),
    ],
)
def test_a_cell_is_trained_attacked_and_judged(plan: Plan) -> None:
    result = Cell(plan, TINY, Rng.seeded(0)).run(None)
    assert 0 <= result["auc"] <= 1
    assert 0 <= result["main_auc"] <= 1
    rounds = {row[0] for row in result["observations"]}
    assert rounds == set(range(4, 12))
    used = sum(row[3] for row in result["observations"])
    assert used == 4  # a property batch in every second of eight rounds, in the victim's cluster alone
    assert (result["guarantee"] is not None) == (plan.sigma > 0)
    assert ("pictures" in result) == plan.pictured == (plan.clients == 5)
    assert 0 <= result["contrast_auc_within"] <= 1


def test_a_cell_as_published_differs_where_the_paper_does() -> None:
    cell = Cell(Plan("C", "CFL", 3, as_published=True), TINY, Rng.seeded(0))
    assert isinstance(cell.protocol, Ifca)
    assert (cell.protocol.candidates, cell.protocol.choose_on_batch) == (0, True)
    result = cell.run(None)
    matched = Cell(Plan("C", "CFL", 3), TINY, Rng.seeded(0)).run(None)
    assert result["observations"] != matched["observations"]
    settings = Settings(seeds=(0,), rows=("C CFL 3",), as_published=True, rounds=200)
    assert settings.words == "quick, as published, 200 rounds"
    keys = [job.key for job in OURS["9"].jobs(settings)]
    assert keys[0] == "drawn/C-CFL-3clients-none-published-200rounds-seed0"
    with pytest.raises(InvalidInput, match="as_published=True has no meaning for property-inference, table App A"):
        OURS["App A"].check(settings)
    with pytest.raises(InvalidInput, match="rounds=3 must be at least"):
        attacked({"task": "C", "method": "FL", "clients": 3}, 0, "quick", None, rounds=3)


class Killed(Exception):
    pass


@pytest.mark.parametrize("gamma", [None, 5.0])
def test_a_killed_cell_goes_on_to_the_same_result(
    gamma: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "SAVED_EVERY", 3)
    cell = Cell(Plan("C", "CFL", 5 if gamma is None else 3, gamma=gamma), TINY, Rng.seeded(0))
    whole, kept = cell.run(None), tmp_path / "cell.partial"
    look = watched.Watched._look

    def killed_in_round_eight(self: watched.Watched) -> None:
        look(self)
        if self.watch.notes.following == 8:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(watched.Watched, "_look", killed_in_round_eight)
        with pytest.raises(Killed):
            cell.run(None, kept)
    assert kept.exists()
    resumed = cell.run(None, kept)
    assert {**resumed, "cost": None} == {**whole, "cost": None}


def test_what_is_held_does_not_grow_with_the_rounds() -> None:
    """The tape holds two rounds, and of what was imagined no more than the bound."""
    cell = Cell(Plan("C", "CFL", 3), replace(TINY, scored=16), Rng.seeded(0))
    chosen = task("C", None, TINY.detail, Rng.seeded(0))
    federation = cell.split(chosen).split(chosen.examples, Rng.seeded(0))
    attack = replace(cell.attack(chosen, cell.split(chosen).auxiliary(federation)), most_made=32)
    run = cell.watched(chosen, federation, attack)
    with run.ring:
        run.run()
    assert run.tape.view(attack.threat).rounds() == [19, 20]
    notes = run.watch.notes
    assert notes.count > 100
    assert [len(made) for made in notes.made] == [32, 32]
    assert len(notes.keys) == len(notes.seen[0]) == len(notes.seen[1])


def test_newcomers_besiege_a_server() -> None:
    result = Siege(2, "none", replace(TINY, warmup=8), Rng.seeded(0)).run(None)
    assert result["clusters"] >= 1
    assert 1 / 3 <= result["obtained"] <= 1
    assert 0 <= result["reached"] <= 1
    settings = Settings(seeds=(0,))
    jobs = OURS["App A"].jobs(settings)
    rows = OURS["App A"].shown(settings, {job.key: result for job in jobs}).rows
    assert [row.label for row in rows.where(measure="obtained")] == [
        f"{count} newcomers: share of models obtained" for count in (1, 2, 3, 4)
    ]
    assert set(rows[Key.of(newcomers=3, measure="auc")].values) == {"placebo", "absent"}


def test_the_paper_scale_is_the_papers() -> None:
    whole = size(Scale.PAPER, "A")
    assert whole.warmup + whole.scored == 5000
    assert (whole.local.steps, whole.local.batch_size, whole.local.lr, whole.every) == (1, 32, 0.01, 5)
    assert size(Scale.PAPER, "D").local.lr == 0.05


def test_keys_tell_plans_apart_and_defences_come_one_at_a_time() -> None:
    plans = [
        Plan("A", "FL", 3),
        Plan("A", "FL", 3, gamma=1.0),
        Plan("A", "FL", 3, sigma=0.2),
        Plan("A", "FL", 3, purity=0.5),
    ]
    assert len({plan.key for plan in plans}) == len(plans)
    with pytest.raises(InvalidInput, match="one at a time"):
        _ = Plan("A", "FL", 3, sigma=0.2, dropout=0.1).defence


def test_reviews_need_data_and_hair_has_one_colour() -> None:
    with pytest.raises(InvalidInput, match="--data"):
        task("D", None, TINY.detail, Rng.seeded(0))
    import torch

    colours = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
    names = ("Black_Hair", "Blond_Hair", "Brown_Hair")
    examples = Examples(
        torch.zeros(5, 2),
        torch.zeros(5, dtype=torch.int64),
        2,
        "toy",
        {name: colours[:, at] for at, name in enumerate(names)},
    )
    assert by_hair(examples).y.tolist() == [0, 1, 2]


def test_cells_that_are_compared_have_the_same_data_and_an_adversary_that_knows_as_much() -> None:
    """Whatever the method, the attack and the defence: rows of a seed differ in nothing else."""
    seen: dict[int, set[str]] = {}
    for entry in [*tables.active(Scale.QUICK), *tables.private(Scale.QUICK), *tables.regularised(True, Scale.QUICK)]:
        cell = Cell(entry.plan, TINY, Rng.seeded(5))
        chosen = task("C", None, TINY.detail, cell.rng.child("data"))
        split = cell.split(chosen)
        federation = split.split(chosen.examples, cell.rng.child("partition"))
        attack = cell.attack(chosen, split.auxiliary(federation))
        schedule = federation.schedules[PropertySplit.victim]
        rows = [federation.train.rows, federation.train.offsets, federation.test.rows, schedule.marked, schedule.plain]
        known = (attack.others, attack.each, attack.pairs, attack.mix, attack.skew, attack.rules.total)
        dealt = digest(
            [str(one.tolist()) for one in rows] + [str(known), str(replace(attack.imitation.local, poisson=False))]
        )
        seen.setdefault(entry.plan.clients, set()).add(dealt)
    assert {clients: len(found) for clients, found in seen.items()} == {3: 1, 5: 1, 10: 1}
