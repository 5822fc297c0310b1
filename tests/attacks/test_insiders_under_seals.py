"""An insider answers before its guard seals, so no sealing defence turns an active attack into nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.attacks.federations import LOCAL as MARKED
from tests.attacks.federations import MODEL as WIDE
from tests.attacks.federations import marked_examples
from tests.ring import blobs, play
from torch.nn.functional import one_hot

from coterie.attacks.others import Behind, own_uploads
from coterie.attacks.property import property_threat
from coterie.attacks.property_active import ActiveProperty
from coterie.attacks.updates import Imitation, aggregates
from coterie.data.partition.property import PropertySplit
from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import SecureSums
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.measure.witness import Witness
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.seal.mock import MockCipher
from coterie.wire.messages import TRAIN, Contributions, Down
from coterie.wire.sealed import SEALED, SHARED_KEY
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

FEDERATION = blobs((12, 9, 10, 12, 5, 12, 7, 10), groups=2)
PROTOCOL = Ifca(rounds=2, local=Local(steps=3, batch_size=4, lr=0.3), clusters=2, candidates=0)
MODEL = Dense((4, 6, 3))
COLLUDING = ThreatModel("server and client 3", server=True, clients=frozenset({3}), keys=frozenset({SHARED_KEY}))


@dataclass(frozen=True)
class Shouting:
    """Sends ten times what its client would have moved, and counts how often it did."""

    threat: ThreatModel = COLLUDING

    def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
        if asked.kind != TRAIN:
            return honest
        memory["times"] = memory.get("times", 0) + 1
        chosen = int(honest.membership[0].argmax())
        values = {
            name: asked.published.values[name][chosen] + 10 * (leaf - asked.published.values[name][chosen])
            for name, leaf in honest.values.items()
        }
        return replace(honest, values=values)


@pytest.mark.parametrize("exact", [False, True])
def test_what_arrives_under_mingling_is_the_insiders(exact: bool) -> None:
    defence = Mingling(threshold=1, cipher=MockCipher(), exact=exact)
    opened = []
    for adversaries in ([], [Shouting()]):
        tape = Tape([COLLUDING])
        done = play(PROTOCOL, FEDERATION, MODEL, defence=defence, tape=tape, adversaries=adversaries)
        view = done.ring.view(COLLUDING)
        sent = view.sent(0)
        vectors = sent.sealed[SEALED].open(view.key(SHARED_KEY))[sent.ids.argsort()]
        opened.append(vectors.sum(1) if exact else vectors)
    moved = (opened[1] - opened[0]).abs().amax(1)
    assert float(moved[3]) > 0.1
    assert float(moved[torch.arange(8) != 3].max()) == 0  # the others' answers are their own


@pytest.mark.parametrize("defence", [Defence(), SecureSums(), Mingling(threshold=1, exact=False, cipher=MockCipher())])
def test_the_models_feel_it_and_it_is_remembered(defence: Defence) -> None:
    honest = play(PROTOCOL, FEDERATION, MODEL, defence=defence)
    attacked = play(PROTOCOL, FEDERATION, MODEL, defence=defence, adversaries=[Shouting()], tape=Tape([COLLUDING]))
    models = [flatten(done.ring.models(done.state)) for done in (honest, attacked)]
    assert float((models[0] - models[1]).abs().max()) > 0.05
    assert attacked.ring.memory[-1] == {"times": 2}


def test_the_witness_sees_true_clusters_where_the_tape_has_decoys() -> None:
    witness, tape = Witness(), Tape([ThreatModel("server", server=True)])
    defence = Mingling(cipher=MockCipher(), exact=True)  # with two clusters everybody is in both
    play(PROTOCOL, FEDERATION, MODEL, defence=defence, tape=tape, witness=witness)
    plain = Witness()
    play(PROTOCOL, FEDERATION, MODEL, witness=plain)
    joined = tape.view(tape.threats[0]).sent(0).membership
    assert bool((joined == 1).all())
    assert witness.members[0] == plain.members[0]
    assert sum(len(clients) for clients in witness.members[0].values()) == 8


def test_active_property_inference_changes_what_arrives_under_mingling() -> None:
    """With the key that a colluding client hands over, its tampered upload can be told from the honest one."""
    rng = Rng.seeded(0)
    split = PropertySplit(3, "mark", every=2, warmup=1)
    federation = split.split(marked_examples(400), rng)
    threat = replace(property_threat(), server=True, keys=frozenset({SHARED_KEY}))
    attack = ActiveProperty(
        Imitation(WIDE, MARKED), threat, warmup=1, trees=10, data=split.auxiliary(federation), gamma=5.0
    )
    protocol, mingling = (
        Ifca(rounds=2, local=MARKED, clusters=2, candidates=0),
        Mingling(threshold=1, exact=False, cipher=MockCipher()),
    )
    opened = []
    for adversaries in ([], [attack]):
        done = play(protocol, federation, WIDE, defence=mingling, tape=Tape([threat]), adversaries=adversaries)
        view = done.ring.view(threat)
        sent = view.sent(0)
        opened.append(sent.sealed[SEALED].open(view.key(SHARED_KEY))[sent.ids.argsort()])
    moved = (opened[1] - opened[0]).abs().amax(1)
    own = sorted(threat.clients)
    assert float(moved[own].min()) > 0.1
    assert float(moved[[client for client in range(3) if client not in own]].max()) == 0


def test_an_insider_is_given_the_slots_of_its_clients_alone() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Looking(Shouting):
        def answer(self, asked: Down, honest: Contributions, memory: dict[str, Any], rng: Rng) -> Contributions:
            seen.append(asked.published.slots)
            return honest

    class Private(Ifca):
        """Gives each client one slot."""

        def run(self, state: Any, server: Any) -> Any:
            steps = super().run(state, server)
            reply = None
            while True:
                try:
                    ask = next(steps) if reply is None else steps.send(reply)
                except StopIteration as done:
                    return done.value
                sees = one_hot(torch.zeros(len(ask.clients), dtype=torch.int64), 2).bool()
                reply = yield replace(ask, sees=sees)

        def answer(self, kind: Any, models: Any, cohort: Any, guard: Any) -> Contributions:
            sent = super().answer(kind, models, cohort, guard)
            return replace(sent, membership=cohort.sees.float())

    protocol = Private(rounds=2, local=PROTOCOL.local, clusters=2, candidates=0)
    play(protocol, FEDERATION, MODEL, adversaries=[Looking(ThreatModel("client 3", clients=frozenset({3})))])
    assert seen == [1, 1]


@pytest.mark.parametrize("defence", [SecureSums(), Mingling(threshold=1, cipher=MockCipher(), exact=True)])
def test_an_adversary_knows_what_its_own_clients_sealed_and_nobody_else_does(defence: Defence) -> None:
    """A seal hides an answer from the server; from the client whose answer it is, it hides nothing."""
    server, mine = ThreatModel("server", server=True), ThreatModel("client 3", clients=frozenset({3}))
    plain, sealed = Tape([mine]), Tape([server, mine])
    play(PROTOCOL, FEDERATION, MODEL, tape=plain)
    play(PROTOCOL, FEDERATION, MODEL, tape=sealed, defence=defence)
    own, known = plain.view(mine).answered(0), sealed.view(mine).answered(0)
    assert own is not None
    assert known is not None
    assert known.ids.tolist() == [3]
    for name, leaf in own.values.items():
        torch.testing.assert_close(known.values[name], leaf)
    assert sealed.view(server).answered(0) is None
    assert not any(kind.part == "before" for kind in sealed.view(server).kinds())


def test_an_own_upload_is_taken_out_under_secure_sums_as_without() -> None:
    """The sums are the same, so what is left of them without the own upload is, too."""
    split = PropertySplit(4, "mark", every=2, warmup=1)
    federation = split.split(marked_examples(400), Rng.seeded(0))
    protocol = FedAvg(rounds=4, local=MARKED, weighting="equal")
    attack = ActiveProperty(
        Imitation(WIDE, MARKED), property_threat(), warmup=1, data=split.auxiliary(federation), gamma=5.0
    )
    left = []
    for defence in (Defence(), SecureSums()):
        tape = Tape([attack.threat])
        done = play(protocol, federation, WIDE, defence=defence, tape=tape, adversaries=[attack])
        seen = next(aggregates(done.ring.view(attack.threat), 1))
        own = own_uploads(done.ring.view(attack.threat), [seen])
        left.append(flatten(Behind(own[0], 0.25, (3, 3)).without_own(seen.update), 0))
    torch.testing.assert_close(left[0], left[1], atol=1e-4, rtol=1e-3)
