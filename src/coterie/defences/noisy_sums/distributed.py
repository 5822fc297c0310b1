"""Noise in shares under secure aggregation: each client adds a little, and the server sees only the noisy sum.

A share is a discrete Gaussian on the clients' whole numbers, and so is the sum of the shares, up to what is charged for
it (``coterie.privacy.grid``). Masks add modulo 2^64, which is exact: what opens is the sum with its noise and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from coterie.defences.noisy_sums.plan import (
    NoisySums,
    grid_of,
    grids_of,
    multiplier,
    noised,
    spend,
    told,
    values_of,
)
from coterie.defences.secure_sums import PairwiseMasks, advertise, follow_up, secure_sums, shapes_of
from coterie.errors import InvalidInput, NotPermitted, require
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, Params, flatten
from coterie.privacy.guarantee import Against, Neighbours, Trust, Whom
from coterie.privacy.ledger import Spend
from coterie.seal.cipher import Grid, binary
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Down, Kind
from coterie.wire.sealed import SEALED, SealedBatch, SealedSum

_THOSE_WHO_ANSWERED = object()

WHOLE = Grid(bits=0)
"""What is masked are whole numbers as they are."""


@dataclass(frozen=True)
class DistributedNoise(NoisySums):
    """Each of ``clients`` adds its share of the noise.

    ``colluders`` clients may tell the server their shares, and ``dropouts`` others may stop answering: the shares of
    those who are left still add up to the whole deviation. One who colludes may not stand in for one who dropped out
    (of three clients with one of either, each of the two who are left would know half of the noise). If more drop out,
    the run ends with an error before the sum is used. One colluder at least is planned for if nothing is said, for
    every participant knows its own share (of three clients who plan for none, one learns as much as epsilon = 1.245
    allows where 1 is stated).
    With ``masks`` the sums are opened by Bonawitz's protocol among all clients (``secure_sum``), whose work grows with
    the square of their number. Without, a stand-in behaves as that protocol does towards the server: it holds sealed
    messages, and nothing opens but the sum over all clients.
    """

    clients: int = 1
    colluders: int | None = None  # None: one, or none if there is only one client
    masks: PairwiseMasks | None = None
    dropouts: int = 0

    trust: ClassVar[Trust] = Trust.DISTRIBUTED_NOISE

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clients >= 1, "clients", self.clients, "must be at least 1")
        require(
            self.colluders is None or 0 <= self.colluders < self.clients,
            "colluders",
            self.colluders,
            f"must be at least 0 and fewer than the {self.clients} clients",
        )
        left = self.clients - (self.colluders or 0)
        require(
            0 <= self.dropouts < left, "dropouts", self.dropouts, f"must be at least 0 and fewer than the other {left}"
        )

    @property
    def least(self) -> int:
        """How many answer for certain."""
        return self.clients - self.dropouts

    @property
    def shares(self) -> int:
        return self.least - (min(1, self.least - 1) if self.colluders is None else self.colluders)

    def against(self, delta: float, neighbours: Neighbours) -> Iterator[Against]:
        """Nobody but a participant knows a share; the server sees the sum alone."""
        colluders = self.least - self.shares
        for whom, known in ((Whom.PUBLIC, 0), (Whom.PARTICIPANT, 1), (Whom.SERVER, 0), (Whom.COALITION, colluders)):
            if known < self.least and not (whom is Whom.COALITION and known == 0):
                number = known if whom is Whom.COALITION else 0
                yield Against(whom, self.epsilon(delta, neighbours, self.least - known), number)

    @property
    def client(self) -> ClientGuard:
        return SharingClient(self.noise, self.clients, self.least, self.shares, self._whole_masks)

    @property
    def server(self) -> ServerGuard:
        return SummingServer(self.noise, self.clients, self.least, self.shares, self._whole_masks)

    @property
    def _whole_masks(self) -> PairwiseMasks | None:
        return None if self.masks is None else replace(self.masks, grid=WHOLE)

    @property
    def seals(self) -> bool:
        return True

    @property
    def unsealed(self) -> Defence:
        """Masks open to the same noisy sums as without; shares are never read alone."""
        return replace(self, masks=None)


@dataclass(frozen=True)
class SharingClient(ClientGuard):
    noise: Mapping[str, float]
    clients: int
    least: int
    shares: int
    masks: PairwiseMasks | None

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        if not sent.values:
            return sent
        noisy = self._noisy(sent, cohort.turn)
        flat = flatten(noisy, leading=2)  # (clients, 1, length) int64
        if self.masks is not None:
            largest = int(flat.abs().max())
            require(largest < 2**53, "largest share", "beyond the masks", "must be below 2^53 steps")
            return advertise(sent, flat, sent.membership, shapes_of(noisy), cohort, self.masks)
        shapes = shapes_of(noisy)
        ids = tuple(sent.ids.tolist())
        return replace(sent, values={}, sealed={SEALED: SummedOnly(ids, flat[:, 0], shapes, self.clients, self.least)})

    def _noisy(self, sent: Contributions, turn: Turn) -> Params:
        """Each client's leaves with its share of the noise, in steps of the noise."""
        ids, found = sent.ids.tolist(), {}
        for name, grid in grids_of(self.noise, turn, sent.values, self.shares).items():
            rows = zip(ids, sent.values[name], strict=True)
            found[name] = torch.stack([noised(row, grid, turn.secrets(one, "noise", name)) for one, row in rows])
        return found

    def exposes(self, kind: Kind) -> tuple[Spend, ...]:
        own = {name: deviation for name, deviation in self.noise.items() if name.split("/")[0] == str(kind)}
        return tuple(Spend(name, multiplier(grid_of(deviation, self.shares))) for name, deviation in own.items())

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        if self.masks is None:
            return super().follow_up(asked, cohort)
        return follow_up(asked, cohort, replace(self.masks, least=self.least))


