"""What the paper prints, in percent or seconds (Zhang et al., NDSS 2025)."""

from __future__ import annotations

FIGURE_3 = {(0.5, 5, 2): 30.6}  # (p, k, T): the only cell that the text gives

TABLE_2 = {  # attack accuracy in epochs 1, 3 and 5
    ("MNIST", "MingledPie"): (27.8, 27.8, 27.8),
    ("MNIST", "IFCA"): (60.3, 97.2, 100.0),
    ("Fashion-MNIST", "MingledPie"): (28.8, 28.8, 28.8),
    ("Fashion-MNIST", "IFCA"): (86.7, 100.0, 100.0),
    ("CIFAR-10", "MingledPie"): (29.0, 29.0, 29.0),
    ("CIFAR-10", "IFCA"): (98.8, 100.0, 100.0),
    ("CIFAR-100", "MingledPie"): (28.9, 28.9, 28.9),
    ("CIFAR-100", "IFCA"): (81.7, 100.0, 100.0),
    ("Texas100", "MingledPie"): (30.1, 30.1, 30.1),
    ("Texas100", "IFCA"): (90.8, 100.0, 100.0),
    ("Purchase100", "MingledPie"): (29.0, 29.0, 29.0),
    ("Purchase100", "IFCA"): (79.2, 100.0, 100.0),
}

TABLE_3 = {  # homogeneous, heterogeneous
    ("MNIST", "MingledPie"): (97.51, 95.81),
    ("MNIST", "IFCA"): (97.49, 95.86),
    ("MNIST", "FedProx"): (81.11, 81.11),
    ("MNIST", "FedEM"): (87.14, 87.14),
    ("Fashion-MNIST", "MingledPie"): (98.14, 96.14),
    ("Fashion-MNIST", "IFCA"): (98.49, 96.15),
    ("Fashion-MNIST", "FedProx"): (67.53, 67.53),
    ("Fashion-MNIST", "FedEM"): (79.33, 79.33),
    ("CIFAR-10", "MingledPie"): (94.76, 87.30),
    ("CIFAR-10", "IFCA"): (95.27, 90.62),
    ("CIFAR-10", "FedProx"): (61.11, 61.11),
    ("CIFAR-10", "FedEM"): (83.10, 83.10),
    ("CIFAR-100", "MingledPie"): (59.20, 55.64),
    ("CIFAR-100", "IFCA"): (62.20, 60.92),
    ("CIFAR-100", "FedProx"): (48.22, 48.22),
    ("CIFAR-100", "FedEM"): (50.55, 50.55),
    ("Texas100", "MingledPie"): (81.14, 75.15),
    ("Texas100", "IFCA"): (81.88, 76.39),
    ("Texas100", "FedProx"): (61.22, 61.22),
    ("Texas100", "FedEM"): (48.72, 48.72),
    ("Purchase100", "MingledPie"): (88.83, 77.72),
    ("Purchase100", "IFCA"): (88.99, 80.96),
    ("Purchase100", "FedProx"): (84.98, 84.98),
    ("Purchase100", "FedEM"): (67.36, 67.36),
}

BASELINES = {"IFCA": 97.49, "FedProx": 81.11, "FedEM": 87.14, "FedAvg": None}  # Table III's, on MNIST without a defence

TABLE_4 = {  # (p, T, k, N): seconds to generate an identity set, to aggregate, to rebuild
    (0.5, 2, 10, 120): (0.068, 18.014, 0.284),
    (0.25, 2, 10, 120): (0.101, 11.763, 0.267),
    (0.125, 2, 10, 120): (0.181, 8.211, 0.254),
    (0.5, 3, 10, 120): (0.071, 23.047, 0.287),
    (0.5, 4, 10, 120): (0.077, 29.523, 0.290),
    (0.5, 2, 5, 120): (0.041, 10.137, 0.184),
    (0.5, 2, 8, 120): (0.058, 14.521, 0.243),
    (0.5, 2, 10, 60): (0.069, 9.154, 0.260),
    (0.5, 2, 10, 240): (0.068, 39.138, 0.316),
}

