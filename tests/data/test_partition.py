from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.data.toys import apart, label_counts, rows_once, same, toy

from coterie.data.partition import (
    ByTag,
    Dirichlet,
    GaussianClients,
    Iid,
    LabelPermutations,
    LabelSets,
    Partition,
    Rotation,
    Vertical,
    late,
    waves,
)
from coterie.data.partition.features import rotate
from coterie.errors import InvalidInput
from coterie.rng import Rng

RNG = Rng.seeded(11)
ALL: list[Partition] = [
    Iid(7),
    Dirichlet(7, alpha=0.3),
    LabelSets(7, sets=3),
    LabelSets(7, sets=3, sizes=(1, 6), iid_rate=0.3),
    LabelPermutations(7, 3),
    LabelPermutations(7, 3, mixing=0.4),
    Iid(7, alpha=0.5),
    ByTag("writer"),
    ByTag("writer", clients=7, group_tag="school"),
]


@pytest.mark.parametrize("partition", ALL, ids=repr)
@pytest.mark.parametrize("test", [0, 200])
def test_every_partition_deals_each_row_once_and_repeats_itself(partition: Partition, test: int) -> None:
    examples = toy(1000, test=test)
    federation = partition.split(examples, RNG)
    assert rows_once(federation.train)
    assert apart(federation)
    assert (federation.train.sizes > 0).all()
    assert (federation.test.sizes > 0).any()
    if test and not isinstance(partition, ByTag):
        assert len(federation.train.rows) == 800
        assert (federation.test.rows >= 800).all()
    assert same(federation, partition.split(examples, RNG))
    assert not same(federation, partition.split(examples, Rng.seeded(12)))


def test_iid_clients_have_equal_sizes_and_all_labels() -> None:
    federation = Iid(5).split(toy(5000), RNG)
    assert federation.train.sizes.tolist() == [800] * 5
    assert federation.groups.tolist() == [0] * 5
    # 80 of each label are due; hypergeometric deviation is about 8, and 45 is beyond 5 of them.
    assert all((label_counts(federation, client) - 80).abs().max() < 45 for client in range(5))


def test_label_sets_are_pure_without_iid_rate() -> None:
    federation = LabelSets(10, sets=5, shuffled=False).split(toy(1000, test=200), RNG)
    assert federation.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    sets = []
    for client in range(10):
        held = label_counts(federation, client).nonzero().flatten().tolist()
        assert held == label_counts(federation, client, test=True).nonzero().flatten().tolist()
        assert len(held) == 2
        sets.append(tuple(held))
    assert sets[0::2] == sets[1::2]
    assert sorted(label for labels in sets[0::2] for label in labels) == list(range(10))
    assert federation.test[0].tolist() == federation.test[1].tolist()


@pytest.mark.parametrize("rate", [0.2, 0.6, 1.0])
def test_iid_rate_is_the_share_from_all_labels(rate: float) -> None:
    federation = LabelSets(10, sets=((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)), iid_rate=rate).split(
        toy(20_000, test=5000), RNG
    )
    for client in range(10):
        for test in (False, True):
            counts = label_counts(federation, client, test).to(torch.float64)
            group = int(federation.groups[client])
            own = counts[2 * group : 2 * group + 2].sum() / counts.sum()
            # (1 - r) of the set and r / 5 of the pot; 0.05 is over four deviations at 1,000 and more rows.
            assert abs(own - (1 - rate + rate / 5)) < 0.05
    assert (federation.train.sizes - 1500).abs().max() <= 60


def test_iid_rates_may_differ_between_clients() -> None:
    rates = (0.0, 0.5) * 5
    federation = LabelSets(10, sets=5, iid_rate=rates, shuffled=False).split(toy(10_000, test=2000), RNG)
    for client, rate in enumerate(rates):
        assert (int((label_counts(federation, client) > 0).sum()) > 2) == (rate > 0)
        assert (int((label_counts(federation, client, test=True) > 0).sum()) > 2) == (rate > 0)
    # A newcomer with another rate holds as much as its neighbour, to a tenth.
    assert (federation.train.sizes - 800).abs().max() < 80


