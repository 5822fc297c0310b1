"""An attack of one's own: a curious server reads off a client's first upload which label it has most of.

A step on cross entropy raises the last layer's bias for the labels in the batch and lowers it for the others, so the
bias that rose most belongs to the commonest label. ``coterie audit federation.toml --attacks label_census.py`` runs it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch

from coterie.attacks.base import Attributions
from coterie.audit.case import Subject
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.reference import ReferenceRun
from coterie.config.schema import Choice
from coterie.errors import NotPermitted
from coterie.measure.findings import Finding
from coterie.measure.judge import Labels, judge
from coterie.protocols.base import Trainer
from coterie.wire.view import ThreatModel, View

SERVER = ThreatModel("curious server", server=True, knows="the shape of the model")


class LabelCensus(Family):
    name = "label census"
    limit = "census_accuracy"  # the gate then knows max_census_accuracy
    paper = "after Wainakh et al., PETS 2022 (label leakage from gradients)"
    question = "Does the server learn which label a client has most of?"
    threat = "A curious server, which sees each client's first upload."
    method = "The label whose bias in the last layer rose most. The control asks the same about other clients."

    def admits(self, subject: Subject) -> str:
        return "" if isinstance(subject.launched, Trainer) else "needs a trainer of models"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        return [Choice.of("secure_sums")]

    def threats(self, subject: Subject) -> Sequence[ThreatModel]:
        return [SERVER]

    def read(self, run: ReferenceRun) -> Evidence:
        federation = run.case.federation
        classes, labels = federation.examples.classes, federation.examples.y
        guess = census(run.view(SERVER), classes, federation.clients)
        most = {
            client: int(torch.bincount(labels[federation.train[client]], minlength=classes).argmax())
            for client in range(federation.clients)
        }
        order = run.rng.child("others").numpy().permutation(federation.clients)
        others: dict[Hashable, int] = {client: most[int(other)] for client, other in enumerate(order)}
        found = judge(guess, Labels(dict(most), classes), "rising bias", SERVER.knows)
        control = judge(guess, Labels(others, classes), "rising bias, of other clients", SERVER.knows)
        return run.evidence([_by_server(found), replace(_by_server(control), control=True)])


def census(view: View, classes: int, clients: int) -> Attributions:
    """By client, the label it seems to have most of; where the upload cannot be read, what anybody would say."""
    first = view.rounds()[0]
    try:
        sent, given = view.sent(first), view.received(first).values
        bias = next(name for name, leaf in reversed(sent.values.items()) if leaf.shape[2:] == (classes,))
    except (NotPermitted, StopIteration):
        return Attributions(dict.fromkeys(range(clients), 0))
    own = sent.membership.float().argmax(1)  # (clients,): the cluster that each trained
    rows = torch.arange(len(own))
    rose = sent.values[bias][rows, 0 if sent.values[bias].shape[1] == 1 else own] - given[bias][own]
    return Attributions(dict(zip(sent.ids.tolist(), rose.argmax(1).tolist(), strict=True)))


def _by_server(finding: Finding) -> Finding:
    return replace(finding, adversary=SERVER.name)