TABLE_5 = {  # train, test
    ("MNIST", "IFCA"): (97.38, 97.47),
    ("MNIST", "no rebuilding"): (52.07, 52.13),
    ("MNIST", "ideal matrix"): (39.63, 37.94),
    ("MNIST", "MingledPie"): (97.38, 97.46),
    ("Fashion-MNIST", "IFCA"): (98.52, 98.49),
    ("Fashion-MNIST", "no rebuilding"): (66.12, 65.82),
    ("Fashion-MNIST", "ideal matrix"): (70.46, 70.16),
    ("Fashion-MNIST", "MingledPie"): (98.46, 98.18),
    ("CIFAR-10", "IFCA"): (97.64, 95.27),
    ("CIFAR-10", "no rebuilding"): (65.90, 66.11),
    ("CIFAR-10", "ideal matrix"): (51.39, 51.45),
    ("CIFAR-10", "MingledPie"): (96.84, 94.13),
    ("Texas100", "IFCA"): (83.67, 78.95),
    ("Texas100", "no rebuilding"): (27.78, 28.00),
    ("Texas100", "ideal matrix"): (18.42, 18.39),
    ("Texas100", "MingledPie"): (82.60, 78.13),
}

TABLE_6 = {  # CIFAR-100, clusters 0 to 4 and their mean
    "ResNet-18": (61.30, 64.60, 63.75, 61.35, 65.20, 63.24),
    "CNN": (36.45, 45.05, 41.45, 44.80, 45.10, 42.57),
}

TABLE_7 = {  # IID rate: MingledPie, IFCA (the first row is Fashion-MNIST's of Table III)
    0.0: (98.14, 98.49),
    0.2: (83.98, 88.52),
    0.4: (76.77, 82.46),
    0.6: (72.29, 77.71),
}

TABLE_8 = {  # IID rate of newcomers on MNIST: train, test
    0.0: (97.35, 97.47),
    0.2: (88.92, 97.40),
    0.4: (80.54, 97.37),
    0.6: (72.14, 97.22),
}

TABLE_9 = {"FCNN": (3.32, 0.36), "CNN": (7.22, 0.73), "ResNet-18": (22.08, 2.78)}  # seconds to encrypt, to decrypt

FIGURE_5 = {("MNIST", "homogeneous", 5): 97.51, ("MNIST", "homogeneous", 10): 99.40}  # accuracy, by number of clusters

FIGURE_6 = {  # by how much 240 clients differ from 120
    ("MNIST", "homogeneous"): 0.07,
    ("CIFAR-10", "homogeneous"): 0.13,
    ("MNIST", "heterogeneous"): 0.04,
    ("CIFAR-10", "heterogeneous"): 0.53,
}

FIGURE_7 = {  # by how much p = 0.25 differs from p = 0.5
    ("MNIST", "homogeneous"): 0.03,
    ("Fashion-MNIST", "homogeneous"): 0.01,
    ("CIFAR-10", "homogeneous"): 0.13,
    ("Texas100", "homogeneous"): 0.43,
    ("MNIST", "heterogeneous"): 0.06,
    ("Fashion-MNIST", "heterogeneous"): 0.01,
    ("CIFAR-10", "heterogeneous"): 0.12,
    ("Texas100", "heterogeneous"): 0.81,
}

FIGURE_8 = {  # by how much T = 3 differs from T = 2
    ("MNIST", "homogeneous"): 0.06,
    ("Fashion-MNIST", "homogeneous"): 0.01,
    ("CIFAR-10", "homogeneous"): 0.13,
    ("Texas100", "homogeneous"): 0.08,
    ("MNIST", "heterogeneous"): 0.06,
    ("Fashion-MNIST", "heterogeneous"): 0.01,
    ("CIFAR-10", "heterogeneous"): 0.12,
    ("Texas100", "heterogeneous"): 0.35,
}
