"""Paper 004's tables at a size that says nothing: every cell runs, and rows, claims and figures come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.learn.generative.duel import Bout
from coterie.learn.sgd import Local
from coterie.measure.exhibits import Chart, Gallery
from coterie.recipes import all_recipes
from coterie.recipes.base import Recipe, find
from coterie.recipes.client_reconstruction import counted, inversions, published, runs, tables
from coterie.recipes.client_reconstruction.setups import Setup
from coterie.recipes.settings import Settings
from coterie.report.html import render_reproductions
from coterie.run.jobs import Result

ONE_SEED = Settings(seeds=(5,))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    bout = Bout(steps=1, batch=8)
    size = runs.Sizes(40, 3, Local(steps=1, batch_size=4, lr=0.1), 4, bout, halved=True)
    monkeypatch.setitem(runs.SIZES, "quick", size)


def recipe(table: str) -> Recipe:
    return find(all_recipes(), "client_reconstruction", table)[0]


def results(chosen: Recipe, settings: Settings) -> dict[str, Result]:
    return {job.key: job.work(**job.arguments) for job in chosen.jobs(settings)}


def test_the_published_values_are_where_the_paper_has_them() -> None:
    assert published.similarity("MNIST", 6, "FL", 0.0) == 0.413
    assert published.similarity("MNIST", 8, "CFL", 1.0) == 0.572
    assert published.similarity("CMNIST", 6, "CFL", 0.2) == 0.704
    assert published.similarity("MNIST", 6, "CFL", 0.3) is None


def test_everybody_has_pictures_of_its_own_turned_its_own_way() -> None:
    federation, holders = Setup(each=50).federation(3)
    assert federation.clients == 6
    assert federation.groups.tolist() == [0, 0, 0, 1, 1, 1]
    rows = federation.train[1]
    mine = (federation.examples.x[rows][federation.examples.y[rows] == 3] + 1) / 2
    torch.testing.assert_close(holders.victim[3], mine)
    assert len(holders.others[3]) == 2
    pictures = torch.cat([federation.examples.x[federation.train[client]] for client in range(6)]).flatten(1)
    assert len(pictures.unique(dim=0)) == 300  # nobody has another's
    same, _ = Setup(each=50, control=True).federation(3)
    turned = torch.rot90(same.examples.x[same.train[1]], -1, (2, 3))
    torch.testing.assert_close(federation.examples.x[federation.train[1]], turned)  # the same people, upright


def test_writers_are_one_client_s_alone_and_in_the_control_everybody_s(tmp_path: Path) -> None:
    """Each picture is as bright as its writer's number, so that one can see who wrote it, and faint as a whole."""
    count = 64 * 20
    writer, label = np.arange(count) // 20, np.arange(count) % 10
    images = np.broadcast_to(writer[:, None, None], (count, 64, 64)).astype(np.uint8)
    images[:, :8, :8] = 64
    np.savez(tmp_path / "chinese_mnist_64.npz", images=images, label=label, writer=writer)
    hands = []
    for control in (False, True):
        made, _ = Setup("CMNIST", 6, 40, control=control, folder=str(tmp_path)).federation(0)
        assert bool((made.examples.x.flatten(1).max(1).values == 1).all())  # of what is faint no network learns
        hands.append([{*made.examples.x[made.train[one]].mean((1, 2, 3)).tolist()} for one in (0, 1)])
    (mine, other), (shared, same) = hands
    assert not mine & other
    assert shared & same


def test_table_one(tmp_path: Path) -> None:
    chosen = recipe("I")
    shown = chosen.shown(ONE_SEED, results(chosen, ONE_SEED))
    assert [row.published for row in shown.rows] == [
        *(0.413, None, 0.553, 0.545, 0.553, 0.562, 0.575, None),  # six clients, and the control
        *(0.523, 0.572),  # eight
    ]
    assert all({"identified", "own", "strangers", "collapse", "accuracy"} <= row.values.keys() for row in shown.rows)
    assert len(shown.claims) == 13
    gallery, *charts = shown.charts
    assert isinstance(gallery, Gallery)
    assert all(isinstance(chart, Chart) for chart in charts)
    assert len(charts) == 3
    page = render_reproductions("Reproduced", [shown])
    assert page.count("data:image/png") > 100
    assert "By how much is tapped" in page


def test_the_defences_and_their_radar() -> None:
    chosen = recipe("Fig 12")
    shown = chosen.shown(ONE_SEED, results(chosen, ONE_SEED))
    guaranteed = next(row for row in shown.rows if row.key["defence"] == "clipped")
    assert "-DP at client level" in guaranteed.note
    for row in shown.rows:
        assert (row.note == "no formal guarantee") == (row.key["defence"] in ("plain", "adaptive"))
    radar = shown.charts[0]
    assert isinstance(radar, Chart)
    assert (radar.kind, len(radar.spokes)) == ("radar", 4)
    assert {series.name for series in radar.series} == {"none", "plain", "adaptive", "clipped"}
    assert "Three defences" in render_reproductions("Reproduced", [shown])


def test_figure_ten_shows_how_the_pictures_came_about() -> None:
    chosen = recipe("Fig 10")
    shown = chosen.shown(ONE_SEED, results(chosen, ONE_SEED))
    assert all(0 <= row.values["degrees off"].value <= 180 for row in shown.rows)
    galleries = shown.charts
    assert [gallery.title for gallery in galleries] == ["Client by client", "Round by round"]
    headings = [heading for heading, _ in galleries[1].rows] if isinstance(galleries[1], Gallery) else []
    assert headings == ["after 1 rounds", "at the end", "true"]


def test_costs_count_the_local_generator() -> None:
    chosen = recipe("Fig 14")
    found = counted.costs(ONE_SEED, results(chosen, ONE_SEED))
    assert found["adaptive"]["operations"].value > found["plain"]["operations"].value
    assert found["adaptive"]["bytes"].value == pytest.approx(found["plain"]["bytes"].value, rel=0.01)
    assert 0 < found["adaptive"]["noised"].value < found["plain"]["noised"].value == 1


def test_inversion_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "REGIMES", ((1, 1, 0),))
    monkeypatch.setattr(inversions, "ITERATIONS", 3)
    chosen = recipe("inversion")
    done = results(chosen, ONE_SEED)
    shown = chosen.shown(ONE_SEED, done)
    assert -1 <= shown.rows.rows[0].ours.value <= 1
    assert [type(figure) for figure in shown.charts] == [Gallery]


def test_degrees_off_go_the_shorter_way_round() -> None:
    of_three = tables.figure_ten(ONE_SEED)[1]  # client 3, turned by 270
    assert [tables.degrees_off(of_three, found) for found in (270, 0, 15, 90)] == [0, 90, 105, 180]


def test_cells_have_names_of_their_own() -> None:
    every = (tables.table_one, tables.figure_ten, tables.figure_twelve)
    names = [one.name for cells in every for one in cells(ONE_SEED)]
    assert len({*names}) >= 15
