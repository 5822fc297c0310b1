"""Law 3 for attacks: each sees what its threat model permits, and a poorer view gives it nothing."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from typing import Any

import pytest
from tests.laws.attacks import NOBODY, Raid, every_attack, raids
from tests.ring import play

import coterie.attacks
from coterie.errors import InvalidInput, NotPermitted
from coterie.rng import Rng
from coterie.wire.codec import encode


@every_attack
def test_an_attack_has_something_to_say_of_its_own_view(raid: Raid) -> None:
    done = raid.run()
    guess = raid.attack.infer(done.ring.view(raid.attack.threat), raid.auxiliary, Rng.seeded(1))
    assert any(len(vars(guess)[name]) for name in vars(guess))


@every_attack
def test_whoever_sees_nothing_is_refused(raid: Raid) -> None:
    done = raid.run()
    with pytest.raises(
        (NotPermitted, InvalidInput), match=r"saw nothing|sees nothing|were seen|not published|not asked"
    ):
        raid.attack.infer(done.ring.view(NOBODY), raid.auxiliary, Rng.seeded(1))


POORER = {name: raid for name, raid in raids().items() if raid.poorer}


@pytest.mark.parametrize("raid", POORER.values(), ids=POORER.keys())
def test_a_poorer_seat_gives_no_other_client_away(raid: Raid) -> None:
    """A client in the place of the server: refused, or it speaks of itself alone."""
    done = raid.run()
    for threat in raid.poorer:
        try:
            guess: Any = raid.attack.infer(done.ring.view(threat), raid.auxiliary, Rng.seeded(1))
        except (NotPermitted, InvalidInput):
            continue
        said = next(iter(vars(guess).values()))
        assert set(said) <= threat.parties


@every_attack
def test_the_same_seed_gives_the_same_guess(raid: Raid) -> None:
    done = raid.run()
    view = done.ring.view(raid.attack.threat)
    guesses = [raid.attack.infer(view, raid.auxiliary, Rng.seeded(1)) for _ in range(2)]
    assert str(vars(guesses[0])) == str(vars(guesses[1]))


INSIDERS = {name: raid for name, raid in raids().items() if hasattr(raid.attack, "answer")}


@pytest.mark.parametrize("raid", INSIDERS.values(), ids=INSIDERS.keys())
def test_a_killed_run_goes_on_with_its_insiders(raid: Raid) -> None:
    whole = raid.run()
    honest = play(raid.protocol, raid.federation, raid.model)
    assert whole.bytes != honest.bytes or -1 in whole.ring.memory  # it does something, or learns
    state, memory = whole.states[-2], whole.memories[-2]
    resumed = play(raid.protocol, raid.federation, raid.model, adversaries=[raid.attack], state=state, memory=memory)
    assert resumed.bytes == whole.bytes
    assert encode(resumed.ring.memory) == encode(whole.ring.memory)


def test_every_attack_is_a_member() -> None:
    found = set()
    for module in pkgutil.walk_packages(coterie.attacks.__path__, "coterie.attacks."):
        for cls in vars(import_module(module.name)).values():
            if inspect.isclass(cls) and hasattr(cls, "infer") and not getattr(cls, "_is_protocol", False):
                found.add(cls)
    assert {type(raid.attack) for raid in raids().values()} == found
