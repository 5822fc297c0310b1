"""Law. Sums before noise are the same bits wherever the noise is added, under masks, in every order and chunking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.members import CLUSTERERS, Member
from tests.ring import play, turn
from torch import Tensor

from coterie.data.federation import Federation, Shards
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.noisy_sums.plan import NoisySums, grid_of
from coterie.defences.secure_sums import PairwiseMasks
from coterie.flow.ask import Sums
from coterie.learn.clusters.clipping import ClientClip, RecordClip
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import Unit, statistics
from coterie.learn.whole import STEP, UNITS
from coterie.wire.messages import Kind

BOUNDED = {name: member for name, member in CLUSTERERS.items() if getattr(member.protocol, "level", None)}
every_bounded = pytest.mark.parametrize("member", BOUNDED.values(), ids=BOUNDED.keys())


def silent(protocol: Any) -> list[NoisySums]:
    none = dict.fromkeys(protocol.releases(), 0.0)
    return [
        CentralNoise(none),
        LocalNoise(none),
        DistributedNoise(none, clients=8, colluders=0, dropouts=1),
        DistributedNoise(none, clients=8, colluders=0, dropouts=1, masks=PairwiseMasks()),
    ]


@every_bounded
@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
def test_the_three_trust_models_add_up_the_same_bits(member: Member, chunk_bytes: int) -> None:
    federation = member.federation()
    expected = play(member.protocol, federation, None).bytes
    for defence in silent(member.protocol):
        found = play(member.protocol, federation, None, defence=defence, chunk_bytes=chunk_bytes)
        assert found.bytes == expected, type(defence).__name__


def shuffled(federation: Federation) -> Federation:
    """Every client's records in another order."""
    order = torch.Generator().manual_seed(1)
    parts = [federation.train[client] for client in range(federation.clients)]
    return replace(federation, train=Shards.of([part[torch.randperm(len(part), generator=order)] for part in parts]))


@pytest.mark.parametrize("name", [name for name in BOUNDED if "records" in name])
def test_the_order_of_records_decides_no_bit(name: str) -> None:
    """At record level. A client's own row, at client level, is rounded once it is added up."""
    member = BOUNDED[name]
    runs = [play(member.protocol, one, None).bytes for one in (member.federation(), shuffled(member.federation()))]
    assert runs[0] == runs[1]


REQUESTS = ("outer", "weights", "bound", "centres", "lloyd 1", "reach 1", "middle 1")


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("unit", [ClientClip, RecordClip])
def test_a_client_that_goes_changes_no_bit_of_the_others(kind: str, weighted: bool, unit: Unit) -> None:
    """Odd widths, and clients alike, who are computed together: where the others' rows lie is then another thing."""
    draws = torch.Generator().manual_seed(0)
    sizes = [*[50] * 600, *torch.randint(1, 60, (300,), generator=draws).tolist()]
    for width in (5, 7):
        x = 10 * torch.randn(sum(sizes), width, generator=draws)
        weights = torch.rand(len(x), generator=draws) if weighted else None
        public = {
            "middle": x.mean(0),
            "centres": x[:1] if kind.startswith(("reach", "middle")) else x[:4],
            "bound": torch.tensor(8.0),
            "subspace": torch.eye(width)[:2],
            "known": torch.randn(6, 2, generator=draws),
        }
        whole, less = (Points(part, offsets, weights=own) for part, offsets, own in _without_first(x, sizes, weights))
        expected, found = (statistics(kind, public, points, unit) for points in (whole, less))
        for name, leaf in expected.items():
            assert torch.equal(found[name][1:], leaf[1:]), name


Held = tuple[Tensor, Tensor, Tensor | None]  # points, offsets, weights


def _without_first(x: Tensor, sizes: list[int], weights: Tensor | None) -> Iterator[Held]:
    """Points as they are, and with the first client's gone."""
    for gone in (0, sizes[0]):
        offsets = torch.tensor([0, sizes[0] - gone, *sizes[1:]]).cumsum(0)
        yield x[gone:].clone(), offsets, None if weights is None else weights[gone:].clone()


@every_bounded
def test_what_is_sent_is_on_the_grid(member: Member) -> None:
    seen: list[Any] = []
    play(member.protocol, member.federation(), None, witness=lambda _, answer: seen.append(answer.up.sent))
    sent = [leaf for one in seen for leaf in one.values.values()]
    assert sent
    for leaf in sent:
        assert leaf.dtype == torch.float64
        assert torch.equal(leaf * UNITS, (leaf * UNITS).round())


def test_noise_is_all_that_a_release_adds() -> None:
    """With the noise taken off again, as only whoever has the secrets can, the exact sum is left, to the last bit."""
    now, noise = turn(kind=Kind("lloyd", 1)), {"lloyd 1/sums": 3.0}
    steps = torch.randint(-(2**30), 2**30, (1, 50), generator=torch.Generator().manual_seed(0))
    sums = Sums({"sums": steps.double() * STEP}, torch.ones(1), torch.ones(1, dtype=torch.int64))
    released = CentralNoise(noise).server.release(sums, now).values["sums"]
    grid = grid_of(3.0, 1)
    assert grid is not None
    drawn = grid.noised(torch.zeros(50, dtype=torch.int64).numpy(), now.secrets("server", "noise", "sums"))
    whole = (released[0] / STEP * grid.multiple).round().long() - torch.from_numpy(drawn)
    assert torch.equal(whole, steps[0] * grid.multiple)
