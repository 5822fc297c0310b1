"""Groups that see the same examples changed: turned, renamed, mixed, whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.data.toys import apart, rows_once, same, toy

from coterie.data.federation import Examples, Federation
from coterie.data.partition import Iid, LabelPermutations, LabelSets, Partition, Rotation
from coterie.errors import InvalidInput
from coterie.rng import Rng

RNG = Rng.seeded(11)
TURNS = (0, -1, 2, 1)  # of torch.rot90, which turns the other way


def pictures(count: int = 400, test: int = 80) -> Examples:
    """Every picture is its own: nothing is mistaken for something else that was turned."""
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return replace(toy(count, test=test), x=x)


def originals(examples: Examples, shown: torch.Tensor, turn: int) -> torch.Tensor:
    """Which pictures these are, turned back."""
    back = torch.rot90(shown, -turn, (2, 3)).flatten(1)
    return torch.cdist(back, examples.x.flatten(1)).argmin(1)


@pytest.mark.parametrize("partition", [LabelSets(20, sets=4), Rotation(20), LabelPermutations(20, 4)], ids=repr)
def test_no_number_tells_a_group(partition: Partition) -> None:
    """In random order, groups are not in runs: of 19 neighbours 14 differ on average, and only 3 if they are sorted."""
    examples = pictures()
    groups = partition.split(examples, RNG).groups
    assert (groups.diff() != 0).sum() > 9
    sorted_ones = replace(partition, shuffled=False).split(examples, RNG).groups  # type: ignore[type-var]
    assert sorted_ones.tolist() == sorted(groups.tolist())


def test_every_picture_in_every_angle() -> None:
    """Ghosh et al.: 320 training pictures in four angles, dealt to 4 x 8 clients of 40; all 80 others are tested."""
    examples = pictures()
    federation = Rotation(32, full=True).split(examples, RNG)
    assert federation.train.sizes.tolist() == [40] * 32
    assert rows_once(federation.train)
    assert apart(federation)
    for group, turn in enumerate(TURNS):
        members = (federation.groups == group).nonzero().flatten().tolist()
        seen = torch.cat([originals(examples, federation.examples.x[federation.train[c]], turn) for c in members])
        assert sorted(seen.tolist()) == list(range(320))
        tested = originals(examples, federation.examples.x[federation.test[members[0]]], turn)
        assert sorted(tested.tolist()) == list(range(320, 400))
        rows = federation.train[members[0]]
        mine = originals(examples, federation.examples.x[rows], turn)
        assert torch.equal(federation.examples.y[rows], examples.y[mine])


def test_fewer_samples_take_only_what_is_used() -> None:
    federation = Rotation(8, full=True, samples=10).split(pictures(), RNG)
    assert federation.train.sizes.tolist() == [10] * 8
    assert len(federation.examples) == 8 * 10 + 4 * 80


def test_labels_are_renamed_group_by_group() -> None:
    names = (tuple(range(10)), tuple(range(9, -1, -1)))
    examples = toy(500, test=100)
    federation = LabelPermutations(6, names).split(examples, RNG)
    for client in range(6):
        for rows in (federation.train[client], federation.test[client]):
            due = torch.tensor(names[int(federation.groups[client])])[examples.y[rows]]
            assert torch.equal(federation.examples.y[rows], due)
            assert torch.equal(federation.examples.x[rows], examples.x[rows])


def test_drawn_permutations_differ_and_the_first_changes_nothing() -> None:
    examples = toy(500, test=100)
    federation = LabelPermutations(4, 4).split(examples, RNG)
    maps = []
    for client in range(4):
        rows = federation.train[client]
        pairs = {(int(a), int(b)) for a, b in zip(examples.y[rows], federation.examples.y[rows], strict=True)}
        assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})  # one to one
        maps.append(pairs)
        assert (federation.groups[client] == 0) == all(old == new for old, new in pairs)
    assert len({frozenset(pairs) for pairs in maps}) == 4


def shares(federation: Federation, examples: Examples, client: int, test: bool) -> torch.Tensor:
    rows = (federation.test if test else federation.train)[client]
    kept = federation.examples.y[rows] == examples.y[rows]
    return kept.double().mean()


@pytest.mark.parametrize("full", [False, True])
def test_a_mixture_has_the_drawn_shares_in_training_and_test(full: bool) -> None:
    """Two versions, labels kept and labels turned by one: the share of kept labels is the first's weight."""
    names = (tuple(range(10)), (*range(1, 10), 0))
    examples = toy(8000, test=2000)
    federation = LabelPermutations(12, names, mixing=0.5, full=full).split(examples, RNG)
    if full:  # rows are in another order then; x tells which they are
        examples = examples.take(federation.examples.x[:, 0].long())
    found = torch.stack([shares(federation, examples, client, False) for client in range(12)])
    tested = torch.stack([shares(federation, examples, client, True) for client in range(12)])
    assert (found - tested).abs().max() < 0.01
    assert torch.equal(federation.groups, (found < 0.5).long())
    assert ((found > 0.05) & (found < 0.95)).any()  # real mixtures
    assert same(federation, LabelPermutations(12, names, mixing=0.5, full=full).split(toy(8000, test=2000), RNG))


def test_quantities_may_be_skewed() -> None:
    def sizes(alpha: float | None) -> torch.Tensor:
        return Iid(20, alpha=alpha).split(toy(4000), RNG).train.sizes.double()

    assert sizes(None).std() < 1
    assert sizes(0.3).std() > sizes(3.0).std() > 10
    assert sizes(0.05).min() >= 2
    assert all(sizes(alpha).sum() == 3200 for alpha in (None, 0.3, 3.0))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (LabelPermutations(4, ((0, 1), (1, 0))), "permutations"),
        (LabelPermutations(4, 0), "permutations=0"),
        (LabelPermutations(4, 4, mixing=0.0), "mixing=0.0 must be positive"),
        (LabelPermutations(4, 4, samples=3), "samples=3 must be at least 1, and needs full=True"),
        (LabelPermutations(4, 4, full=True, samples=900), "samples=900 must be at most 320"),
        (LabelPermutations(3, 4), "clients=3 must be one a group"),
        (Iid(4, alpha=-1.0), "alpha=-1.0 must be positive"),
        (Iid(4, alpha=1.0, minimum=1000), "minimum=1000"),
    ],
    ids=str,
)
def test_refused(partition: Partition, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        partition.split(pictures(), RNG)
