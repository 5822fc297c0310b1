"""The ledger's price is that of the client that was exposed most."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import DpEvent, GaussianDpEvent
from sklearn.base import clone

from coterie.errors import BudgetSpent, InvalidInput, NotPermitted
from coterie.privacy import ledger
from coterie.privacy.accounting import dpsgd_events, epsilon_of
from coterie.privacy.guarantee import Guarantee, Level, Neighbours, Trust
from coterie.privacy.ledger import Ledger, Spend, rows_of

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


def test_noise_of_another_kind_is_not_taken_for_the_same() -> None:
    """Two clients whose releases have the same name and number, one of them Laplace's: the dearer one counts."""
    for order in ((0, 1), (1, 0)):
        book = Ledger()
        book.spend(Spend("sums", 1.0), (order[0],))
        book.spend(Spend("sums", 1.0, laplace=True), (order[1],))
        assert book.epsilon(DELTA) == max(epsilon_of(book.events(client), DELTA) for client in (0, 1))


def test_what_exposes_everybody_counts_for_each_and_alone() -> None:
    book = Ledger()
    book.spend(spend(2.0, 1.0))
    alone = book.epsilon(DELTA)
    assert alone == epsilon_of(book.events(), DELTA)
    book.spend(spend(4.0, 1.0), (0,))
    assert book.epsilon(DELTA) == epsilon_of(book.events(0), DELTA) > alone


# -- over many runs ---------------------------------------------------------------------------------------------------

CLAIM = Guarantee(1.0, DELTA, Level.RECORD, Trust.TRUSTED_AGGREGATOR)
ONE: list[DpEvent] = [GaussianDpEvent(4.0)]


def run(book: Ledger, times: int = 1, fails: bool = False, name: str = "") -> None:
    """A fit of two releases, of which one that fails makes only the first."""
    with book.reserve(CLAIM, [GaussianDpEvent(4.0), GaussianDpEvent(4.0)], name) as own:
        own.spend(spend(4.0, 1.0), times=times)
        if fails:
            raise ArithmeticError
        own.spend(spend(4.0, 1.0), times=times)


def test_fits_compose_and_one_too_many_is_refused() -> None:
    """Six releases are within the limit, eight are not; and a refused fit costs nothing."""
    six, eight = (epsilon_of(ONE * count, DELTA) for count in (6, 8))
    book = Ledger(limit=(six + eight) / 2, delta=DELTA)
    for _ in range(3):
        run(book)
    assert book.spent == pytest.approx(six)
    assert book.level is Level.RECORD
    with pytest.raises(BudgetSpent, match=rf"epsilon={eight:.4g} would be spent in all .* {six:.4g} is spent"):
        run(book)
    assert book.spent == pytest.approx(six)


def test_records_that_are_dealt_anew_pay_for_both_runs() -> None:
    """Twenty records are all that one client has, and then all that the other has: no client was sampled so twice."""
    few, many = dpsgd_events(0.5, 4.0, 40), dpsgd_events(0.05, 4.0, 40)
    book = Ledger(delta=DELTA)
    for small in (0, 1):
        with book.reserve(CLAIM, few) as own:
            own.spend(spend(4.0, 0.5), (small,), 40)
            own.spend(spend(4.0, 0.05), (1 - small,), 40)
    assert book.spent == pytest.approx(epsilon_of([*few, *few], DELTA))
    assert book.spent > 1.1 * epsilon_of([*few, *many], DELTA)
    with book.reserve(CLAIM, few) as own:  # who was asked more often, and who was sampled more, need not be the same
        own.spend(spend(4.0, 0.5), (0,), 10)
        own.spend(spend(4.0, 0.1), (1,), 20)
        own.spend(spend(4.0, 0.2), (1,), 20)
    assert book.spent == pytest.approx(epsilon_of([*few, *few, *few], DELTA))


def test_a_fit_that_fails_has_spent_what_it_released() -> None:
    book = Ledger(delta=DELTA)
    with pytest.raises(ArithmeticError):
        run(book, fails=True)
    assert book.spent == pytest.approx(epsilon_of(ONE, DELTA))


