"""An audit's result made up for tests: plausible in shape, measured by nobody, and labelled as such."""

from __future__ import annotations

import base64
import math
import random
import struct
import zlib

from coterie.measure.claims import Outcome, Promise
from coterie.measure.exhibits import Chart, Gallery, Series
from coterie.measure.findings import (
    AuditResult,
    Check,
    Defended,
    Finding,
    Frontier,
    FrontierPoint,
    LeftOut,
    Limit,
    Method,
)
from coterie.measure.intervals import Interval, Sample
from coterie.measure.reproduced import Claim, Decision, Estimate, Key, Reproduction, Row, Rows
from coterie.measure.roc import Curve
from coterie.privacy.guarantee import Guarantee, Level, Trust

PROPERTY, ACQUISITION, PROFILING = "property inference", "model acquisition", "preference profiling"
MEMBERSHIP, RECONSTRUCTION = "membership inference", "reconstruction from k-means"
DPSGD, REGULARISED, MINGLED = "DP-SGD (σ = 1.0)", "regularisation (λ = 0.1)", "MingledPie (rate 0.5)"
DPKMEANS, BROKEN = "FedDP-KMeans (ε = 1)", "unclipped noise (σ = 0.05)"

SERVER, CLIENT, BOTH = "curious server", "curious client", "colluding client and server"
SHADOWS = "auxiliary data of the same distribution, and the model's shape"

# family, attack, adversary, measure, chance, knew, control, {defence: score}
SCORES: list[tuple[str, str, str, str, float, str, bool, dict[str, float]]] = [
    (PROPERTY, "passive, shadow models", CLIENT, "AUC", 0.5, SHADOWS, False,
     {"none": 0.947, DPSGD: 0.531, REGULARISED: 0.803, MINGLED: 0.688}),
    (PROPERTY, "active, poisoned cluster", CLIENT, "AUC", 0.5, SHADOWS + "; it may send any update", False,
     {"none": 0.981, DPSGD: 0.544, REGULARISED: 0.874, MINGLED: 0.735}),
    (PROPERTY, "passive, shadow models", CLIENT, "AUC", 0.5, SHADOWS, True,
     {"none": 0.503, DPSGD: 0.489, REGULARISED: 0.512, MINGLED: 0.497}),
    (ACQUISITION, "nearest model", CLIENT, "accuracy", 0.2, "its own data only", False,
     {"none": 1.0, DPSGD: 0.930, MINGLED: 0.214}),
    (ACQUISITION, "nearest model", BOTH, "accuracy", 0.2, "its own data, and what the server sees", False,
     {"none": 1.0, DPSGD: 0.961, MINGLED: 0.402}),
    (PROFILING, "cosine of updates", SERVER, "accuracy", 0.1, "one labelled example of each class", False,
     {"none": 0.912, DPSGD: 0.247, MINGLED: 0.108}),
    (PROFILING, "cosine of updates", SERVER, "accuracy", 0.1, "one labelled example of each class", True,
     {"none": 0.096, DPSGD: 0.104, MINGLED: 0.101}),
    (MEMBERSHIP, "likelihood ratio", SERVER, "AUC", 0.5, SHADOWS, False,
     {"none": 0.791, DPSGD: 0.522, REGULARISED: 0.640, BROKEN: 0.768}),
    (MEMBERSHIP, "loss threshold", CLIENT, "AUC", 0.5, "records to ask about", False,
     {"none": 0.702, DPSGD: 0.508, REGULARISED: 0.573, BROKEN: 0.691}),
    (RECONSTRUCTION, "differences of centres", SERVER, "cosine", 0.0, "the counts of two rounds", False,
     {"none": 0.968, DPKMEANS: 0.041}),
    (RECONSTRUCTION, "differences of centres", "eavesdropper", "cosine", 0.0, "nothing beyond the wire", False,
     {"none": math.nan, DPKMEANS: 0.022}),
]  # fmt: skip


def findings() -> list[Finding]:
    draw, found = random.Random(7), []
    for family, attack, adversary, measure, chance, knew, control, scores in SCORES:
        for defence, score in scores.items():
            reach = draw.uniform(0.015, 0.05) if defence != REGULARISED or score > 0.6 else 0.09
            interval = around(score, reach) if not math.isnan(score) else Interval.unknown(score)
            runs = () if math.isnan(score) else (Sample.share(score * 40, 40),) * 5
            found.append(
                Finding(
                    attack, measure, interval, chance, runs, "clients", knew, 1.0, family, adversary, defence, control,
                    roc_of(score) if measure == "AUC" else None, stress=family == ACQUISITION,
                )
            )  # fmt: skip
    return found


