"""What the command line's training commands do, and what they show while they do it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.commands.progress import following
from coterie.config.schema import Config, asked_property, changed, parse, read
from coterie.errors import DataMissing, RunDamaged, require
from coterie.files import meant
from coterie.measure.groups import LISTED
from coterie.measure.utility import ACCURACY, COST, ERROR, F1, HIGHER_IS_BETTER, utility_in
from coterie.report.markup import printable
from coterie.run.folder import Measured, Record, RunFolder, free_folder
from coterie.run.folder import list_runs as find_runs
from coterie.run.origin import Origin

if TYPE_CHECKING:
    from coterie.config.built import Case
    from coterie.measure.exhibits import Chart

console = Console()


@dataclass(frozen=True)
class Line:
    """One row of the table that ends a session."""

    trainer: str
    measure: str
    utility: float
    seconds: float
    folder: Path
    clusters: str = ""  # who uses which model, in words; a clustering has none


def train(
    path: Path | None, root: Path, seed: int | None, record: Path | None = None, said: Sequence[str] = ()
) -> None:
    config = read(path, said) if path else example(said)
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    lines = []
    for one, case in _cases(config):
        settings: Record = {"config": one.model_dump(mode="json"), **Origin.of(one, case.federation).entry}
        if record is not None:
            settings["recording"] = str(free_recording(record, one.trainers[0].kind, len(config.trainers)))
            settings["property"] = asked_property(path) if path else None
        folder = RunFolder.create(free_folder(root, f"{config.name}-{one.trainers[0].kind}"), settings)
        lines.append(_run(one, case, folder))
    _show(lines)


def _cases(config: Config) -> list[tuple[Config, Case]]:
    """One a trainer, all built before anything long begins; with a word on what they are."""
    federation = config.federation()
    cases = [
        (config.model_copy(update={"trainer": choice}), config.case(choice, federation)) for choice in config.trainers
    ]
    console.print(f"[bold]{federation.describe()}[/bold]")
    if models := [case.model for _, case in cases if case.model is not None]:
        size = sum(leaf.numel() for leaf in models[0].init(0).values())
        console.print(f"model {config.model.kind}: {size:,} parameters; seed {config.seed}")
    return cases


def free_recording(record: Path, trainer: str, trainers: int) -> Path:
    """Where messages go: the folder itself, or one in it for each of several trainers. It must be empty."""
    place = (record / trainer if trainers > 1 else record).absolute()
    require(not place.exists() or not any(place.iterdir()), "record", str(place), "is not empty; name another folder")
    return place


def resume(path: Path, trust_code: bool = False) -> None:
    folder = RunFolder(path)
    config = parse(folder.record["config"], str(path))
    if not trust_code:
        config.refuse_code(str(path), "pass --trust-code")
    if folder.finished:
        console.print(f"{path} is finished; nothing to do")
        return
    ((_, case),) = _cases(config)
    for difference in Origin.of(config, case.federation).compare(folder.record, str(path)):
        console.print(f"[yellow]changed[/]: {difference}", soft_wrap=True)
    _show([_run(config, case, folder)])


def example(said: Sequence[str] = ()) -> Config:
    """The comparison of all trainers on embedded digits, but for what is said."""
    import tomllib

    text = resources.files("coterie.recipes").joinpath("compare_trainers.toml").read_text()
    return parse(changed(tomllib.loads(text), said), "compare_trainers.toml")


def _run(config: Config, case: Case, folder: RunFolder) -> Line:
    from coterie.audit.recorded import RECORDER, describe
    from coterie.measure.witness import Witness
    from coterie.report.values import ledger
    from coterie.run.training import train as run
    from coterie.wire.tape import Tape

    kind, witness = config.trainers[0].kind, Witness()
    recording = folder.record.get("recording")
    started = time.monotonic()
    with following(kind, console) as bar:
        rounds = getattr(case.protocol, "rounds", None)

        def tell(done: int, newest: Measured | None) -> None:
            bar(done, rounds, measured(newest or {}))

        outcome = run(
            case.protocol,
            case.federation,
            case.model,
            seed=case.seed,
            defence=case.defence,
            evaluate_every=config.evaluate_every,
            folder=folder,
            tape=Tape([RECORDER], Path(recording)) if recording else None,
            witness=witness,
            progress=tell,
            secret=True,
            stop=config.stop,
            device=config.device,
        )
    if promise := replace(case, simulated=outcome.simulated).promise:
        used = case.spent(outcome.ledger)
        console.print(f"privacy: {promise.claim}" + (f"; {ledger(used)}" if used is not None else ""), soft_wrap=True)
        for one in promise.guarantee.attainable:
            console.print(f"attainable: {one}", soft_wrap=True)
    scores = outcome.scores
    if recording:
        asked = folder.record.get("property")
        describe(Path(recording), config.model_dump(mode="json"), case, scores.choices.argmax(1), witness, asked)
        console.print(f"messages: {recording}; `coterie audit --recorded {recording}` attacks them", soft_wrap=True)
    clusters, seconds = "" if case.model is None else outcome.clusters.words, time.monotonic() - started
    return Line(kind, scores.measure, scores.mean, seconds, folder.path, clusters)


def measured(row: Measured) -> str:
    """How well a round served, in words; empty where nothing says so."""
    found = utility_in(row)
    return f"{found[0]} {found[1]:.4f}" if found else ""


def _show(lines: list[Line]) -> None:
    table = Table(title="How well clients are served: the mean over clients, each on its own test data")
    table.add_column("trainer")
    table.add_column("measure")
    table.add_column("utility", justify="right")
    table.add_column("time", justify="right")
    table.add_column("run", no_wrap=True)
    for line in sorted(lines, key=lambda line: line.utility * (-1 if HIGHER_IS_BETTER[line.measure] else 1)):
        row = (line.trainer, line.measure, f"{line.utility:.4f}", f"{line.seconds:.1f} s", line.folder.name)
        table.add_row(*row)
    console.print(table)
    for line in lines:
        if line.clusters:
            console.print(f"[bold]{line.trainer}[/]: {line.clusters}", soft_wrap=True, highlight=False)
    console.print(f"Models, metrics and settings of each run are in {lines[0].folder.parent}/", soft_wrap=True)


def list_runs(root: Path, plot: Path | None = None) -> None:
    found = find_runs(root)
    if not found:
        console.print(f"no runs in {root}; `coterie train` makes some")
        return
    if plot is not None:
        plot_runs(root, found, plot)
    table = Table(title=f"Runs in {root}, oldest first", box=None, title_justify="left", pad_edge=False)
    for heading in (
        "run",
        "state",
        "round",
        "utility",
        "begun",
    ):
        table.add_column(heading, no_wrap=heading == "run", overflow="fold")
    for run in found:
        table.add_row(printable(str(run.path.relative_to(root))), *_told(run))
    longest = max(len(str(run.path.relative_to(root))) for run in found)
    console.print(table, width=max(console.width, longest + 50), soft_wrap=True)


def _told(run: RunFolder) -> tuple[str, str, str, str]:
    """State, round, newest measurement, and when it began; a run that cannot be read says so and stops no other."""
    begun = printable(run.created[:16].replace("T", " "))
    try:
        history = run.history
        newest = history[-1] if history else {}
        return run.state, str(newest.get("round", "")), measured(newest), begun
    except (RunDamaged, TypeError, ValueError):
        return "damaged", "", "", begun


def plot_runs(root: Path, runs: list[RunFolder], page: Path) -> None:
    """What was measured on the way: of all runs one figure a measure, and of each run the scores of its clusters."""
    from coterie.files import write_atomically
    from coterie.report.html import render_charts

    histories = {str(run.path.relative_to(root)): run.history for run in runs}
    charts = [chart for measure, about in PLOTTED.items() if (chart := _measure_chart(measure, about, histories))]
    charts += [chart for name, history in histories.items() if (chart := _cluster_chart(name, history))]
    write_atomically(page, render_charts(f"Runs in {root}", charts).encode())
    console.print(f"figures: {page}", soft_wrap=True)


def _measure_chart(measure: str, about: str, histories: Mapping[str, list[Measured]]) -> Chart | None:
    lines = {
        name: [(row["round"], row[measure]) for row in history if measure in row] for name, history in histories.items()
    }
    return _chart(about, "Measured as often as each run was told to.", measure, lines)


def _cluster_chart(name: str, history: list[Measured]) -> Chart | None:
    """Of a run with several models in use, and not so many that lines would hide each other."""
    scores = [(row["round"], row.get("clusters", [])) for row in history]
    models = len(scores[-1][1]) if scores else 0  # a tree grows
    lines = {
        f"model {slot}": [
            (round, values[slot]) for round, values in scores if slot < len(values) and values[slot] is not None
        ]
        for slot in range(models if 1 < models <= LISTED else 0)
    }
    return _chart(f"{name}: the score of each model's clients", "A model that nobody uses has none.", "score", lines)


def _chart(title: str, caption: str, measure: str, lines: Mapping[str, list[tuple[int, float]]]) -> Chart | None:
    from coterie.measure.exhibits import Chart, Series

    series = [Series(name, *map(list, zip(*points, strict=True))) for name, points in lines.items() if points]
    return Chart(title, caption, "round", measure, series) if series else None


PLOTTED = {
    ACCURACY: "Mean test accuracy over clients, each on its own data",
    F1: "Mean F1 of labels over clients, each on its own test data",
    ERROR: "Mean squared error over clients, each on its own test data",
    COST: "Mean k-means cost over clients",
    "ari": "Agreement of clusters with the known groups (adjusted Rand index)",
    "nmi": "Agreement of clusters with the known groups (normalised mutual information)",
}


READINESS = {"ready": "green", "missing": "yellow", "damaged": "red"}


def list_data(folder: Path | None) -> None:
    """A line each, so that the list is seen at once; where to get one, and how it must lie, is asked by its name."""
    from coterie.data.catalogue import rows

    if folder is not None and not folder.is_dir():
        raise DataMissing(f"--folder={folder} is no folder; {meant(folder)}name the one that data sets lie in")
    table = Table(title="Data sets", caption="coterie data NAME: where it is published, and the files it is read from")
    for heading in ("name", "state", "what it is"):
        table.add_column(heading, overflow="fold")
    for row in rows(folder):
        state = row.state.readiness.value
        words = row.state.reason if state == "damaged" else row.about
        table.add_row(row.name, f"[{READINESS[state]}]{state}[/]", words)
    console.print(table)


def describe_data(name: str, folder: Path | None) -> None:
    from coterie.data.catalogue import check

    row = check(name, folder)
    state = row.state.readiness.value
    facts = {
        "what": row.about,
        "state": f"[{READINESS[state]}]{state}[/]: {escape(row.state.reason)}",
        "published at": row.published_at,
        "files": escape(row.layout),
    }
    for fact, words in facts.items():
        if words:
            console.print(f"{fact + ':':<14}{words}", soft_wrap=True)
