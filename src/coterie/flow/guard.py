"""The places where a defence may act, and the defence as its two halves, because two parties hold them.

``receive``, ``columns``, ``gradients``, ``gradient`` and ``contribute`` are the client's; ``screen``, ``collect``,
``aggregate``, ``release`` and ``publish`` are the server's. The base classes are the identity: an undefended federation
runs with them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dp_accounting import DpEvent
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.flow.admission import Expected
from coterie.flow.ask import Ask, Replies, State, Sums
from coterie.flow.turn import Step, Turn
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params
from coterie.privacy.guarantee import Guarantee, RunFacts
from coterie.privacy.ledger import Spend
from coterie.wire.messages import Contributions, Down, Kind, Published

if TYPE_CHECKING:
    from coterie.flow.cohort import Cohort
    from coterie.flow.protocol import AnyProtocol

Collecting = Generator[Ask[State], Replies, Sums]
"""A server guard's conversation with the clients about one request, and what comes of it."""


@dataclass(frozen=True)
class ClientGuard:
    """The client's half of a defence; every method is the identity."""

    @property
    def example_clip(self) -> float | None:
        """The L2 norm to which each example's gradient is scaled before they are summed; None: not at all."""
        return None

    @property
    def gradient_noise(self) -> float | None:
        """The deviation of what ``gradients`` adds to a step's sum of clipped ones; None: it does something else."""
        return 0.0 if type(self).gradients is ClientGuard.gradients else None

    @property
    def dropout(self) -> float:
        """The dropout rate to train with; 0: the model's own."""
        return 0.0

    @property
    def plain(self) -> bool:
        """Whether local steps are what they are without it: nothing is clipped, and gradients stay as they come."""
        own = type(self)
        untouched = own.gradient is ClientGuard.gradient and own.gradients is ClientGuard.gradients
        return untouched and self.example_clip is None

    @property
    def by_client(self) -> bool:
        """Whether local steps may be taken a few clients at a time, by several threads: nothing of one is another's."""
        return self.plain

    @property
    def noises_uploads(self) -> bool:
        """Whether ``contribute`` changes an update in the open, by nothing but the update itself and chance."""
        return False

    @property
    def reveals(self) -> str:
        """What of its raw data it lets out, beside what it is handed, under no noise that others have proven.

        Empty: it goes by what it is handed, what is public, and chance. A guard that has a word of its own on what
        leaves, and says nothing here, is taken at its worst.
        """
        own, plain = type(self), ClientGuard
        silent = (own.contribute, own.follow_up, own.columns) == (plain.contribute, plain.follow_up, plain.columns)
        return "" if silent else "what it makes of its data, of which it says nothing"

    @property
    def answers_anyway(self) -> bool:
        """Whether ``contribute`` also takes training that ended in NaN: where silence would tell of the data."""
        return False

    def receive(self, published: Published, turn: Turn) -> Published:
        """What was published, opened. All clients open it in the same way, so that in a simulation it is done once."""
        return published

    def columns(self, cohort: Cohort) -> tuple[Tensor, ...]:
        """What parties that hold columns compute with, (records, own columns) each, in place of the columns.

        The same ones in every request of a run.
        """
        return cohort.columns

    def gradients(self, model: Model, params: Params, batch: Batch, step: Step) -> dict[str, Tensor]:
        """The gradients of a local step, leaves (clients, ...): where noise must be added to exact sums, it is here."""
        return model.gradients(params, batch, self.example_clip)

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        """Called in each local step with leaves (clients, ...)."""
        return grads

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        """The last word on what leaves the clients. The cohort's data and memory are theirs to look at."""
        return sent

    def exposes(self, kind: Kind) -> tuple[Spend, ...]:
        """What an answer to this request costs a unit although the server's half writes it down, for own ledgers."""
        return ()

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        """The answer to a further exchange of the server guard's own conversation about this request."""
        raise InvalidInput(f"request {str(asked.kind)!r} is not part of this defence; do both sides use the same one?")


@dataclass(frozen=True)
class ServerGuard:
    """The server's half of a defence; every method is the identity."""

    @property
    def only_adds(self) -> bool:
        """Whether all that happens to answers is that they are added up, by nobody but ``Sums``."""
        return type(self) is ServerGuard

    def expects(self, expected: Expected) -> Expected:
        """What answers look like once the clients' half has had its word."""
        return expected

    def screen(self, sent: Contributions, asked: Down, turn: Turn) -> Contributions:
        """Answers that were let in, before anything else uses them: what is too large is cut down here."""
        return sent

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        """Ask, as often as it takes, and add up."""
        return self.aggregate((yield ask), turn)

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        """Sums over all clients that answered, chunk by chunk, so that a round need not fit in memory."""
        return Sums.over(replies)

    def release(self, sums: Sums, turn: Turn) -> Sums:
        """The last word on sums before the protocol learns them: noise is added here."""
        return sums

    def publish(self, published: Published, turn: Turn) -> Published:
        """The last word on what leaves the server."""
        return published


@dataclass(frozen=True)
class Defence:
    """Two halves, because two parties hold them. The base class defends nothing."""

    @property
    def seals(self) -> bool:
        """Whether clients' answers leave them in a form that the server cannot read."""
        return False

    @property
    def unsealed(self) -> Defence:
        """What it does beside sealing: under it the sums are the same, and answers can be read."""
        return Defence() if self.seals else self

    @property
    def reads(self) -> bool:
        """Whether the server's half looks at single answers, so that nobody may seal them."""
        return False

    @property
    def tags(self) -> bool:
        """Whether clients vouch for their answers as they are, which tells of them, so that nobody may change them."""
        return False

    @property
    def presumes(self) -> bool:
        """Whether what it proves rests on bounds that the protocol's answers keep: nobody may change them before it."""
        return False

    @property
    def client(self) -> ClientGuard:
        return ClientGuard()

    @property
    def server(self) -> ServerGuard:
        return ServerGuard()

    @property
    def keys(self) -> Mapping[str, object]:
        """What a client could hand to the server, for threat models with collusion."""
        return {}

    def fits(self, protocol: AnyProtocol) -> str:
        """Why this defence has no place on this protocol; empty if it has."""
        return ""

    def kept_in(self, folder: Path) -> Defence:
        """The same defence, with what must outlive a killed run (its keys) kept in the run's folder."""
        return self

    def events(self, run: RunFacts) -> Sequence[DpEvent]:
        """What such a run will do to one unit, as dp_accounting events: a forecast of what the ledger will say."""
        return ()

    def guarantee(self, run: RunFacts) -> Guarantee | None:
        """The formal statement that this defence makes about such a run; None: it does not claim to hide anything."""
        return None
