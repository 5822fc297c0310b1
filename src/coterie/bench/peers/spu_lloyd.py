"""A step of Lloyd on secret shares in SPU's simulator: nobody sees a distance, a label or a centre before the end."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
import spu  # type: ignore[import-not-found]
from spu.utils import simulation  # type: ignore[import-not-found]

WORK: dict[str, Any] = json.loads(os.environ["COTERIE_PEER_WORK"])


def step(x: Any, centres: Any) -> Any:
    distances = (centres * centres).sum(1)[None] - 2 * x @ centres.T
    members = (jnp.argmin(distances, 1)[:, None] == jnp.arange(len(centres))[None]).astype(jnp.float32)
    return (members.T @ x) / (members.sum(0)[:, None] + 1e-3)


def main() -> None:
    """Print the processor seconds of each step but the first, which is compiled; a wrong centre is an error."""
    kind = getattr(spu.ProtocolKind, WORK["protocol"])
    simulator = simulation.Simulator(WORK["parties"], spu.RuntimeConfig(protocol=kind, field=spu.FieldType.FM64))
    x = np.random.default_rng(0).random((WORK["records"], WORK["columns"]), dtype=np.float32)
    shared = simulation.sim_jax(simulator, step)
    centres, seconds = x[: WORK["clusters"]], []
    for _ in range(WORK["rounds"] + 1):
        start = time.process_time()
        found = np.asarray(shared(x, centres))
        seconds.append(time.process_time() - start)
        if not np.allclose(found, step(x, centres), atol=1e-3):
            raise SystemExit("a step on shares differs from one in the open by more than rounding")
    print(json.dumps({"seconds": seconds[1:]}))
