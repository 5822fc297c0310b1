"""What paper 003 (Fan and Guo 2025) prints. The points of its Figures 5 and 6 are not printed."""

from __future__ import annotations

TABLE_1 = {  # F values by data set, and by (l_ratio, epsilon); None: without noise
    "forge": {(1.0, 0.1): 0.6237, (1.0, 1.0): 0.7227, (0.2, 0.1): 0.8514, (0.2, 1.0): 0.8613, None: 0.8811},
    "wave": {(1.0, 0.1): 0.7227, (1.0, 1.0): 0.7920, (0.2, 0.1): 0.9306, (0.2, 1.0): 0.9405, None: 0.9603},
    "mnist": {(1.0, 0.1): 0.6039, (1.0, 1.0): 0.7128, (0.2, 0.1): 0.8316, (0.2, 1.0): 0.8712, None: 0.8811},
}
"""Its ImageNet and REDSTONE-Web cannot be had, and it does not say which set its UCI is."""

SETTINGS = ((1.0, 0.1), (1.0, 1.0), (0.2, 0.1), (0.2, 1.0), None)

TABLE_2 = {  # recognition rate (%), protection effect (by experts' opinion, %), recall (%), F, by attack and model
    ("profiling", "DP"): (87.05, 87.76, 89.57, 0.88),
    ("profiling", "HE"): (80.92, 84.54, 85.29, 0.85),
    ("profiling", "ZKP"): (85.17, 86.38, 86.81, 0.86),
    ("profiling", "RSM-DP"): (88.21, 91.28, 92.74, 0.91),
    ("impersonation", "DP"): (83.85, 86.86, 91.16, 0.90),
    ("impersonation", "HE"): (75.17, 75.18, 76.08, 0.75),
    ("impersonation", "ZKP"): (80.85, 83.96, 84.35, 0.84),
    ("impersonation", "RSM-DP"): (87.33, 89.34, 92.33, 0.91),
    ("modification", "DP"): (88.32, 92.65, 96.77, 0.96),
    ("modification", "HE"): (75.90, 76.61, 80.44, 0.81),
    ("modification", "ZKP"): (82.19, 83.89, 87.98, 0.86),
    ("modification", "RSM-DP"): (91.29, 92.86, 93.45, 0.92),
    ("reading a link", "DP"): (87.10, 88.59, 92.79, 0.92),
    ("reading a link", "HE"): (75.14, 78.21, 78.94, 0.79),
    ("reading a link", "ZKP"): (89.89, 89.93, 93.43, 0.92),
    ("reading a link", "RSM-DP"): (93.93, 95.40, 99.46, 0.99),
    ("collusion", "DP"): (85.19, 89.42, 93.13, 0.94),
    ("collusion", "HE"): (83.44, 84.41, 88.43, 0.89),
    ("collusion", "ZKP"): (92.05, 92.44, 92.70, 0.94),
    ("collusion", "RSM-DP"): (93.67, 95.14, 94.45, 0.96),
}
"""Its names are PPA, ARP, MITM, Sniffing and Botnet, in the order of their rows here."""
