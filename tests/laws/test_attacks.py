"""Law 3 for attacks: each sees what its threat model permits, and a poorer view gives it nothing."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.attacks.federations import LOCAL, MODEL, marked_examples
from tests.laws.attacks import NOBODY, Raid, every_attack, raids
from tests.laws.defences import DEFENCES
from tests.ring import play

import coterie.attacks
from coterie.attacks.base import Suspicions
from coterie.attacks.contrast import Contrast
from coterie.attacks.others import Rules
from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.property_active import ActiveProperty
from coterie.attacks.updates import Imitation, magnitudes
from coterie.data.partition.property import PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.guard import Defence
from coterie.flow.imitated import imitated
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.tape import Tape


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


WAYS = (magnitudes, Contrast())
FL, CFL = FedAvg(rounds=4, local=LOCAL), Ifca(rounds=4, local=LOCAL, clusters=2, candidates=0)
DEFENDED = {
    name: (protocol, defence)
    for name, shield in DEFENCES.items()
    for protocol in (FL, CFL)
    for defence in (shield.active(protocol),)
    if not defence.fits(protocol) and (protocol is FL or shield.active(FL).fits(FL))
}


@pytest.mark.parametrize(("protocol", "defence"), DEFENDED.values(), ids=DEFENDED.keys())
def test_property_inference_gives_the_same_bytes_under_every_defence(protocol: Any, defence: Defence) -> None:
    """Looking on, active and scaled up; whatever torch's own generator was left at by what ran before."""
    split = PropertySplit(4, "mark", every=2, warmup=1)
    federation = split.split(marked_examples(200), Rng.seeded(0))
    known, guard = split.auxiliary(federation), defence.client
    local = replace(LOCAL, poisson=isinstance(defence, DpSgd))
    imitation = Imitation(MODEL.with_dropout(guard.dropout) if guard.dropout else MODEL, local, imitated(guard))
    rest: dict[str, Any] = {"warmup": 1, "trees": 3, "others": 2, "each": 1, "rules": Rules.of(4, protocol.slots)}
    quiet = PassiveProperty(imitation, property_threat(), **rest)
    loud = [ActiveProperty(imitation, quiet.threat, **rest, data=known, gamma=gamma) for gamma in (1.0, 5.0)]

    def outcome(attack: PassiveProperty, disturbance: int) -> tuple[bytes, bytes, list[Suspicions]]:
        torch.manual_seed(disturbance)
        seated = [attack] if isinstance(attack, ActiveProperty) else []
        tape = Tape([attack.threat])
        trainer = replace(protocol, local=local)
        done = play(trainer, federation, MODEL, defence=defence, tape=tape, adversaries=seated)
        view = done.ring.view(attack.threat)
        given = encode(
            dict(view.received(view.rounds()[-1]).values)
        )  # opened: the keys of seals are nobody's to repeat
        return given, encode(done.ring.memory.get(-1, {})), attack.infer_by(view, known, Rng.seeded(1), WAYS)

    found = [outcome(attack, 0) for attack in (quiet, *loud)]
    assert found == [outcome(attack, 7) for attack in (quiet, *loud)]
    assert len({given for given, *_ in found}) == 3  # each changes what everybody is given


def test_every_attack_is_a_member() -> None:
    found = set()
    for module in pkgutil.walk_packages(coterie.attacks.__path__, "coterie.attacks."):
        for cls in vars(import_module(module.name)).values():
            if inspect.isclass(cls) and hasattr(cls, "infer") and not getattr(cls, "_is_protocol", False):
                found.add(cls)
    assert {type(raid.attack) for raid in raids().values()} == found
