"""Randomised response on what parties tell of single records: of their distances in every round, or of columns once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from coterie.defences.randomised_response.channel import Channel
from coterie.errors import require
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.protocol import AnyProtocol
from coterie.privacy.accounting import guarantee_of, pure_events
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, RunFacts, Trust
from coterie.privacy.ledger import Spend
from coterie.rng import Secrets
from coterie.wire.messages import Contributions

NO_RECORDS = "its clients tell no numbers of single records, so there is none to randomise; use it with VerticalKMeans"
NOTHING = "no channel was given, so nothing is randomised"
READ_OFF = "the range is read off the private data, which alone tells of its largest value"
MEMOISED = "answers are kept, so that one that changes says for certain that its number did"
OTHERS = (
    "a record moves the answers about all others, too, for centres are made of columns without noise, and what is told "
    "about the record itself prices nothing of that; PerturbOnce has a price"
)
ANSWER_BITS = 16  # of the range: float32 has room for what Laplace noise adds to it, and for sums of a dozen parties
FARTHEST = 2.0**100  # what a distance is taken for that is no number or is larger: float32 has room for sums of these
RELEASED = "released columns"  # what a party keeps: its columns as they were told once


def _rules_out(channel: Channel) -> str:
    """Why a channel has no epsilon."""
    return f"{channel.name} has no finite epsilon: {channel.pair}"


@dataclass(frozen=True)
class RandomisedResponse(Defence):
    """RSM-DP (paper 003, Section 3.2) and its kin: every number that a party tells passes a channel first.

    The numbers of a record are cut by their least one (Eq. 3), put on the channel's levels over [0, ``bound``] (Eq. 4)
    and answered at random. ``bound`` is public: what is larger is cut to it, and what is no number. Without, the range
    is read off the data in every round, as published.

    No epsilon is claimed for a record. Each fresh answer over a public range hides its own number, up to the channel's
    epsilon; but the numbers of all other records depend on the record, too. The parties make centres of their columns
    as they are, from the records that they start on to the means of every step, and take differences about the mean of
    all records, so that one far away rounds off the others' digits. Clusters x steps x parties answers about a record
    are thus the least of what tells of it, and ``Channel.epsilon`` times their number is no price. ``PerturbOnce`` has
    one.

    ``memoised``: a number that comes again at the same level gets the answer that it got, so that averaging over rounds
    gains nothing. But an answer that changes then says for certain that the level did.
    """

    channel: Channel | None = None
    bound: float | None = None
    memoised: bool = False

    def __post_init__(self) -> None:
        public = self.bound is None or 0 < self.bound < math.inf
        require(public, "bound", self.bound, "must be positive and finite, or None to read it off")

    @property
    def client(self) -> ClientGuard:
        return ClientGuard() if self.channel is None else RespondingClient(self.channel, self.bound, self.memoised)

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.tells_records else NO_RECORDS

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        return () if self.channel is None else pure_events(math.inf, run.numbers_a_record * run.clients)

    def guarantee(self, run: RunFacts) -> Guarantee:
        """None, and why. ``stated`` is what the channel is called by: the epsilon of one answer."""
        if self.channel is None:
            return Guarantee.none(NOTHING, Level.RECORD, Trust.LOCAL_NOISE)
        unsound = [READ_OFF] if self.bound is None else []
        unsound += [MEMOISED] if self.memoised else []
        unsound += [_rules_out(self.channel)] if math.isinf(self.channel.epsilon) else []
        alone = [] if unsound else [f"each answer alone hides its own number up to epsilon={self.channel.epsilon:.4g}"]
        why = "; ".join([*unsound, *alone, OTHERS])
        return Guarantee.none(why, Level.RECORD, Trust.LOCAL_NOISE, self.channel.stated)


@dataclass(frozen=True)
class PerturbOnce(Defence):
    """Columns are told once, each value through the channel; everything after that is computed from what was told.

    So any number of steps costs nothing more: a record pays for each of its values once. Starts, means and what
    differences are taken about are all of columns as they were told, so that no other record's answers cost it more.
    ``low`` and ``high`` are public and the same for all columns; what lies outside is cut to them, and what is no
    number counts as ``high``. Scale the columns by public factors first.

    ``marked``: of each party, which of its own columns are told so, because they are of low sensitivity; the others
    stay as they are, and want something else: ``Stack(PerturbOnce(..., marked=...), SecureSums())`` is paper 003's
    layered protection. Columns that are not marked cost infinity.
    """

    channel: Channel | None = None
    low: float = 0.0
    high: float = 1.0
    marked: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        require(self.low < self.high, "low", self.low, f"must be less than high={self.high}")
        wide = self.high - self.low
        require(math.isfinite(wide), "high - low", wide, "must be finite, for levels are parts of it")
        for party, own in enumerate(self.marked or ()):
            apart = len(set(own)) == len(own) and all(column >= 0 for column in own)
            require(apart, f"marked[{party}]", own, "must be places of its own columns, each once, from 0 on")

    @property
    def client(self) -> ClientGuard:
        return ClientGuard() if self.channel is None else TellingOnce(self.channel, self.low, self.high, self.marked)

    def fits(self, protocol: AnyProtocol) -> str:
        return "" if protocol.tells_records else NO_RECORDS

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        if self.channel is None:
            return ()
        bare = self._bare(run)
        return [*pure_events(self.channel.epsilon, sum(run.columns) - bare), *pure_events(math.inf, bare)]

    def guarantee(self, run: RunFacts) -> Guarantee:
        """Against the server and whoever reads it: all parties' columns of one record, replaced by another's."""
        if self.channel is None:
            return Guarantee.none(NOTHING, Level.RECORD, Trust.LOCAL_NOISE)
        if bare := self._bare(run):
            why = f"{bare} of {sum(run.columns)} columns are not marked and get no noise"
            return Guarantee.none(why, Level.RECORD, Trust.LOCAL_NOISE)
        if math.isinf(self.channel.epsilon):
            why = _rules_out(self.channel)
            return Guarantee.none(why, Level.RECORD, Trust.LOCAL_NOISE, self.channel.stated)
        found = guarantee_of(self.events(run), 0.0, Level.RECORD, Trust.LOCAL_NOISE, 1.0, Neighbours.REPLACE)
        return found.against_onlookers().beside(run.reveals)

    def _bare(self, run: RunFacts) -> int:
        """How many columns are told as they are. A mark of one party is worth nothing to another."""
        if self.marked is None:
            return 0
        marked = [*self.marked, *[()] * len(run.columns)]
        return sum(width - sum(place < width for place in marked[party]) for party, width in enumerate(run.columns))


# -- a party's half ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RespondingClient(ClientGuard):
    channel: Channel
    bound: float | None
    memoised: bool

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        values = {name: self._answered(name, leaf, sent.ids.tolist(), cohort) for name, leaf in sent.values.items()}
        return replace(sent, values=values)

    def _answered(self, name: str, leaf: Tensor, ids: list[int], cohort: Cohort) -> Tensor:
        """Of a leaf (clients, 1, records, numbers)."""
        turn = cohort.turn
        cost = Spend(f"{turn.kind}/{name}", epsilon=math.inf)  # whatever the channel is: others' answers tell of it too
        turn.ledger.spend(cost, times=len(ids) * leaf.shape[-1])  # every party's answers are of the same records
        rows = []
        for party, row in zip(ids, leaf[:, 0], strict=True):
            kept = turn.roots.secrets.child("party", party, "memoised", str(turn.kind), name)
            rows.append(self._row(row, kept if self.memoised else turn.secrets(party, "response", name)))
        return torch.stack(rows).unsqueeze(1)

    def _row(self, row: Tensor, secrets: Secrets) -> Tensor:
        plain = row.double().nan_to_num(FARTHEST).clamp(-FARTHEST, FARTHEST)  # values beyond 1e19 have no squares
        if row.shape[-1] > 1:  # a single number would be cut to nothing
            plain = plain - plain.min(-1, keepdim=True).values
        low = 0.0 if self.bound is not None else float(plain.min())
        high = self.bound if self.bound is not None else float(plain.max())
        wide = high if high > low else low + 1  # all the same: they are on one level
        return told(plain, low, wide, self.channel, secrets, self.memoised).to(row.dtype)


@dataclass(frozen=True)
class TellingOnce(ClientGuard):
    channel: Channel
    low: float
    high: float
    marked: tuple[tuple[int, ...], ...] | None

    @property
    def reveals(self) -> str:
        return ""

    @property
    def _kept(self) -> str:
        """Under which name: of two such guards the second tells what it is handed, and not what the first has told."""
        return f"{RELEASED}/{self.channel.mark.tobytes().hex()} {(self.low, self.high, self.marked)}"

    def columns(self, cohort: Cohort) -> tuple[Tensor, ...]:
        for party, own, memory in zip(cohort.ids.tolist(), cohort.columns, cohort.memory, strict=True):
            if self._kept not in memory:
                memory[self._kept] = self._released(party, own, cohort)
        return tuple(memory[self._kept] for memory in cohort.memory)

    def _marked(self, party: int) -> list[int]:
        return list(self.marked[party]) if self.marked is not None and party < len(self.marked) else []

    def _released(self, party: int, own: Tensor, cohort: Cohort) -> Tensor:
        width = own.shape[1]
        places = list(range(width)) if self.marked is None else self._marked(party)
        require(max(places, default=-1) < width, f"marked[{party}]", places, f"must lie in 0..{width - 1}")
        secrets = cohort.turn.roots.secrets.child("party", party, RELEASED)  # of no round: it is told once
        released = own.clone()
        released[:, places] = told(own[:, places].double(), self.low, self.high, self.channel, secrets).to(own.dtype)
        spend = cohort.turn.ledger.spend
        if places:
            spend(Spend(RELEASED, epsilon=self.channel.epsilon), times=len(places))
        if len(places) < width:
            spend(Spend(RELEASED, epsilon=math.inf), times=width - len(places))
        return released


def told(plain: Tensor, low: float, high: float, channel: Channel, secrets: Secrets, memoised: bool = False) -> Tensor:
    """Numbers (...), cut to [low, high] and put on levels, as they are answered. What is no number counts as high.

    Answers are whole numbers of a power of two, so that sums over parties are exact in any order: levels tie often, and
    rounding must not decide.
    """
    places = ((plain.flatten() - low) / (high - low)).nan_to_num(1.0).clamp(0.0, 1.0) * (channel.levels - 1)
    levels = places.round().long().numpy()
    drawn = channel.draw_once(levels, secrets) if memoised else channel.draw(levels, secrets)
    step = 2.0 ** (math.ceil(math.log2(high - low)) - ANSWER_BITS)
    marks = np.rint((low + (high - low) * channel.values) / step) * step
    return torch.from_numpy(marks[drawn]).view(plain.shape)