def test_one_set_may_be_wholly_iid_beside_pure_ones() -> None:
    federation = LabelSets(4, sets=((0, 1), (2, 3)), iid_rate=(1.0, 1.0, 0.0, 0.0), shuffled=False).split(
        toy(4000), RNG
    )
    assert rows_once(federation.train)
    # The pot is 640 of 1,280 rows, 320 for each of two clients, 80 of each label; a deviation is about 7.
    assert (label_counts(federation, 0)[:4] - 80).abs().max() < 35
    assert label_counts(federation, 2)[[0, 1]].sum() == 0


def test_unequal_sets_take_clients_in_proportion() -> None:
    federation = LabelSets(20, sets=((0,), (1, 2, 3), (4, 5, 6, 7, 8, 9))).split(toy(1000), RNG)
    assert federation.groups.bincount().tolist() == [2, 6, 12]
    drawn = LabelSets(50, sets=5, sizes=(1, 3)).split(toy(1000), RNG)
    for group in range(5):
        members = (drawn.groups == group).nonzero().flatten().tolist()
        labels = {tuple(label_counts(drawn, client).nonzero().flatten().tolist()) for client in members}
        assert len(labels) == 1
        assert 1 <= len(labels.pop()) <= 3


def test_a_tiny_set_still_has_a_client() -> None:
    federation = LabelSets(2, sets=((0,), (1, 2, 3, 4, 5, 6, 7, 8, 9))).split(toy(1000), RNG)
    assert sorted(federation.groups.tolist()) == [0, 1]


def test_labels_in_no_set_are_left_out_and_samples_are_limited() -> None:
    federation = LabelSets(4, sets=((0,), (1,)), samples=30, iid_rate=0.5).split(toy(1000, test=200), RNG)
    assert federation.train.sizes.tolist() == [30, 30, 30, 30]
    assert set(federation.examples.y[federation.train.rows].tolist()) == {0, 1}
    assert set(federation.examples.y[federation.test.rows].tolist()) == {0, 1}


def test_dirichlet_is_more_skewed_for_smaller_alpha() -> None:
    def largest_share(alpha: float) -> float:
        federation = Dirichlet(20, alpha=alpha).split(toy(20_000), RNG)
        counts = torch.stack([label_counts(federation, client) for client in range(20)]).to(torch.float64)
        return float((counts.max(1).values / counts.sum(1)).mean())

    assert largest_share(0.05) > 0.6 > largest_share(1.0) > largest_share(100.0)
    assert largest_share(1000.0) < 0.15


def test_dirichlet_proportions_have_the_moments_of_the_draw() -> None:
    # A label's share at one of 4 clients has mean 1/4 and variance (1/4)(3/4)/(4 alpha + 1) = 0.0625 for alpha 0.5.
    # 400 labels: the sample variance deviates by about 0.0045, so 0.02 is a false alarm below 1e-4.
    examples = toy(40_000, classes=400, test=1)
    federation = Dirichlet(4, alpha=0.5, minimum=0).split(examples, RNG)
    shares = label_counts(federation, 0).to(torch.float64) / 100
    assert abs(float(shares.mean()) - 0.25) < 0.06
    assert abs(float(shares.var()) - 0.0625) < 0.02


def test_dirichlet_tops_up_empty_clients() -> None:
    federation = Dirichlet(300, alpha=0.01, minimum=2, test_share=0.0).split(toy(1000), RNG)
    assert federation.train.sizes.min() == 2
    assert len(federation.train.rows) == 1000