def around(score: float, reach: float) -> Interval:
    return Interval(score, max(0.0, score - reach), min(1.0, score + reach))


def roc_of(area: float, points: int = 60) -> Curve:
    """The power curve y = x^a has the area 1 / (1 + a)."""
    power = 1 / area - 1
    rates = [(index / points) ** 2 for index in range(points + 1)]
    return Curve(rates, [rate**power for rate in rates])


def defended() -> list[Defended]:
    shown = "lower bound 0.31 at 95 % confidence (1,000 trials, δ = 1e-05)"
    dp = Promise(Guarantee(2.87, 1e-5, Level.RECORD, Trust.LOCAL_NOISE), 0.31, Outcome.HOLDS,
                 ["proven by composition of its events", shown])  # fmt: skip
    none = Promise(Guarantee.none("a penalty adds no noise", Level.RECORD, Trust.LOCAL_NOISE), None,
                   Outcome.NOT_REFUTED, ["nothing is claimed", "no lower bound was measured"])  # fmt: skip
    mingled = Promise(Guarantee.none("decoys hide who is where", Level.CLIENT, Trust.NO_COLLUSION), None,
                      Outcome.NOT_REFUTED, ["nothing is claimed", "no lower bound was measured"])  # fmt: skip
    kmeans = Promise(Guarantee(1.0, 1e-6, Level.CLIENT, Trust.TRUSTED_AGGREGATOR), 0.12, Outcome.NOT_REFUTED,
                     ["lower bound 0.12 at 95 % confidence"])  # fmt: skip
    broken = Promise(Guarantee(1.0, 1e-5, Level.RECORD, Trust.LOCAL_NOISE), 2.41, Outcome.VIOLATED,
                     ["claimed 1, but lower bound 2.41 at 95 % confidence"])  # fmt: skip
    claims = {DPSGD: dp, REGULARISED: none, MINGLED: mingled, DPKMEANS: kmeans, BROKEN: broken}
    cost = {"none": (0.97, 0.42, 31_400, 4.1e8), DPSGD: (0.912, 1.31, 31_400, 6.8e8),
            REGULARISED: (0.963, 0.44, 31_400, 4.1e8), MINGLED: (0.951, 2.75, 1_840_000, 9.2e8),
            DPKMEANS: (0.871, 0.08, 2_560, 1.1e8), BROKEN: (0.968, 0.43, 31_400, 4.1e8)}  # fmt: skip
    rows = []
    for family in (PROPERTY, ACQUISITION, PROFILING, MEMBERSHIP, RECONSTRUCTION):
        for defence in dict.fromkeys(name for row in SCORES if row[0] == family for name in row[7]):
            utility, time, upload, memory = cost[defence]
            measure = "purity" if family == RECONSTRUCTION else "accuracy"
            spread = around(utility, 0.012)
            rows.append(Defended(family, defence, measure, spread, time, upload, memory, claims.get(defence)))
    return rows


def as_configured() -> list[Defended]:
    proven = Promise(Guarantee(2.87, 1e-5, Level.RECORD, Trust.LOCAL_NOISE), None, Outcome.HOLDS,
                     ["proven by composition of its events", "no lower bound was measured"])  # fmt: skip
    name, measure = "the federation as configured", "accuracy"
    return [
        Defended(name, "none", measure, around(0.951, 0.01), 0.41, 31_400, 4.1e8, None, None, *beside(0.951)),
        Defended(name, DPSGD, measure, around(0.914, 0.01), 1.28, 31_400, 6.7e8, proven, 2.861, *beside(0.914)),
    ]


def beside(score: float) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """What clients would have without it, and what they gain."""
    known = {"a constant answer": 0.4, "training alone": 0.83}
    return {name: around(value, 0.01) for name, value in known.items()}, {
        name: around(score - value, 0.01) for name, value in known.items()
    }


