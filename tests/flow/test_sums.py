"""Aggregation against one client and one slot at a time."""

from __future__ import annotations

import pytest
import torch
from tests.references.client_loop import weighted_sums
from tests.wire.test_messages import Boxes

from coterie.errors import InvalidInput
from coterie.flow.ask import SPAN, Ask, Replies, Sums, Tables
from coterie.flow.guard import ServerGuard
from coterie.flow.turn import Roots, Turn
from coterie.wire.codec import decode, encode
from coterie.wire.messages import TRAIN, Contributions, Published

TURN = Turn(0, Roots.seeded(0))


def sent(clients: int, slots: int, per_slot: bool, dtype: torch.dtype = torch.float32) -> Contributions:
    draws = torch.Generator().manual_seed(clients)
    membership = torch.rand(clients, slots, generator=draws)
    membership[:, 0] = 0  # a slot that nobody chose
    values = {
        "w": torch.randn(clients, slots if per_slot else 1, 3, 2, generator=draws).to(dtype),
        "b": torch.randn(clients, slots if per_slot else 1, generator=draws).to(dtype),
    }
    return Contributions(torch.arange(clients), values, 100 * torch.rand(clients, generator=draws), membership)


@pytest.mark.parametrize("per_slot", [False, True])
@pytest.mark.parametrize(("clients", "slots"), [(1, 2), (7, 3)])
def test_sums(clients: int, slots: int, per_slot: bool) -> None:
    part = sent(clients, slots, per_slot)
    sums = Sums.of(part)
    for name, leaf in part.values.items():
        expected = weighted_sums(leaf, part.weights, part.membership)
        assert sums.values[name].dtype == torch.float64
        torch.testing.assert_close(sums.values[name], expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(sums.weights, (part.weights.unsqueeze(1) * part.membership).sum(0).double())
    assert sums.counts.tolist() == [0] + [clients] * (slots - 1)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_by_hand(dtype: torch.dtype, scale: float) -> None:
    """Two clients of weight 1 and 3 (or a thousandth of it) in slot 0, nobody in slot 1."""
    part = Contributions(
        torch.tensor([0, 1]),
        {"w": torch.tensor([[[2.0]], [[6.0]]], dtype=dtype)},
        scale * torch.tensor([1.0, 3.0]),
        torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
    )
    mean = Sums.of(part).mean(Published({"w": torch.tensor([[9.0], [7.0]], dtype=dtype)}))
    torch.testing.assert_close(mean.values["w"], torch.tensor([[5.0], [7.0]], dtype=dtype))
    assert mean.values["w"].dtype == dtype
    assert mean.sizes is not None
    assert mean.sizes.tolist() == [2, 0]


def test_partial_sums_add_up() -> None:
    part = sent(9, 3, per_slot=False)
    whole = ServerGuard().aggregate([part], TURN)
    chunks = [part.pick(torch.tensor(rows)) for rows in ([0, 1, 2, 3], [4], [5, 6, 7, 8])]
    pieces = ServerGuard().aggregate(iter(chunks), TURN)
    for name in whole.values:
        torch.testing.assert_close(whole.values[name], pieces.values[name], rtol=1e-5, atol=1e-4)
    assert whole.counts.tolist() == pieces.counts.tolist()
    torch.testing.assert_close(whole.weights, pieces.weights)


def test_adding_up_leaves_what_was_sent_alone() -> None:
    part = sent(4, 2, per_slot=True, dtype=torch.float64)
    before = {name: leaf.clone() for name, leaf in part.values.items()}
    first, second = Sums.over([part, part]), Sums.of(part) + Sums.of(part)
    for name, leaf in part.values.items():
        assert torch.equal(leaf, before[name])
        torch.testing.assert_close(first.values[name], second.values[name])
    assert first.counts.tolist() == second.counts.tolist()


def test_many_chunks_do_not_drift() -> None:
    """A thousand equal models have themselves as their mean, to the last bit that float32 has."""
    one = Contributions(torch.tensor([0]), {"w": torch.full((1, 1, 1), 0.1)}, torch.tensor([3.0]), torch.ones(1, 1))
    sums = ServerGuard().aggregate([one] * 1000, TURN)
    mean = sums.mean(Published({"w": torch.zeros(1, 1)}))
    assert float(mean.values["w"]) == pytest.approx(float(torch.tensor(0.1)), rel=1e-7)


def test_sealed_sums_stay_sealed() -> None:
    part = Contributions(
        torch.tensor([0, 1]), {}, torch.ones(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), {"s": Boxes(torch.ones(2, 4))}
    )
    before = Published({"w": torch.zeros(2, 4)}, previous=Published({"w": torch.ones(2, 4)}))
    published = (Sums.of(part) + Sums.of(part)).mean(before)
    assert published.values == {}
    assert published.sealed["s"].open("sesame").tolist() == [[4.0] * 4, [0.0] * 4]
    assert published.sizes is not None
    assert published.sizes.tolist() == [4, 0]
    assert published.previous is not None
    assert published.previous.previous is None  # not the whole past


def test_slots_that_do_not_match() -> None:
    part = Contributions(torch.tensor([0]), {"w": torch.zeros(1, 2, 3)}, torch.ones(1), torch.ones(1, 4))
    with pytest.raises(InvalidInput, match="slots of a contribution=2 must be 1 or 4"):
        Sums.of(part)


def test_of_nobody() -> None:
    """No answer could be used: there is nothing to release, and what was published stays as it is."""
    assert Replies(iter([])).whole() is None
    sums = ServerGuard().aggregate(Replies(iter([])), TURN)
    assert sums.empty
    before = Published({"w": torch.ones(2, 4)}, torch.tensor([1, 2]))
    assert sums.mean(before) is before


def test_replies_as_a_whole_are_in_the_order_in_which_they_came() -> None:
    part = sent(5, 2, per_slot=False)
    groups = [part.pick(torch.tensor(rows)) for rows in ([3, 1], [0], [4, 2])]
    whole = Replies(iter(groups)).whole()
    assert whole is not None
    assert whole.ids.tolist() == [3, 1, 0, 4, 2]
    assert torch.equal(whole.values["w"], part.values["w"][[3, 1, 0, 4, 2]])


def test_collecting_asks_once_and_adds_up() -> None:
    ask = Ask(TRAIN, 0, torch.arange(5), Published({"w": torch.zeros(2, 3, 2), "b": torch.zeros(2)}), None)
    part = sent(5, 2, per_slot=True)
    conversation = ServerGuard().collect(ask, TURN)
    assert next(conversation) is ask
    with pytest.raises(StopIteration) as finished:
        conversation.send(Replies(iter([part])))
    sums, expected = finished.value.value, Sums.of(part)
    for name, leaf in expected.values.items():
        assert torch.equal(sums.values[name], leaf)
    assert sums.counts.tolist() == expected.counts.tolist()


def test_rows_of_a_large_table_are_those_of_its_whole_sum() -> None:
    """The whole is added up only when it is asked for, or when another group comes."""
    draws = torch.Generator().manual_seed(3)
    table = torch.randn(3, 1, SPAN + 5, 4, generator=draws)
    part = Contributions(torch.arange(3), {"w": table}, torch.rand(3, generator=draws), torch.ones(3, 1))
    sums = Sums.over([part])
    assert isinstance(sums.values, Tables)
    expected = weighted_sums(table, part.weights, part.membership)
    for span in (slice(0, 10), slice(SPAN, SPAN + 100)):
        torch.testing.assert_close(sums.rows("w", span).double(), expected[0, span], rtol=1e-5, atol=1e-5)
        assert torch.equal(sums.rows("w", span).double(), sums.values["w"][0, span])
    twice = Sums.over([part, part])
    assert torch.equal(twice.values["w"], 2 * sums.values["w"])
    assert torch.equal(decode(encode(sums)).values["w"], sums.values["w"])
