"""What one run under one defence with one seed showed; a job hands it back in its plain form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.measure.claims import Promise
from coterie.measure.exhibits import Chart, Suspected
from coterie.measure.findings import Finding
from coterie.measure.intervals import Sample


@dataclass(frozen=True)
class Evidence:
    """Everything that one run under one defence with one seed showed."""

    findings: Sequence[Finding]
    utility_measure: str
    utility: Sample
    seconds: float  # a round, or the run where there are no rounds
    upload_bytes: float  # a client and round
    memory_bytes: float
    promise: Promise | None = None
    history: Sequence[tuple[int, float]] = ()  # round and utility
    charts: Sequence[Chart] = ()  # the first seed's are shown
    pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)  # "private" and "rebuilt": PNG files in base64
    suspected: Sequence[Suspected] = ()
    clusters: str = ""  # who uses which model, in words; empty for a clustering
    spent: float | None = None  # epsilon, by the run's own ledger; None: nothing was entered
    by_client: Sequence[float] = ()  # the utility, of each client
    without: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by baseline, what each client would have

    @staticmethod
    def of_recording(
        findings: Sequence[Finding], suspected: Sequence[Suspected], charts: Sequence[Chart] = ()
    ) -> Evidence:
        """What was written down says neither how useful the models were nor what they cost."""
        unknown = Sample.average([math.nan], 0.0, 1.0)
        return Evidence(findings, "accuracy", unknown, math.nan, math.nan, math.nan, charts=charts, suspected=suspected)
