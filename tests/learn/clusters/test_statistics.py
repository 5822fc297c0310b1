"""What clients send: the same as slow loops give, and never more than 1 for one unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.references import kmeans_loops
from tests.references.squares import squared_norms
from torch import Tensor

from coterie.learn.clusters.clipping import ClientClip, RecordClip, Unclipped
from coterie.learn.clusters.lloyd import leading_subspace, project, unpack_symmetric
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import WATCH, Unit, labels_of, statistics, unscaled
from coterie.learn.whole import UNITS
from coterie.rng import Rng

KINDS = ("outer", "weights", "bound", "centres", "lloyd 2", "reach 1", "middle 2")
CLUSTERS, FEATURES, BOUND = 3, 5, 2.0


def parts(seed: int) -> list[Tensor]:
    """Clients of 1 to 30 points, some of them far out."""
    draws = Rng.seeded(seed).child("points").torch()
    sizes = [1, 30, 7, 12]
    spread = [1.0, 1.0, 100.0, 0.01]
    return [scale * torch.randn(size, FEATURES, generator=draws) for size, scale in zip(sizes, spread, strict=True)]


def public(kind: str, seed: int) -> dict[str, Tensor]:
    draws = Rng.seeded(seed).child("public").torch()
    basis = torch.randn(FEATURES, FEATURES, generator=draws)
    subspace = leading_subspace(basis @ basis.T, 2)
    middle, server = torch.randn(FEATURES, generator=draws), torch.randn(8, FEATURES, generator=draws)
    known = project(server, subspace, middle)
    found = {"middle": middle, "subspace": subspace, "known": known, "bound": torch.tensor(BOUND)}
    found[WATCH] = torch.ones(())  # moves are to say how long their vectors are, too
    found["centres"] = torch.randn(1 if kind.startswith(("reach", "middle")) else CLUSTERS, FEATURES, generator=draws)
    if kind in ("bound", "centres"):  # FedDP-Init's lie in the subspace
        found["centres"] = middle + known[:CLUSTERS] @ subspace
    return found


def total(kind: str, points: list[Tensor], unit: Unit, seed: int) -> dict[str, Tensor]:
    return {name: leaf.sum(0) for name, leaf in statistics(kind, public(kind, seed), Points.of(points), unit).items()}


def exact_square(moved: Tensor) -> int:
    """The squared norm in steps, in whole numbers without limit."""
    steps = moved * UNITS
    assert torch.equal(steps, steps.round())
    return squared_norms(steps.long().view(1, -1).numpy())[0]


@pytest.mark.parametrize("kind", ["lloyd 1", "weights", "bound"])
def test_ties_are_decided_by_the_point_alone(kind: str) -> None:
    """5,000 points half-way between two centres: one that goes must not move the label of another."""
    facts = public(kind, 0)
    centres = facts["centres"]
    draws = Rng.seeded(3).child("ties").torch()
    half, along = (centres[0] + centres[1]) / 2, centres[1] - centres[0]
    side = torch.randn(5000, FEATURES, generator=draws)
    ties = half + side - (side @ along / along.square().sum()).unsqueeze(1) * along
    whole = total(kind, [ties], RecordClip, 0)
    for gone in (0, 1, 777, 4999):
        kept = torch.arange(5000) != gone
        fewer, alone = total(kind, [ties[kept]], RecordClip, 0), total(kind, [ties[gone : gone + 1]], RecordClip, 0)
        for name, leaf in whole.items():
            assert torch.equal(leaf - fewer[name], alone[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_one_record_moves_every_sum_by_one_at_most(kind: str, seed: int) -> None:
    points = parts(seed)
    whole = total(kind, points, RecordClip, seed)
    largest = 0.0
    for client in range(1, 4):
        for row in range(0, len(points[client]), 3):
            kept = torch.arange(len(points[client])) != row
            fewer = total(kind, [p[kept] if i == client else p for i, p in enumerate(points)], RecordClip, seed)
            alone = total(kind, [points[client][row : row + 1]], RecordClip, seed)
            for name, leaf in whole.items():
                moved = leaf - fewer[name]
                assert torch.equal(moved, alone[name]), (name, client, row)
                assert exact_square(moved) <= UNITS**2, (name, client, row)
                largest = max(largest, float(moved.norm()))
    assert largest > 0.97  # the bound is reached, but for what rounding may add: no noise is wasted


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_counts_by_its_weight(kind: str) -> None:
    """Weights are at most 1, so that no record moves a sum by more; and one of weight 0 moves none."""
    points = Points.of(parts(0))
    draws = Rng.seeded(0).child("weights").torch()
    weights = torch.rand(len(points.x), generator=draws)
    whole = statistics(kind, public(kind, 0), replace(points, weights=weights), RecordClip)
    for row in range(0, len(points.x), 7):
        fewer = weights.clone()
        fewer[row] = 0
        without = statistics(kind, public(kind, 0), replace(points, weights=fewer), RecordClip)
        for name, leaf in whole.items():
            slack = 0.03 if name == "outer" else 1e-4  # of 190 steps, rounding is felt
            assert float((leaf - without[name]).sum(0).norm()) <= float(weights[row]) + slack
    ones = statistics(kind, public(kind, 0), replace(points, weights=torch.ones(len(points.x))), RecordClip)
    for name, leaf in statistics(kind, public(kind, 0), points, RecordClip).items():
        torch.testing.assert_close(ones[name], leaf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_one_client_moves_every_sum_by_one_at_most(kind: str, seed: int) -> None:
    points = parts(seed)
    whole = total(kind, points, ClientClip, seed)
    largest = 0.0
    for client in range(4):
        fewer = total(kind, [part for i, part in enumerate(points) if i != client], ClientClip, seed)
        alone = total(kind, [points[client]], ClientClip, seed)
        for name, leaf in whole.items():
            moved = leaf - fewer[name]
            assert torch.equal(moved, alone[name]), (name, client)
            assert exact_square(moved) <= UNITS**2, (name, client)
            largest = max(largest, float(moved.norm()))
    assert largest > 0.99


@pytest.mark.parametrize("seed", range(3))
def test_sums_and_counts_are_those_of_a_loop(seed: int) -> None:
    points, facts = parts(seed), public("lloyd 1", seed)
    centres = facts["centres"].double().numpy()
    for unit, bound in ((Unclipped, None), (RecordClip, BOUND)):
        found = statistics("lloyd 1", facts, Points.of(points), unit)
        for client, part in enumerate(points):
            x = part.double().numpy()
            labels = kmeans_loops.nearest(x, centres)
            sums, counts = kmeans_loops.sums_and_counts(x, labels, CLUSTERS, bound, centres)
            ours = unscaled("sums", found["sums"][client], facts, unit)
            np.testing.assert_allclose(ours.numpy(), sums, rtol=1e-4, atol=1e-3)
            assert found["counts"][client].tolist() == counts.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_step_3_labels_points_as_in_the_subspace(seed: int) -> None:
    """Scott et al. project the points first; centres that lie in the subspace make that unnecessary."""
    points, facts = Points.of([part[part.norm(dim=1) < 50] for part in parts(seed)]), public("centres", seed)
    seen = project(points.x.double(), facts["subspace"].double(), facts["middle"].double())
    expected = kmeans_loops.nearest(seen.numpy(), facts["known"][:CLUSTERS].double().numpy())
    assert labels_of(points, facts).tolist() == expected.tolist()


def test_outer_products_keep_directions_alone() -> None:
    """Two points (3, 4) and (0, 10) about the origin: (9, 12; 12, 16) / 25 and (0, 0; 0, 1)."""
    points = Points.of([torch.tensor([[3.0, 4.0], [0.0, 10.0]])])
    found = statistics("outer", {"middle": torch.zeros(2)}, points, RecordClip)["outer"]
    expected = torch.tensor([[0.36, 0.48], [0.48, 1.64]])
    plain = unscaled("outer", found[0], {"middle": torch.zeros(2)}, RecordClip)
    torch.testing.assert_close(unpack_symmetric(plain, 2).float(), expected, rtol=0, atol=0.01)  # 190 steps to the unit
    as_client = statistics("outer", {"middle": torch.zeros(2)}, points, ClientClip)["outer"]
    assert float(as_client.norm()) == pytest.approx(1, abs=1e-5)


def test_a_client_says_where_its_points_lie_and_not_how_many_it_has() -> None:
    """Three points about centre 0 that sum to (6, 0), and four about centre 1 that sum to (0, 8): counts (3, 4) / 5,
    sums (6, 0; 0, 8) / 5, of norm 2 in all, clipped to 0.5."""
    once = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], *[[90.0, 92.0]] * 4])
    facts = {"centres": torch.tensor([[0.0, 0.0], [90.0, 90.0]]), "bound": torch.tensor(0.5)}
    for points in (once, once.repeat(7, 1)):
        found = statistics("lloyd 1", facts, Points.of([points]), ClientClip)
        torch.testing.assert_close(found["sums"][0].float(), torch.tensor([[0.6, 0.0], [0.0, 0.8]]), rtol=0, atol=3e-6)
        torch.testing.assert_close(found["counts"][0].float(), torch.tensor([0.6, 0.8]), rtol=0, atol=3e-6)
        plain = unscaled("sums", found["sums"][0], facts, ClientClip).float()
        torch.testing.assert_close(plain, torch.tensor([[0.3, 0.0], [0.0, 0.4]]), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [ClientClip, RecordClip])
@pytest.mark.parametrize("features", [FEATURES, 70])
def test_whose_data_go_moves_no_bit_of_anybody_elses_answer(kind: str, unit: Unit, features: int) -> None:
    """Else noise that hides one unit would not do: clients of one size are computed together, and then are not."""
    draws = torch.Generator().manual_seed(1)
    sizes = [20] * 6 + [1] * 3 + [300]
    mine = [torch.randn(size, features, generator=draws) for size in sizes]
    facts = {name: leaf for name, leaf in public(kind, 0).items() if leaf.dim() == 0}
    facts |= {"middle": torch.randn(features, generator=draws), "known": torch.randn(8, 2, generator=draws)}
    facts |= {"subspace": torch.eye(features)[:2], "centres": torch.randn(CLUSTERS, features, generator=draws)}
    everybody = statistics(kind, facts, Points.of(mine), unit)
    for gone in (0, 4, 7, 9):
        without = statistics(kind, facts, Points.of([*mine[:gone], mine[gone][:0], *mine[gone + 1 :]]), unit)
        for name, leaf in everybody.items():
            assert not bool(without[name][gone].any())
            others = [at for at in range(len(sizes)) if at != gone]
            assert torch.equal(without[name][others], leaf[others]), name


@pytest.mark.parametrize("kind", KINDS)
def test_no_finite_data_of_a_client_stop_the_sums(kind: str) -> None:
    """The largest floats, alone and against each other, and weights beyond all: every row is on the grid, and no other
    client's is another for it."""
    usual = parts(5)
    for extreme in (torch.full((2, FEATURES), 3.4e38), torch.tensor([[3.4e38] * FEATURES, [-3.4e38] * FEATURES])):
        points = Points.of([extreme, *usual])
        weights = torch.ones(len(points.x))
        weights[:2] = 1e15
        found, without = (
            statistics(kind, public(kind, 5), replace(some, weights=own), ClientClip)
            for some, own in ((points, weights), (Points.of(usual), weights[2:]))
        )
        for name, leaf in found.items():
            assert torch.equal(leaf[1:], without[name]), name
            assert exact_square(leaf[0]) <= UNITS**2, name


@pytest.mark.parametrize("kind", ["outer", "lloyd 1", "centres"])
def test_only_ratios_of_a_client_s_weights_matter(kind: str) -> None:
    points = Points.of(parts(6))
    weights = torch.rand(len(points.x), generator=Rng.seeded(6).torch())
    one, other = (
        statistics(kind, public(kind, 6), replace(points, weights=weights * times), ClientClip) for times in (1.0, 1e14)
    )
    for name, leaf in one.items():
        torch.testing.assert_close(leaf, other[name], rtol=0, atol=3 / UNITS)