def test_what_is_reserved_counts_until_the_run_ends() -> None:
    book = Ledger(limit=epsilon_of(ONE * 3, DELTA), delta=DELTA)
    with book.reserve(CLAIM, ONE * 2) as own:
        assert book.spent == pytest.approx(epsilon_of(ONE * 2, DELTA))
        with pytest.raises(BudgetSpent), book.reserve(CLAIM, ONE * 2):
            pass
        own.spend(spend(4.0, 1.0))
    with book.reserve(CLAIM, ONE * 2):  # the first took less than it had reserved
        pass


def test_a_resumed_run_takes_its_own_place() -> None:
    book = Ledger(delta=DELTA)
    with pytest.raises(ArithmeticError):
        run(book, fails=True, name="runs/a")
    run(book, name="runs/a")
    assert book.spent == pytest.approx(epsilon_of(ONE * 2, DELTA))


def test_a_resumed_run_that_fails_at_once_forgets_nothing() -> None:
    """As with another seed, or while somebody else runs it: nothing was entered yet, and all of it was spent before."""
    book = Ledger(delta=DELTA)
    run(book, name="runs/a")
    with pytest.raises(ArithmeticError), book.reserve(CLAIM, ONE * 2, "runs/a"):
        raise ArithmeticError
    assert book.spent == pytest.approx(epsilon_of(ONE * 2, DELTA))
    with book.reserve(CLAIM, ONE, "runs/a") as own:  # nor does one that makes less of it this time
        own.spend(spend(4.0, 1.0))
    assert book.spent == pytest.approx(epsilon_of(ONE * 2, DELTA))
    small = Ledger(limit=epsilon_of(ONE * 2, DELTA) * 1.01, delta=DELTA)
    run(small, name="runs/a")
    with pytest.raises(BudgetSpent), small.reserve(CLAIM, ONE):
        pass
    run(small, name="runs/a")


def test_a_killed_run_gives_back_what_it_had_reserved_once_it_ends(tmp_path: Path) -> None:
    path, leaving = tmp_path / "ledger.bin", ExitStack()
    leaving.enter_context(Ledger(5.0, DELTA, path).reserve(CLAIM, ONE * 9, "runs/a"))
    book = Ledger(5.0, DELTA, path)
    assert book.spent == pytest.approx(epsilon_of(ONE * 9, DELTA))
    with pytest.raises(ArithmeticError):
        run(book, fails=True, name="runs/a")
    assert book.spent >= epsilon_of(ONE * 9, DELTA)
    run(book, name="runs/a")
    assert book.spent == pytest.approx(epsilon_of(ONE * 2, DELTA))
    leaving.pop_all()  # it never comes to its end


def resumed_and_killed(path: Path, noise: float) -> None:
    with Ledger(path=path).reserve(CLAIM, [GaussianDpEvent(noise)], "runs/a"):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(path: Path, noise: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=resumed_and_killed, args=(path, noise))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_resumed_run_that_is_killed_forgets_nothing(tmp_path: Path) -> None:
    """Its forecast is smaller than what it had spent; once with the same noise, and once with other noise on top."""
    path = tmp_path / "ledger.bin"
    book = Ledger(10.0, DELTA, path)
    run(book, times=3, name="runs/a")  # six releases
    six = epsilon_of(ONE * 6, DELTA)
    killed(path, 4.0)
    assert Ledger(path=path).spent == pytest.approx(six)
    killed(path, 20.0)
    killed(path, 40.0)
    many = epsilon_of([*ONE * 6, GaussianDpEvent(20.0), GaussianDpEvent(40.0)], DELTA)
    assert Ledger(path=path).spent == pytest.approx(many)
    run(Ledger(path=path), name="runs/a")  # it ends: what was reserved is given back, what was spent is not
    assert Ledger(path=path).spent == pytest.approx(six)


def test_what_a_resumed_run_had_spent_counts_towards_the_limit(tmp_path: Path) -> None:
    path, both = tmp_path / "ledger.bin", epsilon_of([*ONE * 2, GaussianDpEvent(3.0)], DELTA)
    run(Ledger(both * 0.999, DELTA, path), name="runs/a")
    resumed = Ledger(path=path).reserve(CLAIM, [GaussianDpEvent(3.0)], "runs/a")
    with pytest.raises(BudgetSpent, match=f"epsilon={both:.4g} would be spent"), resumed:
        pass
    run(Ledger(path=path), name="runs/a")


