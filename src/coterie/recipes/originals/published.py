"""What the authors published, in per cent."""

from __future__ import annotations

ROTATED_MNIST = 95.25  # Ghosh et al. 2020, Table 1: IFCA's test accuracy for k = 4, m = 1200, n = 200
