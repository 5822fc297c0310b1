"""The ledger's price is that of the client that was exposed most."""

from __future__ import annotations

import pytest

from coterie.privacy import ledger
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.ledger import Ledger, Spend

DELTA = 1e-5


def spend(noise: float, rate: float) -> Spend:
    return Spend("dp-sgd", noise, rate)


def test_only_exposures_that_no_other_covers_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 0 is sampled more often, client 1 takes part more often; 2 and 3 less than either in both."""
    book = Ledger()
    for client, rate, times in ((0, 0.2, 10), (1, 0.1, 40), (2, 0.2, 9), (3, 0.05, 40)):
        book.spend(spend(4.0, rate), (client,), times)
    every = max(epsilon_of(book.events(client), DELTA) for client in book.clients())
    priced = []

    def noted(*arguments: object) -> float:
        priced.append(arguments)
        return epsilon_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger, "epsilon_of", noted)
    assert book.epsilon(DELTA) == every
    assert len(priced) == 2


def test_less_noise_is_covered_by_nothing_else() -> None:
    book = Ledger()
    book.spend(spend(4.0, 1.0), (0,), 50)
    book.spend(spend(0.5, 1.0), (1,), 1)
    assert book.epsilon(DELTA) == epsilon_of(book.events(1), DELTA)


def test_what_exposes_everybody_counts_for_each_and_alone() -> None:
    book = Ledger()
    book.spend(spend(2.0, 1.0))
    alone = book.epsilon(DELTA)
    assert alone == epsilon_of(book.events(), DELTA)
    book.spend(spend(4.0, 1.0), (0,))
    assert book.epsilon(DELTA) == epsilon_of(book.events(0), DELTA) > alone