def test_a_run_that_is_made_again_is_not_paid_for_twice() -> None:
    """The forecast is of the client that is sampled most; others, and what is sent in fewer rounds, lie below it."""
    events = dpsgd_events(0.2, 1.5, 30)
    book = Ledger(limit=epsilon_of(events, DELTA) * 1.01, delta=DELTA)
    with book.reserve(CLAIM, events, "runs/a") as own:
        for client, rate in enumerate((0.2, 0.1, 0.05)):
            own.spend(spend(1.5, rate), (client,), 20)
    with book.reserve(CLAIM, events, "runs/a") as own:
        assert book.spent == pytest.approx(epsilon_of(events, DELTA))
        own.spend(spend(1.5, 0.1), (1,), 30)


def test_a_refused_run_decides_nothing_about_those_that_follow() -> None:
    book = Ledger(limit=0.1, delta=DELTA)
    with pytest.raises(BudgetSpent, match="would be spent"):
        run(book)
    with book.reserve(replace(CLAIM, level=Level.CLIENT), [GaussianDpEvent(400.0)]) as own:
        own.spend(spend(400.0, 1.0))
    assert book.level is Level.CLIENT


def test_the_limit_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "ledger.bin"
    run(Ledger(3.0, DELTA, path))
    assert (Ledger(path=path).limit, Ledger(path=path).delta) == (3.0, DELTA)
    for limit, delta in ((30.0, DELTA), (3.0, 1e-2)):
        with pytest.raises(InvalidInput, match="as when the ledger was begun"):
            Ledger(limit, delta, path)


def test_a_seed_among_the_runs_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.bin"
    book = Ledger(3.0, DELTA, path)
    run(book)
    assert str(book) == f"epsilon {book.spent:.4g} of 3 spent at delta=1e-05; record, one unit added or removed"
    with book.reserve(replace(CLAIM, simulated=True), ONE):
        pass
    assert Ledger(path=path).simulated
    assert "hides nothing from whoever has the seed" in str(Ledger(path=path))


def made(book: Ledger) -> bool:
    try:
        run(book)
    except BudgetSpent:
        return False
    return True


def test_threads_and_forks_do_not_count_apart() -> None:
    """Of eight threads at once three find room; a fork has a copy, which must not be used."""
    book = Ledger(limit=epsilon_of(ONE * 6, DELTA) * 1.001, delta=DELTA)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(made, [book] * 8)) == 3
    book._born_in = -1  # as a fork sees it
    with pytest.raises(NotPermitted, match="another process"):
        run(book)


