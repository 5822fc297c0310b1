"""Torch's threads are asked to sleep, whoever is imported first. How fast they then are is a benchmark's matter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = """
import os, threading
from coterie.learn.threads import wait_without_spinning
needed, again = wait_without_spinning(), wait_without_spinning()
print(os.environ["OMP_WAIT_POLICY"], needed, again, sum(t.name == "coterie-asleep" for t in threading.enumerate()))
"""


@pytest.mark.parametrize(
    ("first", "policy", "shown"),
    [
        ("import coterie, torch", None, "passive False False 0"),
        ("import torch; torch.set_num_threads(2); import coterie", None, "passive True True 1"),
        ("import torch; torch.set_num_threads(1); import coterie", None, "passive False False 0"),
        ("import torch; torch.set_num_threads(2); import coterie", "active", "active False False 0"),
        ("import coterie.commands.cli, torch", None, "passive False False 0"),
    ],
)
def test_the_policy_is_set_before_torch_or_a_second_team_sleeps(first: str, policy: str | None, shown: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy is not None:
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-c", f"{first}\n{SHOWN}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == shown.split()
