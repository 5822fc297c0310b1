"""Randomised response and data perturbed once, on the ring: what is sent, what it tells, and what is claimed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from tests.laws.members import by_columns
from tests.ring import Play, play

from coterie.attacks.distance_geometry import CURIOUS_SERVER
from coterie.data.federation import Examples, VerticalFederation
from coterie.defences.randomised_response.channel import Channel
from coterie.defences.randomised_response.defence import RELEASED, PerturbOnce, RandomisedResponse, told
from coterie.defences.randomised_response.mechanisms import (
    discrete_laplace,
    discretised,
    gap_rr,
    generalised,
    piecewise,
)
from coterie.deploy.own_data import facts_of
from coterie.deploy.plan import Plan
from coterie.errors import BudgetSpent
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.clusters.columns import squared_differences
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import Neighbours
from coterie.privacy.ledger import Ledger
from coterie.protocols.clusterings.vertical_kmeans import CENTRES, Fusion, Start, VerticalKMeans
from coterie.rng import Secrets
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

PROTOCOL = VerticalKMeans(3, steps=3, start_on=Start.RECORDS)


def uniform(records: int, columns: int) -> torch.Tensor:
    return torch.rand(records, columns, generator=torch.Generator().manual_seed(0))


def one_party(x: torch.Tensor) -> VerticalFederation:
    examples = Examples(x.clone(), torch.zeros(len(x), dtype=torch.int64), 1, "records")
    return VerticalFederation(examples, (torch.arange(x.shape[1]),))


def sent_to_server(protocol: VerticalKMeans, defence: Defence, x: torch.Tensor) -> torch.Tensor:
    """(records, numbers): all that the one party tells in the whole run."""
    tape = Tape([CURIOUS_SERVER])
    play(protocol, one_party(x), None, defence=defence, tape=tape)
    view = tape.view(CURIOUS_SERVER)
    kinds = ("seed", "distances")
    sent = [view.sent(round, kind).values["distances"] for kind in kinds for round in view.rounds(kind)]
    return torch.cat([one.view(len(x), -1) for one in sent], 1)


def both_released(done: Play, party: int) -> list[torch.Tensor]:
    """What the party has told, by the guard that told it."""
    return [kept for name, kept in done.ring.memory[party].items() if name.startswith(RELEASED)]


def released(done: Play, party: int) -> torch.Tensor:
    (only,) = both_released(done, party)
    return only


def columns_on(levels: int) -> torch.Tensor:
    """All parties' columns between -6 and 6 on so many levels, as answers stand for them."""
    plain = torch.cat([by_columns().part(party) for party in range(3)], 1)
    return told(plain, -6.0, 6.0, discretised(levels), Secrets.seeded(0)).float()


