"""The client's half of every exchange, wherever the client runs: receive, answer, contribute."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.flow.adversary import Insider, replaced
from coterie.flow.cohort import Cohort, Memory
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.privacy.ledger import Row
from coterie.wire.codec import register
from coterie.wire.messages import BEFORE, Contributions, Down, Up


@register
@dataclass(frozen=True)
class Answer:
    """What some clients send, and what stays with them; of the latter only a simulation ever sees anything."""

    up: Up  # of those who answer
    ids: tuple[int, ...]
    memory: tuple[Memory, ...]  # one for each of them
    adversaries: tuple[Memory, ...] = ()  # one an insider
    chosen: Tensor | None = None  # (clients, slots): their membership before any guard: the truth's witness reads it
    spent: tuple[Row, ...] = ()
    metrics: tuple[tuple[str, float, float], ...] = ()
    before: Up | None = None  # what curious ones among them sent before their guard sealed it, which they know


@dataclass(frozen=True)
class ClientSide:
    """A protocol's and a defence's halves that clients run, and who among them is not honest or is curious."""

    protocol: AnyProtocol
    guard: ClientGuard
    insiders: tuple[Insider, ...] = field(default=())
    curious: frozenset[int] = frozenset()

    def opened(self, asked: Down, turn: Turn) -> Down:
        """The message with what was published opened: once for all clients, for they all do the same."""
        return asked if asked.kind.part else replace(asked, published=self.guard.receive(asked.published, turn))

    def answer(self, asked: Down, cohort: Cohort, adversaries: tuple[Memory, ...] = ()) -> Answer:
        """The answer of these clients to a message that has been opened."""
        if asked.kind.part:
            return self._answer(asked, cohort, self.guard.follow_up(asked, cohort), adversaries)
        cohort.given = asked.published.values
        honest = self.protocol.answer(asked.kind, asked.published.values, cohort, self.guard)
        return self.guarded(asked, honest, cohort, adversaries)

    def guarded(
        self, asked: Down, honest: Contributions, cohort: Cohort, adversaries: tuple[Memory, ...] = ()
    ) -> Answer:
        """What leaves of an answer that was computed: insiders replace their own, and then the guard has its say."""
        cohort.given = asked.published.values
        if adversaries:
            honest = replaced(self.insiders, asked, honest, adversaries, cohort.turn.roots.draws)
        sent = self.guard.contribute(honest, cohort)
        before = self._known(asked, honest) if honest.values and not sent.values else None
        return self._answer(asked, cohort, sent, adversaries, honest.membership, before)

    def _answer(
        self,
        asked: Down,
        cohort: Cohort,
        sent: Contributions,
        adversaries: tuple[Memory, ...],
        chosen: Tensor | None = None,
        before: Up | None = None,
    ) -> Answer:
        return Answer(
            Up(asked.kind, asked.round, sent),
            tuple(cohort.ids.tolist()),
            tuple(cohort.memory),
            adversaries,
            chosen,
            cohort.turn.ledger.rows,
            cohort.turn.metrics.rows,
            before,
        )

    def _known(self, asked: Down, honest: Contributions) -> Up | None:
        """Of the curious ones, what they answered; their seals hide it from others, and not from them."""
        here = [at for at, client in enumerate(honest.ids.tolist()) if client in self.curious]
        return Up(replace(asked.kind, part=BEFORE), asked.round, honest.pick(torch.tensor(here))) if here else None
