"""``coterie.audit(...)``: the audit of a federation that one has as objects."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from coterie.audit import engine, plugins
from coterie.audit.family import Family
from coterie.audit.objects import Handed
from coterie.data.federation import Federation
from coterie.files import write_atomically
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.learn.models.model import Model, as_model
from coterie.measure.findings import AuditResult
from coterie.report.html import render
from coterie.report.terminal import show
from coterie.run.jobs import Progress

if TYPE_CHECKING:
    from torch import nn

COMMAND = "coterie.audit(...)"


@dataclass(frozen=True)
class Audit:
    """What an audit came to."""

    result: AuditResult  # all findings, with their intervals and verdicts

    @property
    def passed(self) -> bool:
        """Whether all limits are met; true where none is set."""
        return self.result.passed

    def summary(self, width: int = 100) -> str:
        """As the command prints it."""
        out = io.StringIO()
        show(self.result, Console(file=out, width=width))
        return out.getvalue()

    def report(self, path: str | Path) -> Path:
        """Write the page, one file that opens offline."""
        place = Path(path)
        write_atomically(place, render(self.result).encode())
        return place

    def __str__(self) -> str:
        return self.summary()


def audit(
    protocol: AnyProtocol,
    federation: Federation,
    model: Model | nn.Module | None = None,
    *,
    defence: Defence | None = None,
    compare: Sequence[Defence] = (),
    attacks: Sequence[str | Family | type[Family]] = (),
    property: tuple[str, int] | None = None,
    limits: Mapping[str, float] | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    seeds: int = 3,
    seed: int = 0,
    name: str = "federation",
    folder: str | Path | None = None,
    fresh: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Train this federation as it is, attack it, and judge what was found.

    ``defence`` is what is launched with and ``compare`` are others. ``attacks`` are the families to run, by name or as
    objects of your own; all that the federation admits if empty. ``property`` is a tag and its value that an adversary
    is after, ``limits`` are the gate's, ``settings`` the families' (``{"canaries": {"count": 1000}}``). Results are
    kept in ``folder``, if there is one, and taken from there, unless ``fresh``.
    """
    own = {one: plugins.hand_over(one) for one in attacks if not isinstance(one, str)}
    names = [one if isinstance(one, str) else plugins.load(own[one])[0].name for one in attacks]
    options: dict[str, object] = {"seeds": seeds, "families": names, "attacks": [*own.values()], **(settings or {})}
    if property is not None:
        options["property"] = {"tag": property[0], "value": property[1]}
    subject = Handed.of(
        protocol,
        federation,
        None if model is None else as_model(model),
        [defence or Defence(), *compare],
        name=name,
        seed=seed,
        audit=options,
        limits=dict(limits or {}),
    )
    with tempfile.TemporaryDirectory(prefix="coterie-audit-") if folder is None else nullcontext(str(folder)) as place:
        told = engine.audit(subject, Path(place), command=COMMAND, processes=processes, progress=progress, fresh=fresh)
    return Audit(told)
