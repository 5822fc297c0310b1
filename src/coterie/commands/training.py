"""What the command line's training commands do, and what they show while they do it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.config.schema import Choice, Config, parse, read
from coterie.errors import require
from coterie.run.folder import Measured, Record, RunFolder, free_folder
from coterie.run.folder import list_runs as find_runs

if TYPE_CHECKING:
    from coterie.data.federation import Federation
    from coterie.learn.models.model import Model

console = Console()


@dataclass(frozen=True)
class Line:
    """One row of the table that ends a session."""

    trainer: str
    accuracy: float
    sizes: list[int]
    seconds: float
    folder: Path


def train(path: Path | None, root: Path, seed: int | None, record: Path | None = None) -> None:
    config = read(path) if path else example()
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    for choice in config.trainers:
        config.fitting_defence(choice)  # before anything long begins
    lines = []
    with prepared(config) as (federation, model):
        for choice in config.trainers:
            one = config.model_copy(update={"trainer": choice})
            settings: Record = {"config": one.model_dump(mode="json")}
            if record is not None:
                settings["recording"] = str(free_recording(record, choice.kind, len(config.trainers)))
            folder = RunFolder.create(free_folder(root, f"{config.name}-{choice.kind}"), settings)
            lines.append(_run(one, choice, federation, model, folder))
    _show(lines)


def free_recording(record: Path, trainer: str, trainers: int) -> Path:
    """Where messages go: the folder itself, or one in it for each of several trainers. It must be empty."""
    place = (record / trainer if trainers > 1 else record).absolute()
    require(not place.exists() or not any(place.iterdir()), "record", str(place), "is not empty; name another folder")
    return place


def resume(path: Path) -> None:
    folder = RunFolder(path)
    config = parse(folder.record["config"], str(path))
    if folder.finished:
        console.print(f"{path} is finished; nothing to do")
        return
    with prepared(config) as (federation, model):
        line = _run(config, config.trainers[0], federation, model, folder)
    _show([line])


def example() -> Config:
    """The comparison of all trainers on embedded digits."""
    import tomllib

    text = resources.files("coterie.recipes").joinpath("compare_trainers.toml").read_text()
    return parse(tomllib.loads(text), "compare_trainers.toml")


@contextmanager
def prepared(config: Config) -> Iterator[tuple[Federation, Model]]:
    """Data and model, with a word on what they are."""
    from coterie.learn.params import Layout

    federation = config.federation()
    model = config.built_model(federation.examples)
    console.print(f"[bold]{federation.describe()}[/bold]")
    console.print(f"model {config.model.kind}: {Layout.of(model.init(0)).length:,} parameters; seed {config.seed}")
    yield federation, model


def _run(config: Config, choice: Choice, federation: Federation, model: Model, folder: RunFolder) -> Line:
    from coterie.audit.recorded import RECORDER, describe
    from coterie.audit.reference import promised, spent
    from coterie.measure.witness import Witness
    from coterie.report.values import ledger
    from coterie.run.training import train as run
    from coterie.wire.tape import Tape

    protocol, guard, witness = config.protocol(choice), config.fitting_defence(choice), Witness()
    recording = folder.record.get("recording")
    started = time.monotonic()
    columns = (
        TextColumn("{task.description:14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[newest]}"),
    )
    with Progress(*columns, console=console) as bar:
        rounds = getattr(protocol, "rounds", None)
        task = bar.add_task(choice.kind, total=rounds, speed="", newest="")
        first: list[tuple[int, float]] = []

        def tell(done: int, newest: Measured | None) -> None:
            first.append((done, time.monotonic()))
            passed = first[-1][1] - first[0][1]
            speed = f"{(done - first[0][0]) / passed:.1f} rounds/s" if passed > 0 else ""
            word = f"accuracy {newest['accuracy']:.4f}" if newest else ""
            bar.update(task, completed=done, speed=speed, newest=word)

        outcome = run(
            protocol,
            federation,
            model,
            seed=config.seed,
            defence=guard,
            evaluate_every=config.evaluate_every,
            folder=folder,
            tape=Tape([RECORDER], Path(recording)) if recording else None,
            witness=witness,
            progress=tell,
        )
    if promise := promised(protocol, guard, federation):
        used = spent(outcome, promise)
        console.print(f"privacy: {promise.claim}" + (f"; {ledger(used)}" if used is not None else ""), soft_wrap=True)
    if recording:
        describe(Path(recording), config.model_dump(mode="json"), federation, outcome.scores.choices.argmax(1), witness)
        console.print(f"messages: {recording}; `coterie audit --recorded {recording}` attacks them", soft_wrap=True)
    return Line(choice.kind, outcome.accuracy, outcome.cluster_sizes, time.monotonic() - started, folder.path)


def _show(lines: list[Line]) -> None:
    table = Table(title="Mean test accuracy over clients, each on its own data")
    table.add_column("trainer")
    table.add_column("accuracy", justify="right")
    table.add_column("clients a model")
    table.add_column("time", justify="right")
    table.add_column("run", no_wrap=True)
    for line in sorted(lines, key=lambda line: -line.accuracy):
        sizes = ", ".join(map(str, line.sizes))
        table.add_row(line.trainer, f"{line.accuracy:.4f}", sizes, f"{line.seconds:.1f} s", line.folder.name)
    console.print(table)
    console.print(f"Models, metrics and settings of each run are in {lines[0].folder.parent}/", soft_wrap=True)


def list_runs(root: Path) -> None:
    found = find_runs(root)
    if not found:
        console.print(f"no runs in {root}; `coterie train` makes some")
        return
    table = Table(title=f"Runs in {root}")
    for heading in ("run", "state", "trainer", "data", "round", "accuracy", "created"):
        table.add_column(heading)
    for run in found:
        record, history = run.record, run.history
        config = record["config"]
        newest = history[-1] if history else {}
        accuracy = f"{newest['accuracy']:.4f}" if newest else ""
        rounds = str(newest.get("round", ""))
        name = str(run.path.relative_to(root))
        table.add_row(
            name, run.state, config["trainer"]["kind"], config["data"]["kind"], rounds, accuracy, record["created"]
        )
    console.print(table)


def list_data(folder: Path | None) -> None:
    from coterie.data.catalogue import rows

    table = Table(title="Data sets")
    for heading in ("name", "state", "what it is, or where to get it"):
        table.add_column(heading, overflow="fold")
    colours = {"ready": "green", "missing": "yellow", "damaged": "red"}
    for row in rows(folder):
        state = row.state.readiness.value
        words = row.state.reason if state != "missing" else f"{row.published_at}; expected: {row.layout}"
        table.add_row(row.name, f"[{colours[state]}]{state}[/]", words)
    console.print(table)