def charts() -> list[Chart]:
    draw, rounds = random.Random(11), [float(index) for index in range(0, 41, 2)]

    def rising(name: str, end: float, start: float, speed: float) -> Series:
        y = [start + (end - start) * (1 - math.exp(-speed * x)) + draw.uniform(-0.008, 0.008) for x in rounds]
        return Series(name, rounds, y, [value - 0.02 for value in y], [min(1.0, value + 0.02) for value in y])

    accuracy = Chart("Accuracy, round by round", "Mean over clients and five seeds; bands are 95 % intervals.", "round",
                     "accuracy", [rising("none", 0.97, 0.2, 0.15), rising(DPSGD, 0.912, 0.2, 0.09),
                                  rising(REGULARISED, 0.963, 0.2, 0.13), rising(MINGLED, 0.951, 0.2, 0.12)],
                     family=PROPERTY)  # fmt: skip
    leakage = Chart("Leakage, round by round", "The passive attack on what was sent up to this round.", "round", "AUC",
                    [rising("none", 0.947, 0.52, 0.12), rising(DPSGD, 0.531, 0.5, 0.05),
                     rising(REGULARISED, 0.803, 0.51, 0.09), rising(MINGLED, 0.688, 0.5, 0.08)],
                    reference=("chance", 0.5), family=PROPERTY)  # fmt: skip
    places = [(math.cos(k * 1.2566) * 22, math.sin(k * 1.2566) * 22) for k in range(5)]
    tsne = Chart(
        "t-SNE of updates", "Each mark is a client's update in the last round; its shape is the true cluster.",
        "first t-SNE axis", "second t-SNE axis",
        [Series(f"cluster {k + 1}", [x + draw.gauss(0, 4) for _ in range(24)],
                [y + draw.gauss(0, 4) for _ in range(24)])
         for k, (x, y) in enumerate(places)],
        kind="scatter", family=PROFILING,
    )  # fmt: skip
    classes = [float(k) for k in range(10)]
    preferring = [
        Series(name, classes, [draw.uniform(-0.1, 0.1) + (0.8 if k == best else 0) for k in range(10)])
        for name, best in (("client 3", 4), ("client 8", 7))
    ]
    cosine = Chart("Cosine of updates to the class's own direction", "A client stands out at its preferred class.",
                   "class", "cosine", preferring, reference=("no relation", 0.0), family=PROFILING)  # fmt: skip
    return [accuracy, leakage, tsne, cosine]


