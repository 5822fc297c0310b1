"""What a deployment costs: bytes where the network would be, and what many more clients would need."""

from __future__ import annotations

import pytest

from coterie.deploy.overhead import measured
from coterie.deploy.scale import Asked, Parts, needs
from coterie.errors import InvalidInput

PARTS = Parts(1000, 500, 0.001, 0.002, 8000.0, 4, 0.003, 0.01, 100.0)


def test_a_run_of_three_clients_of_one_command_is_counted_to_the_byte() -> None:
    cost = measured(3, rounds=2, together=True)
    model = 4 * (784 * 200 + 200 + 200 * 10 + 10)
    assert cost.payload == 5 * 3 * model  # twice down and up, and the result
    assert cost.payload < cost.passed < 1.3 * cost.payload  # of few rounds, offers and looks are a larger part
    assert cost.seconds > 0
    assert cost.mib == 3 * cost.client_mib + cost.server_mib > 0


def test_what_many_would_need_follows_from_the_parts() -> None:
    said = {row.what: row.value for row in needs(Asked(1_000_000, 1_000, 0.1, 600.0), PARTS)}
    assert said["messages a round"] == "1,900"
    assert said["bytes a round at the link"] == "0.00 GB"  # 1000 * 1000 + 900 * 500
    assert said["server's processor seconds a round"] == "2.8 s"  # 1000 * 0.001 + 900 * 0.002
    assert said["the same under secure sums"] == "0.01 GB, 4.0 s"
    assert said["looks for messages"] == "1,667 a second, 0.2 MB/s"
    assert said["cores for links like this one"] == "17"  # 1667 looks of a hundredth of a second
    assert said["how often a client is asked"] == "once in 1,000 rounds"
    # more than 6 of 20 are away with a chance of 0.0024, and of a thousand clients one such is enough
    assert said["rounds that secure sums cannot open"] == "0.91 of them"


def test_a_federation_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cohort=20 must be 1 to 10"):
        Asked(10, 20)
    with pytest.raises(InvalidInput, match=r"drop=1\.0 must be"):
        Asked(drop=1.0)