class TestOnTheRing:
    def test_kept_answers_tell_for_certain_that_a_number_changed_and_claim_nothing(self) -> None:
        """Two answers about a number that stays never differ; about one that moves they do. No epsilon allows that."""
        channel, stays, moves = generalised(0.5, 16), np.zeros(300, dtype=np.int64), np.ones(300, dtype=np.int64)
        first, second, third = (channel.draw_once(levels, Secrets.seeded(1)) for levels in (stays, stays, moves))
        assert not (first != second).any()
        assert (first != third).mean() > 0.5
        kept = RandomisedResponse(channel, bound=35.0, memoised=True)
        said = kept.guarantee(PROTOCOL.facts(by_columns()))
        assert not said.proven
        assert "says for certain" in str(said)
        done = play(PROTOCOL, by_columns(), None, defence=kept)
        assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == math.inf

    def test_the_server_is_sent_levels_alone(self) -> None:
        server = ThreatModel("server", server=True)
        tape = Tape([server])
        play(PROTOCOL, by_columns(), None, defence=RandomisedResponse(generalised(2.0, 8), bound=35.0), tape=tape)
        view = tape.view(server)
        sent = torch.cat([view.sent(round, "distances").values["distances"] for round in view.rounds("distances")])
        levels = sent.double() / 5
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("fusion", Fusion)
    @pytest.mark.parametrize("start", Start)
    def test_answers_in_every_step_claim_nothing_and_cost_infinity(self, start: Start, fusion: Fusion) -> None:
        """Whatever the start: a record moves the centres, and with them the answers about all others."""
        protocol = VerticalKMeans(3, 1, fusion, start)
        defence = RandomisedResponse(generalised(0.5, 8), bound=35.0)
        said = defence.guarantee(protocol.facts(by_columns()))
        assert not said.proven
        assert "each answer alone hides its own number up to epsilon=0.5; a record moves the answers" in said.why_not
        assert said.epsilon == 0.5  # of one answer, which is all that is stated
        done = play(protocol, by_columns(), None, defence=defence)
        assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == math.inf
        assert epsilon_of(defence.events(protocol.facts(by_columns())), 0.0, Neighbours.REPLACE) == math.inf
        limited = Ledger(limit=1e6)
        with pytest.raises(BudgetSpent, match="no room for a run without a guarantee: each answer alone"):
            limited.hold("run", said, ())

    def test_perturb_once_pays_once_and_tells_the_same_in_every_step(self) -> None:
        defence = PerturbOnce(piecewise(0.5), -6.0, 6.0)
        short, long = (
            play(VerticalKMeans(3, steps, start_on=Start.RECORDS), by_columns(), None, defence=defence)
            for steps in (1, 9)
        )
        for party in range(3):
            assert torch.equal(released(short, party), released(long, party))
            assert not torch.equal(released(long, party), by_columns().part(party))
        for done in (short, long):
            assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == pytest.approx(0.5 * 7)
        said = defence.guarantee(PROTOCOL.facts(by_columns()))
        assert said.epsilon == pytest.approx(0.5 * 7)
        assert said.proven

    @pytest.mark.parametrize("order", [(8.0, 0.5), (0.5, 8.0)])
    def test_of_two_the_second_tells_what_the_first_has_told(self, order: tuple[float, float]) -> None:
        """The second once took what the first had told for its own, so that a claim of the least held for neither."""
        members = [PerturbOnce(generalised(epsilon, 4), -6.0, 6.0) for epsilon in order]
        stack = Stack(*members)
        done = play(PROTOCOL, by_columns(), None, defence=stack)
        said = stack.guarantee(PROTOCOL.facts(by_columns()))
        assert said is not None
        assert said.epsilon == pytest.approx(0.5 * 7)
        assert done.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == pytest.approx(8.5 * 7)  # both are written down
        first, second = (
            torch.cat(part, 1) for part in zip(*(both_released(done, party) for party in range(3)), strict=True)
        )
        kept = [float((one == other).double().mean()) for one, other in ((columns_on(4), first), (first, second))]
        for share, epsilon in zip(kept, order, strict=True):
            assert share == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + 3), abs=0.1)

    def test_perturb_once_computes_from_what_was_told_and_nothing_else(self) -> None:
        """The same run on the released columns, undefended, has the same labels and centres."""
        from dataclasses import replace

        defence, federation = PerturbOnce(piecewise(1.0), -6.0, 6.0), by_columns()
        done = play(PROTOCOL, federation, None, defence=defence)
        x = federation.examples.x.clone()
        for party, own in enumerate(federation.columns):
            x[:, own] = released(done, party)
        bare = play(PROTOCOL, replace(federation, examples=replace(federation.examples, x=x)), None)
        assert torch.equal(bare.state.labels, done.state.labels)
        for party in range(3):
            assert torch.equal(bare.ring.memory[party][CENTRES], done.ring.memory[party][CENTRES])

    def test_a_record_moves_the_answers_about_all_others(self) -> None:
        """One record of 20,000, on which a centre starts, is 1 and not 0: the answers about all others show it.

        Their mean has a deviation of 0.0036, and moves by (e^0.1 - 1) / (e^0.1 + 1) = 0.05 where distances do: false
        alarms are rarer than 1e-6. So the price of the answers about the record, 0.2 here, bounds nothing.
        """
        protocol, x = VerticalKMeans(2, 1, start_on=Start.RECORDS), torch.zeros(20_000, 1)
        defence = RandomisedResponse(generalised(0.1, 2), bound=1.0)
        chosen = int(play(protocol, one_party(x), None, defence=defence).state.chosen[1])
        means = []
        for value in (0.0, 1.0):
            x[chosen] = value
            answers = sent_to_server(protocol, defence, x)
            answers[chosen] = 0.0
            means.append(float(answers[:, 1].mean()))
        assert means[1] - means[0] == pytest.approx(math.tanh(0.05), abs=0.025)
        assert not defence.guarantee(protocol.facts(one_party(x))).proven

    def test_a_record_that_is_far_away_moves_them_by_rounding_alone(self) -> None:
        """The centres stay where they are. Differences are taken about the mean of all, far out, where digits end."""
        protocol, x = VerticalKMeans(2, 1, start_on=Start.RECORDS), uniform(200, 2)
        defence = RandomisedResponse(discretised(64), bound=1.0)
        state = play(protocol, one_party(x), None, defence=defence).state
        far = next(place for place in range(200) if place not in state.chosen.tolist())
        one = sent_to_server(protocol, defence, x)
        x[far] = 1e15
        other = sent_to_server(protocol, defence, x)
        moved = (one != other).any(1)
        moved[far] = False
        assert int(moved.sum()) > 100

    @pytest.mark.parametrize("channel", [discretised(6), piecewise(0.5), generalised(0.5, 6)], ids=lambda one: one.name)
    @pytest.mark.parametrize("fusion", Fusion)
    @pytest.mark.parametrize("start", Start)
    def test_perturb_once_tells_nothing_but_what_was_told_of_a_record(
        self, start: Start, fusion: Fusion, channel: Channel
    ) -> None:
        """A record is replaced by another on the same levels, which is told alike: all that is sent is, to the bit.

        Starts, means, what differences are taken about, and what lies outside: a raw column anywhere would show.
        """
        protocol, x = VerticalKMeans(3, 3, fusion, start), uniform(60, 3)
        defence = PerturbOnce(channel)
        for values in ((0.2, 0.2 + 1e-4), (1.0, 1e9, 3e38), (0.0, -1e9)):
            sent = []
            for value in values:
                for record in (0, *range(7, 60, 10)):
                    x[record] = value
                sent.append(sent_to_server(protocol, defence, x))
            assert all(torch.equal(sent[0], other) for other in sent[1:])
        assert defence.guarantee(protocol.facts(one_party(x))).proven == (channel.epsilon < math.inf)

    def test_marks_count_for_the_party_that_has_the_column(self) -> None:
        """Three parties with 1, 2 and 4 columns: a mark of a fourth one, or of no column, covers none of the others."""
        facts = PROTOCOL.facts(by_columns())
        assert facts.columns == (1, 2, 4)
        every = PerturbOnce(piecewise(0.5), marked=((0,), (0, 1), (0, 1, 2, 3)))
        assert every.guarantee(facts).epsilon == pytest.approx(0.5 * 7)
        for marked in (((0,), (0, 1), (0, 1, 2), (0,)), ((0,), (0, 1, 9), (0, 1, 2)), ((0,), (0, 1), ()), ()):
            defence = PerturbOnce(piecewise(0.5), marked=marked)
            assert "of 7 columns are not marked" in defence.guarantee(facts).why_not
            assert epsilon_of(defence.events(facts), 0.0, Neighbours.REPLACE) == math.inf

    def test_a_party_on_its_own_machine_goes_by_its_own_marks(self) -> None:
        """It knows its own columns alone, here two. Others' marks are worth nothing to it, whatever its number is."""
        plan = cast(Plan, SimpleNamespace(protocol=PROTOCOL))
        defence = PerturbOnce(piecewise(0.5), marked=((0, 1, 2), (0,), (0, 1)))
        said = []
        for number in range(3):
            facts = facts_of(plan, one_party(uniform(20, 2)), 3, number, 1e-6)
            assert facts is not None
            said.append(defence.guarantee(facts))
        assert [one.proven for one in said] == [True, False, True]
        assert "1 of 2 columns are not marked" in said[1].why_not
        assert said[2].epsilon == pytest.approx(0.5 * 2)

    @pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
    @pytest.mark.parametrize("memoised", [False, True])
    def test_distances_that_are_no_numbers_are_cut_to_the_bound(self, memoised: bool) -> None:
        """A value of 3e38 has no square in single precision, and what is left of two of these is no number."""
        protocol, x = VerticalKMeans(3, 1, start_on=Start.RECORDS), uniform(50, 2)
        chosen = play(protocol, one_party(x), None).state.chosen
        x[chosen[0]] = 3e38
        bare = torch.empty(50, 3)
        squared_differences(x, x[chosen], bare)
        assert bare.isnan().any()
        levels = sent_to_server(protocol, RandomisedResponse(discretised(8), 1.0, memoised), x) * 7
        torch.testing.assert_close(levels, levels.round().clamp(0, 7), rtol=0, atol=1e-3)
        for channel in (discretised(8), discrete_laplace(0.1, 8)):
            assert sent_to_server(protocol, RandomisedResponse(channel, None, memoised), x).isfinite().all()

    def test_what_is_claimed(self) -> None:
        facts = PROTOCOL.facts(by_columns())
        published = RandomisedResponse(gap_rr(0.5, 25)).guarantee(facts)
        assert "range is read off the private data" in published.why_not
        assert published.epsilon == 0.5  # what the paper calls it
        bounded = RandomisedResponse(gap_rr(0.5, 25), bound=9.0).guarantee(facts)
        assert "has no finite epsilon: answer" in bounded.why_not
        assert "nothing is randomised" in RandomisedResponse().guarantee(facts).why_not
        read_off = play(PROTOCOL, by_columns(), None, defence=RandomisedResponse(generalised(0.5, 8)))
        assert read_off.ring.ledger.epsilon(0.0, Neighbours.REPLACE) == math.inf

    def test_records_that_are_all_alike(self) -> None:
        from dataclasses import replace

        federation = by_columns()
        flat = replace(federation, examples=replace(federation.examples, x=torch.ones_like(federation.examples.x)))
        for defence in (RandomisedResponse(gap_rr(0.5, 25)), RandomisedResponse(generalised(1.0), bound=1.0)):
            done = play(PROTOCOL, flat, None, defence=defence)
            assert all(torch.isfinite(kept[CENTRES]).all() for kept in done.ring.memory.values())
