"""Which defence has a place where: asked before anything is run."""

from __future__ import annotations

from coterie.audit.case import Subject
from coterie.config import registry
from coterie.config.schema import Choice, misfit
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.flow.protocol import AnyProtocol

NOISY_SUMS = "noisy_sums"


def why_not(choice: Choice, protocol: AnyProtocol) -> str:
    """Why this defence has no place on this protocol; empty if it has. Options that are wrong raise.

    Noise on sums is planned for the sums of one protocol, and only a family that runs a clustering plans any: for all
    others it is asked without a plan.
    """
    defence = CentralNoise({}) if choice.kind == NOISY_SUMS else registry.build_defence(choice)
    return defence.fits(protocol)


def check_launch(subject: Subject) -> None:
    """What is to be launched must be able to run: if not, nothing that an audit said would be about it."""
    trainer = subject.trainers[0]
    if why := why_not(subject.defence, subject.protocol(trainer)):
        raise misfit(subject.defence, trainer, why)
