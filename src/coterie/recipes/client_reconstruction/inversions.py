"""What the jobs of the inversion table do: a federation that takes a few steps, and what its recording shows."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from coterie.attacks.inversion import CURIOUS_SERVER, GradientInversion
from coterie.audit.curves import as_png
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Federation
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.turn import Roots
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.sgd import Local
from coterie.measure.picture_quality import matched, psnr, ssim
from coterie.protocols.fedavg import FedAvg
from coterie.recipes.client_reconstruction.runs import SIZES
from coterie.recipes.client_reconstruction.setups import ATTACKER, Setup
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import View

ITERATIONS, TRIES = 300, 2  # of a search: it ends in a wrong place now and then
LR = 0.05


def inverted(batch: int, steps: int, trained: int, seed: int, scale: str, folder: str | None = None) -> Result:
    """What whoever has the recording of a federation's traffic rebuilds of one client's upload, after so many rounds.

    The control is how much that is like another client's pictures, paired as well as they can be.
    """
    setup = Setup("MNIST", 6, batch * steps, halved=False, folder=folder)
    federation, _ = setup.federation(seed)
    model, local = SIZES[scale].model(federation), Local(steps=steps, batch_size=batch, lr=LR)
    with TemporaryDirectory() as place:
        view = recorded(FedAvg(rounds=trained + 1, local=local), federation, model, seed, Path(place))
        channels, rows, columns = federation.examples.x.shape[1:]
        attack = GradientInversion(
            model,
            local,
            (channels, rows, columns),
            clients=(setup.victim,),
            round=trained,
            span=(-1.0, 1.0),
            iterations=ITERATIONS,
            tries=TRIES,
        )
        found = (attack.infer(view, Auxiliary(), Rng.seeded(seed)).of[setup.victim] + 1) / 2
    true, other = ((federation.examples.x[federation.train[one]] + 1) / 2 for one in (setup.victim, ATTACKER))
    drawn, meant = paired(found, true)
    return {
        "ssim": float(ssim(drawn, meant).mean()),
        "control": float(ssim(*paired(found, other)).mean()),
        "psnr": float(psnr(drawn, meant).clamp_max(60).mean()),
        "true": [as_png(picture) for picture in meant[:8]],
        "drawn": [as_png(picture) for picture in drawn[:8]],
    }


def recorded(protocol: FedAvg, federation: Federation, model: StridedCnn, seed: int, place: Path) -> View:
    """What a server sees, read back from the files in which it was recorded."""
    ring: AnyRing = Ring(protocol, federation, model, roots=Roots.seeded(seed), tape=Tape([CURIOUS_SERVER], place))
    with ring:
        ring.run()
    return Tape([CURIOUS_SERVER], place).view(CURIOUS_SERVER)


def paired(found: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Each rebuilt picture beside the one that it is taken for."""
    one, other = (torch.tensor(list(places)) for places in zip(*matched(found, true), strict=True))
    return found[one], true[other]
