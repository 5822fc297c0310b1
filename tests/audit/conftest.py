"""An audit that knows one family, whose results are known."""

from __future__ import annotations

import pytest
from tests.audit.toy import FAMILY, as_configured

from coterie.audit import engine, reference, work
from coterie.config import registry


@pytest.fixture
def only_the_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "all_families", lambda named=(): [FAMILY])
    monkeypatch.setattr(engine, "find", lambda name, named=(): FAMILY)
    monkeypatch.setattr(work, "find", lambda name, named=(): FAMILY)
    monkeypatch.setattr(reference, "run", as_configured)
    monkeypatch.setitem(registry.DEFENCES, "noise", "tests.audit.toy:Noise")
