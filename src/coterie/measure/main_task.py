"""The main task's area under the ROC curve, by which paper 000 judges utility."""

from __future__ import annotations

import torch

from coterie.data.federation import Federation
from coterie.errors import InvalidInput
from coterie.flow.ring import AnyRing
from coterie.learn.params import pick
from coterie.measure.utility import served


def main_task_auc(ring: AnyRing, state: object) -> float:
    """The clients' mean AUC on their test rows, one class against the rest averaged where there are several."""
    from sklearn.metrics import roc_auc_score

    federation, model = ring.federation, ring.model
    if model is None or not isinstance(federation, Federation):
        raise InvalidInput("main task=None: only networks on a federation by rows have one")
    models, choices = served(ring, state)
    rows, places = federation.test.rows.unique(return_inverse=True)
    chances = torch.stack(
        [
            torch.cat(
                [model.logits(pick(models, slot), federation.examples.x[block]).softmax(1) for block in rows.split(256)]
            )
            for slot in range(choices.shape[1])
        ],
        1,
    )  # (distinct rows, slots, classes)
    scores = []
    for client, weights in enumerate(choices):
        start, end = federation.test.offsets[client], federation.test.offsets[client + 1]
        mixed = torch.einsum("rsc,s->rc", chances[places[start:end]], weights).double()
        y = federation.examples.y[federation.test[client]]
        if len(y.unique()) < mixed.shape[1]:  # a class without test rows has no curve
            continue
        score = mixed[:, 1] if mixed.shape[1] == 2 else mixed / mixed.sum(1, keepdim=True)
        scores.append(roc_auc_score(y, score, multi_class="ovr"))
    return float(sum(scores) / len(scores)) if scores else float("nan")
