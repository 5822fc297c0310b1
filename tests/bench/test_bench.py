"""The seam of the benchmarks: rows, bounds, order of timing, and that both sides do the same work. No timings."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from coterie.bench import ring as bench_ring
from coterie.bench.beside_peers import Work, peers
from coterie.bench.elsewhere import Elsewhere
from coterie.bench.enrolled import enrolled
from coterie.bench.neighbour import beside, busy_machine
from coterie.bench.ratio import Ratio, Timing, interleaved, machine
from coterie.bench.registry import BENCHMARKS, Benchmark, Options, run_benchmarks
from coterie.bench.ring import IfcaCase, ModuleCase, PlainLoop, Rounds, ifca, module_round, random_federation
from coterie.bench.scaling import run_here
from coterie.commands.benchmarking import as_document, as_table
from coterie.errors import CoterieError, InvalidInput
from coterie.learn.models.bundled import Cnn, FaceCnn, Gru, fcnn
from coterie.learn.models.model import ModuleModel
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng

TINY = Work(clients=3, each=4, steps=1, batch_size=2, rounds=1)


def test_the_ratio_says_how_many_times_ours_is_the_smaller() -> None:
    assert Ratio("a", 0.5, "s", 2.0).ratio == 4.0
    assert Ratio("a", 0.5, "s").ratio is None


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Ratio("a", 1.0, "s", 3.0, 3.0), True),
        (Ratio("a", 1.0, "s", 2.9, 3.0), False),
        (Ratio("a", 2.0, "s", 1.0, 0.5), True),  # at most twice the baseline's time
        (Ratio("a", 33.0, "bytes", 90.0, 34.0, bound_on_ratio=False), True),
        (Ratio("a", 35.0, "bytes", 900.0, 34.0, bound_on_ratio=False), False),
        (Ratio("a", 6.0, "ms", None, 5.0, bound_on_ratio=False), False),
        (Ratio("a", 6.0, "ms", None, 5.0), None),  # no baseline, so the bound says nothing
        (Ratio("a", 6.0, "ms", 7.0), None),
    ],
)
def test_bounds_are_on_the_ratio_or_on_ours(row: Ratio, met: bool | None) -> None:
    assert row.met is met


def test_costs_are_positive() -> None:
    with pytest.raises(InvalidInput, match=r"a: ours=0\.0 must be positive"):
        Ratio("a", 0.0, "s")
    with pytest.raises(InvalidInput, match=r"a: baseline=-1\.0 must be positive"):
        Ratio("a", 1.0, "s", -1.0)


def test_contenders_take_turns_after_one_unmeasured_run_each() -> None:
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3)
    assert "".join(calls) == "ab" * 4
    assert len(timings["a"].seconds) == len(timings["b"].seconds) == 3
    assert Timing((3.0, 1.0, 2.5)).best == 1.0
    assert Timing((3.0, 1.0, 2.5)).median == 2.5
    with pytest.raises(InvalidInput, match="repeats=0 must be at least 1"):
        interleaved({}, repeats=0)


def test_json_has_every_ratio_with_its_baseline_unit_and_bound() -> None:
    rows = [
        ("x", Ratio("a", 0.5, "s", 2.0, 3.0, limit=5.0, setup="plain")),
        ("y", Ratio("b", 1.0, "GiB", None, 4.0, False)),
    ]
    document = json.loads(json.dumps(as_document(rows, machine())))
    assert document["ratios"] == [
        {
            "benchmark": "x",
            "name": "a",
            "ours": 0.5,
            "baseline": 2.0,
            "ratio": 4.0,
            "limit": 5.0,
            "unit": "s",
            "bound": {"on": "ratio", "direction": "at least", "value": 3.0},
            "met": True,
            "setup": "plain",
        },
        {
            "benchmark": "y",
            "name": "b",
            "ours": 1.0,
            "baseline": None,
            "ratio": None,
            "limit": None,
            "unit": "GiB",
            "bound": {"on": "ours", "direction": "at most", "value": 4.0},
            "met": True,
            "setup": "",
        },
    ]
    assert document["machine"]["cores"] >= 1
    assert len(document["machine"]["load"]) == 3


def test_the_table_shows_what_is_met_and_what_stands_behind_a_baseline() -> None:
    rows = [
        ("x", Ratio("fast", 0.5, "s", 2.0, 3.0, setup="a plain loop")),
        ("x", Ratio("slow", 1.0, "s", 2.0, 3.0, setup="a plain loop")),
        ("x", Ratio("alone", 1.0, "s", None, 3.0, setup="not run: install it")),
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(as_table(rows, machine() | {"load": [9.0] * 3, "load_after": [0.1] * 3, "cores": 2}))
    lines = console.export_text().splitlines()
    assert [line.split("│")[-2].strip() for line in lines if line.startswith("│")] == ["yes", "no", "not run"]
    text = "\n".join(lines)
    assert text.count("a plain loop") == 1
    assert "slow [1]" in text
    assert "alone [2]" in text
    assert "busy" in text


def test_a_narrow_terminal_keeps_what_was_measured() -> None:
    rows = [("x", Ratio(f"members that {who} misses at one percent", 0.8, "", 0.9, 0.9)) for who in ("LiRA", "RMIA")]
    fast = ("x", Ratio("shadow federations", 0.732, "s", 29.2, 5.0, limit=50.0))

    def shown(*given: tuple[str, Ratio]) -> str:
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(as_table(given, machine() | {"load_after": [0.1] * 3}))
        return console.export_text()

    text = shown(*rows)
    assert all(word in text for word in ("LiRA", "RMIA", "percent", "0.8", "ratio ≥ 0.9"))
    assert "limit" not in text  # of which no row has one
    assert all(word in shown(fast) for word in ("federations", "0.732 s", "39.89", "50.00", "│ yes │"))


def test_a_neighbour_spins_only_while_its_partner_runs() -> None:
    told: list[str] = []

    class Quiet:
        def spin(self) -> None:
            told.append("spin")

        def rest(self) -> None:
            told.append("rest")

    beside([Quiet()], lambda: told.append("run"))()
    assert told == ["spin", "run", "rest"]
    told.clear()
    with pytest.raises(ZeroDivisionError):
        beside([Quiet()], lambda: 1 // 0)()
    assert told == ["spin", "rest"]


def _waiting() -> Callable[[], None]:
    assert os.environ["GOMP_SPINCOUNT"] == "300000"  # or the process ends, and the call below raises
    return lambda: None


def test_a_baseline_waits_as_torch_does_by_default() -> None:
    with closing(Elsewhere(_waiting)) as there:
        there()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_a_small_round_on_a_busy_machine() -> None:
    (row,) = busy_machine(Options(repeats=1), clients=2, each=50)
    assert row.ratio is not None
    assert row.bound == 1 / 2.2


def test_names_are_checked_before_anything_runs() -> None:
    with pytest.raises(InvalidInput, match="benchmark='ifka' is unknown; did you mean 'ifca'"):
        list(run_benchmarks(["startup", "ifka"]))


def test_every_benchmark_exists() -> None:
    for benchmark in BENCHMARKS.values():
        module, function = benchmark.home.split(":")
        assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_a_benchmark_is_found_by_its_home() -> None:
    rows = list(Benchmark("", "coterie.bench.startup:startup").run(Options(repeats=1)))
    assert [row.name for row in rows] == ["import coterie", "coterie --help"]
    assert all(row.baseline is not None for row in rows)


def test_a_small_run_of_ifca_and_of_a_module() -> None:
    rows = list(ifca(Options(repeats=1), IfcaCase(clients=4, clusters=2, each=60)))
    assert [row.bound for row in rows] == [2.3, 0.8]
    assert rows[0].limit is not None
    assert rows[1].limit == 1.0
    assert rows[0].ours == rows[1].ours
    case = ModuleCase("CNN", Cnn(), bench_ring._plain_cnn, partial(bench_ring._pictures, 1, 28), 2, Local(1, None, 3))
    row = module_round(case, Options(repeats=1))
    assert row.ratio is not None
    assert row.limit is not None
    assert "2 clients, 1 steps of 3" in row.name


def test_the_plain_loop_does_the_same_work() -> None:
    """With one batch of all its data, a client's result does not depend on the order of examples."""
    rng, each = Rng.seeded(3), 12
    federation = random_federation(5, each, torch.rand(60, 784, generator=rng.torch()), rng)
    local = Local(steps=1, batch_size=each, lr=0.5)
    ours = Rounds(Ifca(rounds=1, local=local, clusters=3, candidates=0, choose_on=each), federation, fcnn(), rng)
    loop = PlainLoop(federation, bench_ring._plain_fcnn, local, clusters=3, choose_on=each)
    for slot, model in enumerate(loop.models):
        for leaf, given in zip(model.parameters(), ours.state.published.values.values(), strict=True):
            leaf.data.copy_(given[slot])
    published = ours().published
    assert (published.sizes > 0).sum() >= 2
    for slot, trained in enumerate(loop()):
        if published.sizes[slot]:
            for result, name in zip(trained.values(), published.values, strict=True):
                torch.testing.assert_close(result, published.values[name][slot], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("plain", "ours", "x"),
    [
        (bench_ring._plain_cnn, Cnn(), torch.rand(4, 1, 28, 28)),
        (bench_ring._plain_face_cnn, FaceCnn(), torch.rand(4, 3, 48, 48)),
        (bench_ring._PlainGru, Gru(), torch.randint(1, 5000, (4, 9))),
    ],
)
def test_the_plain_networks_compute_the_same(plain: bench_ring.Build, ours: ModuleModel, x: torch.Tensor) -> None:
    module = plain()
    params = dict(zip(ours.init(0), (leaf.detach() for leaf in module.parameters()), strict=True))
    torch.testing.assert_close(ours.logits(params, x), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_contender_elsewhere_runs_there() -> None:
    with closing(Elsewhere(partial, math.sqrt, 4)) as contender:
        contender()
        contender()
        assert contender._process.pid != os.getpid()
    with closing(Elsewhere(partial, math.sqrt, -4)) as broken, pytest.raises(CoterieError, match="process died"):
        broken()


def test_costs_of_a_few_clients() -> None:
    cost = run_here("fcnn", 3, 0)
    assert cost.clients == 3
    assert cost.gib > 0.05  # torch alone takes more
    with pytest.raises(InvalidInput, match="model='fcn' is unknown"):
        run_here("fcn", 3, 0)


def test_a_peer_that_is_not_given_is_said_to_be_missing() -> None:
    rows = list(peers(Options(repeats=1), TINY))
    assert [row.met for row in rows] == [None, None]
    assert "pip install torch 'flwr[simulation]==1.41.0'" in rows[0].setup
    assert "--pfl-python" in rows[1].setup


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_peer_tells_its_rounds_on_its_last_line(tmp_path: Path) -> None:
    """The stand-in refuses to answer unless it was told the work and kept from telling others."""
    told = 'test "$FLWR_TELEMETRY_ENABLED" = 0 && echo "$COTERIE_PEER_WORK" | grep -q \'"clients": 3\' || exit 1'
    python = script(tmp_path / "python", f"{told}\necho noise\necho '{{\"seconds\": [0.5, 0.25]}}'")
    rows = list(peers(Options(repeats=1, flower_python=python), TINY))
    assert rows[0].baseline == 0.25
    assert rows[0].limit is not None
    assert rows[0].bound == pytest.approx(0.8 * rows[0].limit)
    assert rows[1].baseline is None


def test_a_peer_that_fails_is_named_with_its_remedy(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo \"ModuleNotFoundError: No module named 'pfl'\" >&2; exit 1")
    with pytest.raises(InvalidInput, match=r"--pfl-python=.*No module named 'pfl'.*pip install torch pfl"):
        list(peers(Options(repeats=1, pfl_python=python), TINY))
    with pytest.raises(InvalidInput, match="--flower-python=nowhere cannot be run"):
        list(peers(Options(repeats=1, flower_python=Path("nowhere")), TINY))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from coterie.commands.cli import main; main(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", code, "bench", *arguments], capture_output=True, text=True)


def test_the_command_lists_and_measures() -> None:
    listed = command("--list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in BENCHMARKS)
    measured = command("startup", "--json", "--repeats", "1")
    assert {"name", "baseline", "ratio", "unit", "bound"} <= json.loads(measured.stdout)["ratios"][0].keys()
    unknown = command("nothing")
    assert unknown.returncode == 2
    assert "benchmark='nothing' is unknown" in unknown.stderr


def test_enrolled_clients_who_are_not_asked_cost_a_roster() -> None:
    rows = list(enrolled(Options(repeats=1), clients=500, asked=20))
    assert [row.unit for row in rows] == ["s", "MiB"]
    assert rows[1].met  # 480 clients more than are asked take no 256 MiB
