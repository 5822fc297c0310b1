"""What `coterie bench` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from coterie.bench.ratio import Facts, Ratio, machine
from coterie.bench.registry import BENCHMARKS, Options, run_benchmarks

BUSY = 0.5  # load a core above which timings say little; threads that wait for each other suffer most


def show_list() -> None:
    table = Table("name", "what it measures", title="Benchmarks")
    for name, benchmark in BENCHMARKS.items():
        table.add_row(name, benchmark.about)
    Console().print(table)


def bench(names: Sequence[str], as_json: bool, options: Options) -> None:
    before = machine()
    rows: list[tuple[str, Ratio]] = []
    with Console(stderr=True).status("measuring") as status:
        for name, row in run_benchmarks(names, options):
            rows.append((name, row))
            status.update(f"measuring; last: {row.name}")
    where = before | {"load_after": machine()["load"]}
    if as_json:
        print(json.dumps(as_document(rows, where), indent=2))
    else:
        Console().print(as_table(rows, where))


def as_document(rows: Iterable[tuple[str, Ratio]], where: Facts) -> Facts:
    return {"machine": where, "ratios": [{"benchmark": name} | row.as_json() for name, row in rows]}


def as_table(rows: Iterable[tuple[str, Ratio]], where: Facts) -> Table:
    """One line a row; what stands behind the baselines follows below the table, once each.

    A ratio's limit is what its matrix products alone would reach.
    """
    rows, setups = list(rows), list[str]()
    limited = any(row.limit is not None for _, row in rows)
    table = Table(title="Costs beside their baselines, measured in one run; ratio: the baseline's over ours")
    table.add_column("what", min_width=16)  # a narrow terminal wraps the name and keeps it
    for heading in ("ours", "baseline", "ratio", *(["limit"] if limited else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound")
    table.add_column("met")
    for _, row in rows:
        note = ""
        if row.setup:
            setups += [] if row.setup in setups else [row.setup]
            note = f" \\[{setups.index(row.setup) + 1}]"
        baseline = "" if row.baseline is None else f"{row.baseline:.3g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        limit = [("" if row.limit is None else f"{row.limit:.2f}")] if limited else []
        ours = f"{row.ours:.3g} {row.unit}".rstrip()
        table.add_row(row.name + note, ours, baseline, ratio, *limit, row.bound_text, _met(row))
    notes = [f"\\[{number}] {setup}" for number, setup in enumerate(setups, 1)]
    table.caption = "\n".join([*notes, _machine_line(where)])
    table.caption_justify = "left"
    return table


def _met(row: Ratio) -> str:
    if row.met is None:
        return "" if row.bound is None else "not run"
    return "[green]yes[/]" if row.met else "[red]no[/]"


def _machine_line(where: Facts) -> str:
    line = (
        f"{where['cores']} cores, {where['threads']} torch threads, load {where['load'][0]} before and "
        f"{where['load_after'][0]} after, Python {where['python']}, torch {where['torch']}"
    )
    if where["load"][0] > BUSY * where["cores"]:
        line += ". The machine was busy before we began: run it again when it is quiet"
    return line
