"""What paper 003 (Fan and Guo 2025) prints. The points of its Figures 5 and 6 are not printed."""

from __future__ import annotations

TABLE_1 = {  # F values by data set, and by (l_ratio, epsilon); None: without noise
    "forge": {(1.0, 0.1): 0.6237, (1.0, 1.0): 0.7227, (0.2, 0.1): 0.8514, (0.2, 1.0): 0.8613, None: 0.8811},
    "wave": {(1.0, 0.1): 0.7227, (1.0, 1.0): 0.7920, (0.2, 0.1): 0.9306, (0.2, 1.0): 0.9405, None: 0.9603},
    "mnist": {(1.0, 0.1): 0.6039, (1.0, 1.0): 0.7128, (0.2, 0.1): 0.8316, (0.2, 1.0): 0.8712, None: 0.8811},
}
"""Its ImageNet and REDSTONE-Web cannot be had, and it does not say which set its UCI is."""

SETTINGS = ((1.0, 0.1), (1.0, 1.0), (0.2, 0.1), (0.2, 1.0), None)