def test_by_tag_gives_each_writer_its_own_rows() -> None:
    federation = ByTag("writer", group_tag="school").split(toy(1000), RNG)
    assert federation.clients == 50
    for client in (0, 17, 49):
        rows = torch.cat([federation.train[client], federation.test[client]])
        assert sorted(rows.tolist()) == list(range(20 * client, 20 * client + 20))
        assert federation.groups[client] == client // 10
    small = replace(toy(1000), tags={"writer": torch.tensor([0] * 999 + [1])})
    assert ByTag("writer").split(small, RNG).clients == 1


def test_rotation_turns_every_row_to_its_groups_angle() -> None:
    draw = torch.Generator().manual_seed(0)
    pictures = replace(toy(600), x=torch.rand(600, 1, 5, 5, generator=draw))
    federation = Rotation(6, angles=(0, 90, -90, 180), members=(1, 1, 1, 3), shuffled=False).split(pictures, RNG)
    assert federation.groups.tolist() == [0, 1, 2, 3, 3, 3]
    assert apart(federation)
    turns = (0, -1, 1, 2)  # of torch.rot90, which turns the other way
    for client in range(6):
        for rows in (federation.train[client], federation.test[client]):
            due = torch.rot90(pictures.x[rows], turns[int(federation.groups[client])], (2, 3))
            assert torch.equal(federation.examples.x[rows], due)
    assert federation.test[3].tolist() == federation.test[5].tolist()