def test_all_who_open_a_file_share_its_limit(tmp_path: Path) -> None:
    """Eight ledgers of one file at once, as eight processes have them: each locks the file it opened itself."""
    path = tmp_path / "ledger.bin"
    books = [Ledger(epsilon_of(ONE * 6, DELTA) * 1.001, DELTA, path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(made, books)) == 3
    assert Ledger(path=path).spent == pytest.approx(epsilon_of(ONE * 6, DELTA))


def test_all_names_of_a_file_are_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is replaced by a file, or a folder that the process has left, would let the limit be spent twice."""
    limit, path, link = epsilon_of(ONE * 4, DELTA) * 1.001, tmp_path / "ledger.bin", tmp_path / "link.bin"
    monkeypatch.chdir(tmp_path)
    by_name = Ledger(limit, DELTA, "ledger.bin")
    link.symlink_to(path)
    by_link = Ledger(limit, DELTA, link)  # before there is a file
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [made(book) for book in (by_name, by_link, by_name, by_link)] == [True, True, False, False]
    assert link.is_symlink()
    assert by_name == by_link == Ledger(path=path)
    os.link(path, tmp_path / "other.bin")
    for name in (path, tmp_path / "other.bin"):
        with pytest.raises(InvalidInput, match=r"names of .*=2 must be 1: each would become a ledger of its own"):
            Ledger(path=name)
    with pytest.raises(InvalidInput, match="is no plain file"):
        Ledger(path=tmp_path)


def spend_all(path: Path, limit: float, who: int, said: Connection) -> None:
    book = Ledger(limit, DELTA, path)
    for number in range(100):
        try:
            book.hold(f"{who} {number}", CLAIM, tuple(rows_of(ONE)))
        except BudgetSpent:
            return
        said.send(f"{who} {number}")


def test_processes_that_spend_at_once_and_are_killed_lose_nothing_and_pass_no_limit(tmp_path: Path) -> None:
    """Three at once, of which one is killed wherever it is after its first entry: all that was granted is in the file,
    what is there beyond it is the one that could not be told any more, and the limit is full to the last."""
    path, most, apart = tmp_path / "ledger.bin", 9, multiprocessing.get_context("fork")
    limit, told = epsilon_of(ONE * most, DELTA) * 1.001, []
    pipes = [apart.Pipe(duplex=False) for _ in range(3)]
    writers = [apart.Process(target=spend_all, args=(path, limit, who, pipe[1])) for who, pipe in enumerate(pipes)]
    for writer, (_, said) in zip(writers, pipes, strict=True):
        writer.start()
        said.close()
    told.append(pipes[0][0].recv())
    writers[0].kill()
    for writer, (heard, _) in zip(writers, pipes, strict=True):
        writer.join()
        with suppress(EOFError):
            while True:
                told.append(heard.recv())
    found = Ledger(path=path)
    assert set(told) <= set(found._runs)
    assert len(found._runs) == most
    assert len(told) >= most - 1
    assert found.spent <= limit


def test_what_does_not_compose_or_has_no_proof_is_refused() -> None:
    book = Ledger(delta=DELTA)
    run(book)
    for other in (replace(CLAIM, level=Level.CLIENT), replace(CLAIM, neighbours=Neighbours.REPLACE)):
        with pytest.raises(BudgetSpent, match="does not compose"), book.reserve(other, ONE):
            pass
    nothing = Guarantee.none("no noise", Level.RECORD, Trust.TRUSTED_AGGREGATOR)
    for claim in (nothing, None):
        with pytest.raises(BudgetSpent, match="without a guarantee"), book.reserve(claim, ONE):
            pass
    with pytest.raises(InvalidInput, match=r"limit=0 must be positive"):
        Ledger(limit=0)


def test_it_outlives_its_process_and_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "budget" / "ledger.bin"
    first, second = Ledger(3.0, DELTA, path), Ledger(3.0, DELTA, path)
    run(first)
    with first.reserve(CLAIM, ONE):  # as a run that is killed leaves it
        again = Ledger(3.0, DELTA, path)
        assert again.spent == pytest.approx(epsilon_of(ONE * 3, DELTA))
    run(second)
    assert Ledger(3.0, DELTA, path).spent == pytest.approx(epsilon_of(ONE * 4, DELTA))
    assert pickle.loads(pickle.dumps(second)).spent == second.spent
    path.write_bytes(b"nonsense")
    with pytest.raises(InvalidInput):
        Ledger(3.0, DELTA, path)


def test_it_is_not_copied_and_clones_share_it() -> None:
    book = Ledger(delta=DELTA)
    assert clone(book) is book
    for copying in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(NotPermitted):
            copying(book)


def test_events_become_entries_of_the_same_price() -> None:
    events = [*dpsgd_events(0.1, 1.2, 30), *ONE, dp_accounting.ComposedDpEvent([dp_accounting.LaplaceDpEvent(2.0)] * 2)]
    book = Ledger()
    book.enter(rows_of(events))
    assert book.epsilon(DELTA) == pytest.approx(epsilon_of(events, DELTA), rel=1e-6)
    with pytest.raises(InvalidInput, match="cannot be entered"):
        book.enter(rows_of([dp_accounting.NonPrivateDpEvent()]))
    answer = [dp_accounting.RandomizedResponseDpEvent(0.5, 2)]
    response = Ledger()
    response.enter(rows_of(answer, 3))
    expected = epsilon_of(answer * 3, DELTA, Neighbours.REPLACE)
    assert response.epsilon(DELTA, Neighbours.REPLACE) == pytest.approx(expected, rel=1e-3)
    assert math.isinf(Ledger().limit)
