"""Fixtures for all tests; the builders that they use are in tests/ring.py."""

from __future__ import annotations

import pytest
import torch
from tests.ring import blobs, digits

from coterie.data.federation import Federation

torch.set_num_threads(1)  # the tensors are small, and the test processes share the cores


@pytest.fixture(scope="session")
def two_groups() -> Federation:
    """Six clients in two groups that need different models."""
    return blobs()


@pytest.fixture(scope="session")
def label_split() -> Federation:
    """Twenty clients in five groups, each with two of the ten digits."""
    return digits()
