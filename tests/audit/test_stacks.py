"""What a defence is judged by is what is in it: one in a stack, or under a seal, is the same defence."""

from __future__ import annotations

from typing import Any

import pytest
from tests.audit.test_families import DIGITS, clustered

from coterie.audit.case import Subject, parse
from coterie.audit.families.canaries import noise_of, sampled
from coterie.audit.plugins import find
from coterie.audit.work import configured
from coterie.config.schema import Choice
from coterie.defences.dpsgd import DpSgd
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.local import LocalNoise
from coterie.defences.regularise import L2
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack, member_of, members

FAMILY = find("membership in a clustering")
LOCAL: dict[str, Any] = {"kind": "noisy_sums", "added_by": "client", "epsilon": 1.0}
MASKS = {"kind": "secure_sums"}
LLOYD = {"kind": "federated_lloyd", "clusters": 4, "level": "record", "steps": 1, "bound": 3.0}


def stacked(*members: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "stack", "members": list(members)}


def lloyd(defence: dict[str, Any]) -> Subject:
    return clustered(trainer=LLOYD, defence=defence, audit={"kmeans_membership": {"trials": 200}})


def test_a_seal_over_nothing_changes_no_sums() -> None:
    for defence in (MASKS, stacked(MASKS)):
        asked = lloyd(defence)
        assert "the sums that this attack reads are the same with it" in FAMILY.misfit(asked, asked.defence)
        assert configured(FAMILY, asked).kind == "none"


def test_noise_under_a_seal_is_tested_as_noise() -> None:
    """It had no place there, so that what is launched was judged as if there were no noise: 1.000."""
    asked = lloyd(stacked(LOCAL, MASKS))
    assert not FAMILY.misfit(asked, asked.defence)
    assert configured(FAMILY, asked) == asked.defence
    found = FAMILY.measure(asked, asked.defence, 0)
    assert found.findings[0].score < 0.65  # of the total, in which all clients' noise is; 0.56 at three deviations
    assert found.promise is not None
    assert found.promise.lower_bound is not None


def test_a_stack_of_one_is_that_one() -> None:
    """The test read the total of all clients, with noise of a deviation of a millionth."""
    asked, alone = lloyd(stacked(LOCAL)), Choice.model_validate(LOCAL)
    assert FAMILY.measure(asked, asked.defence, 0).findings == FAMILY.measure(asked, alone, 0).findings
    case, other = asked.case_of(asked.defence, 0), asked.case_of(alone, 0)
    assert case.protocol.planned == other.protocol.planned  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", [[], [MASKS]])
def test_canaries_know_the_noise_of_a_member(more: list[dict[str, Any]]) -> None:
    """They took DP-SGD in a stack for none, and trained it on shuffled batches, of which nothing is proven."""
    private = {"kind": "dpsgd", "clip": 0.5, "noise_multiplier": 2.0}
    asked = parse(DIGITS | {"trainer": {"kind": "fedavg", "rounds": 2}, "defence": stacked(private, *more)}, "test")
    case = sampled(asked.case_of(asked.defence, 0))
    assert noise_of(case.defence) == noise_of(DpSgd(0.5, 2.0))
    assert case.promise is not None
    assert case.promise.guarantee.proven


def test_a_defence_without_its_seal() -> None:
    private, local = DpSgd(1.0, 1.0), LocalNoise({"lloyd 1/sums": 1.0})
    assert type(SecureSums().unsealed) is Defence
    assert type(Stack(SecureSums()).unsealed) is Defence
    assert Stack(private, SecureSums()).unsealed == private
    assert Stack(private, L2(0.1), SecureSums()).unsealed == Stack(private, L2(0.1))
    assert local.unsealed is local
    shared = DistributedNoise({"lloyd 1/sums": 1.0}, clients=3, masks=PairwiseMasks())
    assert Stack(shared).unsealed == DistributedNoise({"lloyd 1/sums": 1.0}, clients=3)
    nested = Stack(L2(0.1), Stack(private, SecureSums()))
    assert members(nested) == [L2(0.1), private, SecureSums()]
    assert member_of(nested, DpSgd) == private
    assert member_of(nested, LocalNoise) is None