def png(grey: list[list[int]]) -> str:
    """A grey picture as a PNG file in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + bytes(row) for row in grey)
    head = struct.pack(">IIBBBBB", len(grey[0]), len(grey), 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def _pictures(noise: float) -> list[str]:
    draw, shown = random.Random(3), []
    for turn in range(8):
        rows = []
        for y in range(16):
            ring = [
                abs(math.hypot(x - 7.5 - math.cos(turn) * 2, (y - 7.5) * (0.7 + turn / 12)) - 4.5) for x in range(16)
            ]
            rows.append([max(0, min(255, int(255 * math.exp(-(r**2) / 2) + draw.gauss(0, noise)))) for r in ring])
        shown.append(png(rows))
    return shown


def frontier() -> Frontier:
    noise = [(0.3, 0.744, 0.953), (0.6, 0.588, 0.934), (1.0, 0.531, 0.912), (2.0, 0.508, 0.803)]
    penalty = [(0.01, 0.92, 0.966, False), (0.1, 0.803, 0.963, False), (1.0, 0.77, 0.91, True)]
    points = [
        FrontierPoint("none", 0, around(0.947, 0.015), around(0.97, 0.01), 16.8),
        *[
            FrontierPoint("DP-SGD", sigma, around(leak, 0.03), around(use, 0.012), 51, recommended=sigma == 0.6)
            for sigma, leak, use in noise
        ],
        *[
            FrontierPoint("regularisation", weight, around(leak, 0.03), around(use, 0.012), 18, dominated)
            for weight, leak, use, dominated in penalty
        ],
    ]
    advice = "The weakest defence that meets the limits (property AUC ≤ 0.6, accuracy ≥ 0.9) is DP-SGD with σ = 0.6."
    return Frontier("Property inference against accuracy", "property AUC", "accuracy", 0.5, points, advice)


def methods() -> list[Method]:
    return [
        Method(PROPERTY, "Kim et al., Property inference attacks on clustered federated learning",
               "Can a client tell whether the others of its cluster share a property that the task does not need?",
               "A client that follows the protocol, sees its cluster's models of every round and has auxiliary data.",
               "Shadow federations with and without the property train a classifier on models; AUC over five seeds.",
               "4 clients, of which one uses data with the property in one round of three"),
        Method(ACQUISITION, "Zhang et al., MingledPie", "Can a client get the models of other clusters?",
               "A client that keeps every model it is sent.", "It chooses the model that suits its target best."),
        Method(PROFILING, "Zhang et al., MingledPie", "Can the server tell what a client prefers?",
               "A server that follows the protocol and reads updates.",
               "Cosine of updates to reference directions of each class."),
        Method(MEMBERSHIP, "Carlini et al., Membership inference from first principles", "Was this record used?",
               "A server or client with records to ask about.", "Likelihood ratios by shadow models; AUC."),
        Method(RECONSTRUCTION, "Gupta and Maheshwari, after Scott et al.", "Can points be read off the centres?",
               "A server that sees sums and counts of every round.", "Differences of sums between rounds."),
    ]  # fmt: skip


def sample() -> AuditResult:
    return AuditResult(
        title="Sample audit (made-up values, not measurements)",
        subject={"data": "digits, 1,797 pictures of 8 × 8", "partition": "20 clients in 5 groups of 2 digits each",
                 "trainer": "IFCA, 5 clusters, 40 rounds", "model": "one hidden layer of 64",
                 "defences": f"none, {DPSGD}, {REGULARISED}, {MINGLED}, {DPKMEANS}, {BROKEN}", "seeds": "5"},
        findings=findings(),
        defended=defended(),
        charts=charts(),
        galleries=[
            Gallery("Points read off the centres", "Undefended, the differences are the private pictures themselves.",
                    [("private", _pictures(0)), ("reconstructed, undefended", _pictures(18)),
                     (f"reconstructed, {DPKMEANS}", _pictures(400))], RECONSTRUCTION)
        ],
        as_configured=as_configured(),
        launched=DPSGD,
        frontiers=[frontier()],
        checks=[
            Check(Limit("max_property_auc", 0.6), around(0.544, 0.04), True, f"the strongest attack under {DPSGD}"),
            Check(Limit("max_epsilon", 3), Interval(2.87, 2.87, 2.87), True, f"{DPSGD} claims 2.87 at δ = 1e-05"),
            Check(Limit("min_accuracy", 0.95, at_least=True), around(0.912, 0.012), False, f"accuracy under {DPSGD}"),
        ],
        methods=methods(),
        left_out=[
            LeftOut("vertical clustering", "the federation's clients hold different records, not different columns"),
            LeftOut("cGAN reconstruction", "it needs pictures of at least 28 × 28"),
            LeftOut(ACQUISITION, "the server needs each client's update, and sees sums alone", "secure sums"),
        ],
        reproduce={"command": "coterie audit federation.toml --seed 0", "seed": "0 to 4",
                   "versions": "coterie 0.1.0, Python 3.11, torch 2.13.0, numpy 2.4", "duration": "3 min 41 s",
                   "created": "2025-01-01 12:00 UTC", "machine": "2 cores, 4 GB"},
    )  # fmt: skip


def reproduction() -> Reproduction:
    return Reproduction(
        "sample paper", "III", "Accuracy of five trainers (made-up values)",
        Rows.of([
            Row(Key.of(method="IFCA"), "IFCA", 0.95, Estimate(0.941, 0.93, 0.952)),
            Row(Key.of(method="FedAvg"), "FedAvg", 0.62, Estimate(0.655, 0.63, 0.68), {}, "ours has more local epochs"),
            Row(Key.of(method="MingledPie"), "MingledPie", None, Estimate(0.938),
                {"chance": Estimate.exactly(0.1), "placebo": Estimate(0.5, 0.45, 0.55)}),
        ]),
        [Claim("IFCA beats FedAvg", Decision.HOLDS, "0.941 [0.930, 0.952] against 0.655 [0.630, 0.680]"),
         Claim("MingledPie costs nothing", Decision.UNDECIDED, "one seed only"),
         Claim("FedAvg is close", Decision.FAILS, "0.655 against 0.941")],
        "quick", "20 clients instead of 100.",
    )  # fmt: skip