@dataclass(frozen=True)
class SummingServer(ServerGuard):
    noise: Mapping[str, float]
    clients: int
    least: int
    shares: int
    masks: PairwiseMasks | None

    def expects(self, expected: Expected) -> Expected:
        return expected.sealed()

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        if self.masks is None:
            return self._opened(Sums.over((yield ask)), turn)
        opened = yield from secure_sums(ask, turn, replace(self.masks, least=self.least))
        if opened is None:
            return Sums.nothing()
        self._require_noise(int(opened.counts[0]), turn)
        return self._known(Sums(opened.leaves, opened.counts.double(), opened.counts), turn)

    def _opened(self, sums: Sums, turn: Turn) -> Sums:
        if sums.empty:
            return sums
        total = sums.sealed.get(SEALED)
        require(
            isinstance(total, OnlySum), f"answers in round {turn.round}", "plain", "must be sealed; use both halves"
        )
        assert isinstance(total, OnlySum)
        self._require_noise(int(sums.counts[0]), turn)
        return self._known(
            replace(sums, values=total.layout.unflatten(total.open(_THOSE_WHO_ANSWERED)), sealed={}), turn
        )

    def _require_noise(self, count: int, turn: Turn) -> None:
        require(
            self.least <= count <= self.clients,
            f"sealed answers in round {turn.round}",
            count,
            f"must be {self.least} to {self.clients}, or noise is missing; plan for those who may drop out (dropouts)",
        )

    def _known(self, sums: Sums, turn: Turn) -> Sums:
        """In the measure of the contributions, and with how noisy the sum is."""
        grids = grids_of(self.noise, turn, sums.values, self.shares)
        spend(grids, turn)
        values = {name: values_of(sums.values[name], grid) for name, grid in grids.items()}
        return replace(sums, values=values, noise=told(grids, draws=float(sums.counts[0]) / self.shares))


@register
@dataclass(frozen=True)
class SummedOnly(SealedBatch):
    """A stand-in for masked messages: whoever holds it can add, and open only the sum over all ``clients``.

    The server's guard opens that over those who answered, ``least`` of them at least: once, as the masks allow it.
    """

    stands_in: ClassVar[bool] = True

    ids: tuple[int, ...]
    _steps: Tensor = field(repr=False)  # (clients, length), whole numbers
    shapes: Mapping[str, tuple[int, ...]]
    clients: int
    least: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return 8 * self._steps.numel()

    def pick(self, positions: Sequence[int]) -> SummedOnly:
        rows = list(positions)
        return SummedOnly(tuple(self.ids[i] for i in rows), self._steps[rows], self.shapes, self.clients, self.least)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> SummedOnly:
        first, *_ = batches = [part for part in parts if isinstance(part, SummedOnly)]
        ids = tuple(client for batch in batches for client in batch.ids)
        return cls(ids, torch.cat([batch._steps for batch in batches]), first.shapes, first.clients, first.least)

    def add(self, membership: Tensor) -> OnlySum:
        flags = binary(membership, self.ids)
        require(bool(flags.all()), "membership", "zeros", "must be all ones: only the sum over all clients opens")
        return OnlySum(frozenset(self.ids), self._steps.sum(0, keepdim=True), self.shapes, self.clients, self.least)

    def open(self, key: object) -> NoReturn:
        raise NotPermitted(f"key={type(key).__name__} cannot open single clients: only the sum over all of them opens")


@dataclass(frozen=True)
class OnlySum(SealedSum):
    stands_in: ClassVar[bool] = True

    ids: frozenset[int]
    _steps: Tensor = field(repr=False)  # (1, length)
    shapes: Mapping[str, tuple[int, ...]]
    clients: int
    least: int

    @property
    def slots(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        return 8 * self._steps.numel()

    @property
    def layout(self) -> Layout:
        return Layout({name: torch.Size(shape) for name, shape in self.shapes.items()})

    def __add__(self, other: SealedSum) -> OnlySum:
        if not isinstance(other, OnlySum) or self.ids & other.ids:
            raise InvalidInput(f"sum={other!r} must be of the same kind and of other clients to be added")
        return OnlySum(self.ids | other.ids, self._steps + other._steps, self.shapes, self.clients, self.least)

    def open(self, key: object = None) -> Tensor:
        needed = self.least if key is _THOSE_WHO_ANSWERED else self.clients
        if len(self.ids) < needed:
            raise NotPermitted(f"sum over {len(self.ids)} clients does not open; only one over {needed} does")
        return self._steps.double()