def test_rotate_is_clockwise_and_general_angles_agree_with_quarters() -> None:
    picture = torch.zeros(1, 1, 9, 9)
    picture[0, 0, 0, 4] = 1  # top centre
    assert rotate(picture, 90)[0, 0, 4, 8] == 1  # right centre
    nearly = rotate(picture, 90.0001)
    assert torch.allclose(nearly, rotate(picture, 90), atol=1e-3)
    wide = torch.rand(1, 2, 6, 12, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(rotate(wide, 180.0001), rotate(wide, 180), atol=1e-3)
    back = rotate(rotate(picture.repeat_interleave(5, 2).repeat_interleave(5, 3), 30), -30)
    assert back[0, 0, 2, 22] > 0.5


def test_vertical_parts_cover_all_columns_once() -> None:
    examples = toy(50)
    for vertical in (Vertical(3), Vertical(3, shuffled=True), Vertical(columns=((3,), (0, 1), (2,)))):
        federation = vertical.split(examples, RNG)
        assert federation.clients == 3
        assert federation.sizes.tolist() == [50] * 3  # each has all records
        assert sorted(torch.cat(federation.columns).tolist()) == [0, 1, 2, 3]
        for party in range(3):
            assert torch.equal(federation.part(party), examples.x[:, federation.columns[party]])
    with pytest.raises(InvalidInput, match="party=3"):
        federation.part(3)


def test_gaussian_clients_have_the_reference_runs_cost() -> None:
    spread = GaussianClients(clients=50, points=200)
    federation = spread.make(RNG)
    assert federation.examples.x.shape == (10_000, 100)
    assert federation.train[7].tolist() == list(range(1400, 1600))
    centres = spread.centres(RNG)
    distances = (federation.examples.x - centres[federation.examples.y]).square().sum(1)
    # The mean squared distance is d x variance = 50; one point's deviation is sqrt(2 d) x 0.5 = 7.1, the mean's 0.071.
    assert abs(float(distances.mean()) - 50) < 0.3
    server = spread.server(RNG).whole()
    assert server.x.shape == (10 * 20 + 100, 100)
    assert server.classes == 1
    nearest = torch.cdist(server.x[:200], centres).argmin(1)
    assert (nearest == torch.arange(10).repeat_interleave(20)).float().mean() > 0.9
    assert 0 <= server.x[200:].min() < server.x[200:].max() <= 1


def test_gaussian_clients_may_hold_few_components() -> None:
    federation = GaussianClients(clients=20, points=100, held=2).make(RNG)
    assert all(len(federation.examples.y[federation.train[client]].unique()) == 2 for client in range(20))


def test_latecomers_and_waves() -> None:
    federation = Iid(10).split(toy(100), RNG)
    joined = late(federation, share=0.3, round=5, rng=RNG)
    assert joined.joins is not None
    assert sorted(joined.joins.tolist()) == [0] * 7 + [5] * 3
    waved = waves(federation, clients=(9, 8, 7), size=2, every=10)
    assert waved.joins is not None
    assert waved.joins.tolist() == [0] * 7 + [20, 10, 10]


PICTURES = replace(toy(100), x=torch.zeros(100, 1, 4, 6))
WRONG: list[tuple[Partition | Vertical, str]] = [
    (Iid(0), "clients=0"),
    (Iid(2000), "clients=2000.*800 training"),
    (Dirichlet(5, alpha=0.0), "alpha=0.0 must be positive"),
    (Dirichlet(500, minimum=3), "minimum=3"),
    (LabelSets(20, sets=11), "sets=11 must be 1 to 10"),
    (LabelSets(3, sets=5), "clients=3 must be at least one a label set"),
    (LabelSets(20, iid_rate=1.5), "iid_rate=1.5 must lie between 0 and 1"),
    (LabelSets(20, iid_rate=(0.1, 0.2)), r"len\(iid_rate\)=2"),
    (LabelSets(20, sets=((0, 1), (1, 2))), "twice"),
    (LabelSets(20, sets=((0, 1), (12,))), "label=12 has no examples"),
    (LabelSets(20, sets=((0, 1), ())), "empty set"),
    (LabelSets(20, sets=5, sizes=(3, 4)), r"sizes=\(3, 4\) cannot cut 10 labels"),
    (LabelSets(500, sets=((0,), (1, 2, 3, 4, 5, 6, 7, 8, 9)), iid_rate=0.99), "share only"),
    (LabelSets(5, samples=0), "samples=0"),
    (ByTag("writr"), "did you mean 'writer'"),
    (ByTag("writer", clients=51), "clients=51 must be 1 to 50"),
    (ByTag("writer", minimum=21), "minimum=21"),
    (ByTag("writer", group_tag="shool"), "did you mean 'school'"),
    (Rotation(4), "must be pictures"),
    (Vertical(5), "parties=5 must be 1 to 4"),
    (Vertical(columns=((0,), (0, 1))), "two parties"),
    (Vertical(columns=((0,), (4,))), r"0\.\.3"),
]


@pytest.mark.parametrize(("partition", "message"), WRONG, ids=lambda value: repr(value))
def test_wrong_settings_are_named_with_a_remedy(partition: Partition | Vertical, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        partition.split(toy(1000), RNG)


def test_rotation_refuses_what_it_cannot_turn() -> None:
    with pytest.raises(InvalidInput, match="must be square"):
        Rotation(4).split(PICTURES, RNG)
    with pytest.raises(InvalidInput, match="members"):
        Rotation(4, angles=(0, 180), members=(1, 2)).split(PICTURES, RNG)
    with pytest.raises(InvalidInput, match="clients=3 must be one a group"):
        Rotation(3).split(PICTURES, RNG)


def test_wrong_mixtures_and_arrivals() -> None:
    with pytest.raises(InvalidInput, match="components=11 must not exceed the 10 points"):
        GaussianClients(clients=2, points=5, components=11)
    with pytest.raises(InvalidInput, match="held=11"):
        GaussianClients(held=11)
    federation = Iid(4).split(toy(100), RNG)
    with pytest.raises(InvalidInput, match=r"share=1\.0"):
        late(federation, 1.0, 3, RNG)
    with pytest.raises(InvalidInput, match=r"clients=\[4\]"):
        waves(federation, (3, 4), 1, 1)
    with pytest.raises(InvalidInput, match="somebody who starts"):
        waves(federation, (0, 1, 2, 3), 1, 1)
