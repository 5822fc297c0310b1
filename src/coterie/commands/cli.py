"""The command line. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

import shlex
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coterie import __version__
from coterie.commands.deploy_cli import app as deploy

app = typer.Typer(
    help="Train clustered federations, attack them, defend them, and measure what leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OWN, RUNNING, PAPERS = "From your data to a report", "Training", "Papers, data sets and speeds"  # as --help has them

app.add_typer(deploy, name="deploy", rich_help_panel=RUNNING)

Root = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]
RUNS = Path("runs")


Federation = Annotated[Path | None, typer.Argument(help="A TOML file; without one, embedded data are audited.")]
Audits = Annotated[Path, typer.Option("--folder", help="Where audits are kept; one that was stopped goes on.")]
AUDITS = RUNS / "audit"
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Junit = Annotated[Path | None, typer.Option(help="Write the gate's checks as JUnit XML.")]
Svg = Annotated[Path | None, typer.Option(help="Write what the terminal shows in the end as a picture.")]
Seeds = Annotated[
    int | None, typer.Option(help="How often all of it is repeated, 1 to 1000 times; replaces the file's.")
]
Families = Annotated[
    list[str] | None, typer.Option("--families", help="Only this kind of attack; may be repeated. Replaces the file's.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run all of it again, whatever results are kept.")]
Engine = Annotated[
    Literal["processes", "dask", "ray"], typer.Option(help="Where jobs run: on this machine, or on a cluster.")
]
Address = Annotated[str | None, typer.Option(help="The cluster's, as in tcp://HOST:8786.")]
Opened = Annotated[bool, typer.Option("--open", help="Open the report in a browser.")]


@app.command(rich_help_panel=OWN)
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("federation.toml"),
    data: Annotated[
        Path | None, typer.Option(help="Your own CSV, Parquet or .npz file, or folder of pictures.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of a table: the column to be learnt.")] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", "--site", help="Of a table: the column that says who holds a row.")
    ] = None,
    asked: Annotated[
        str | None, typer.Option("--property", help="What is sensitive: COLUMN=VALUE, or COLUMN>NUMBER.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Propose FedAvg under DP-SGD with so much noise that it proves this epsilon.")
    ] = None,
) -> None:
    """Write a commented configuration to audit: of your own data, or an example."""
    from coterie.audit.starter import Wishes
    from coterie.commands import auditing as session

    session.init(path, data, Wishes(label, clients, asked, epsilon))


@app.command(rich_help_panel=OWN)
def audit(
    federation: Federation = None,
    folder: Audits = AUDITS,
    recorded: Annotated[
        Path | None, typer.Option(help="Attack what a deployment wrote down in this folder; nothing is trained.")
    ] = None,
    as_json: AsJson = False,
    junit: Junit = None,
    svg: Svg = None,
    attacks: Annotated[
        list[str] | None, typer.Option(help="An attack of your own: my_attack.py or module:Family; may be repeated.")
    ] = None,
    seeds: Seeds = None,
    families: Families = None,
    fresh: Fresh = False,
    opened: Opened = False,
    engine: Engine = "processes",
    address: Address = None,
) -> None:
    """Train a federation, attack it, and say whether it is safe to launch; exit code 1 if a limit is broken."""
    from coterie.commands import auditing as session

    changes = session.Changes(seeds, tuple(families or ()), tuple(attacks or ()))
    wanted = session.Wanted(as_json, junit, fresh, opened, svg)
    with jobs_on(engine, address):
        code = session.run_audit(federation, folder, recorded=recorded, changes=changes, wanted=wanted)
    raise typer.Exit(code)


@app.command(rich_help_panel=OWN)
def frontier(
    federation: Federation = None,
    folder: Audits = AUDITS,
    as_json: AsJson = False,
    junit: Junit = None,
    seeds: Seeds = None,
    families: Families = None,
    fresh: Fresh = False,
    opened: Opened = False,
    engine: Engine = "processes",
    address: Address = None,
) -> None:
    """Audit, and sweep a defence's strength: leakage against utility against cost, and what to choose."""
    from coterie.commands import auditing as session

    changes, wanted = session.Changes(seeds, tuple(families or ())), session.Wanted(as_json, junit, fresh, opened)
    with jobs_on(engine, address):
        code = session.run_audit(federation, folder, with_frontier=True, changes=changes, wanted=wanted)
    raise typer.Exit(code)


@app.command(rich_help_panel=RUNNING)
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file; without one, the trainers are compared on embedded digits.")
    ] = None,
    runs: Root = RUNS,
    seed: Annotated[int | None, typer.Option(help="Replaces the file's seed.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write down every message, for `coterie audit --recorded`.")
    ] = None,
    said: Annotated[
        list[str] | None,
        typer.Option("--set", help="Replaces a setting, as in defence.kind=mingling; may be repeated."),
    ] = None,
) -> None:
    """Train one federation, or several that differ in their trainer."""
    from coterie.commands import training as session

    session.train(config, runs, seed, record, said or ())


TrustCode = Annotated[bool, typer.Option("--trust-code", help="Import the model of your own that the folder names.")]


@app.command(rich_help_panel=RUNNING)
def resume(folder: Annotated[Path, typer.Argument(help="A run's folder.")], trust_code: TrustCode = False) -> None:
    """Go on with a run that was stopped."""
    from coterie.commands import training as session

    session.resume(folder, trust_code)


@app.command("runs", rich_help_panel=RUNNING)
def list_runs(
    runs: Root = RUNS,
    plot: Annotated[Path | None, typer.Option(help="Write what they measured, round by round, as a page.")] = None,
) -> None:
    """List runs with their state and newest measurement."""
    from coterie.commands import training as session

    session.list_runs(runs, plot)


@app.command(rich_help_panel=PAPERS)
def data(
    name: Annotated[str | None, typer.Argument(help="One of them: where it is published, and its files.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where data sets lie; else the environment's COTERIE_DATA.")
    ] = None,
) -> None:
    """List data sets: which are ready and which are missing; of one, where it is published."""
    from coterie.commands import training as session

    if name is None:
        session.list_data(folder)
    else:
        session.describe_data(name, folder)


@app.command(rich_help_panel=RUNNING)
def cluster(
    files: Annotated[list[Path], typer.Argument(help="One CSV a party: different columns of the same records.")],
    clusters: Annotated[int, typer.Option(help="How many.")] = 8,
    ids: Annotated[str | None, typer.Option("--id", help="The column that names records; without, by place.")] = None,
    private_ids: Annotated[
        bool, typer.Option("--private-ids", help="Join by a private set intersection: 0.1 ms an id and party, squared.")
    ] = False,
    defence: Annotated[
        Literal["none", "secure_sums", "blinded_sums", "perturb_once", "randomised_response"],
        typer.Option(help="What stands between the parties and the server."),
    ] = "none",
    epsilon: Annotated[float | None, typer.Option(help="A value's, for the last two.")] = None,
    low: Annotated[float | None, typer.Option(help="Public: no value is less (perturb_once).")] = None,
    high: Annotated[float | None, typer.Option(help="Public: no value is more (perturb_once).")] = None,
    bound: Annotated[float | None, typer.Option(help="Public: no distance is more (randomised_response).")] = None,
    out: Annotated[Path, typer.Option(help="Where labels are written.")] = Path("labels.csv"),
    seed: Annotated[int | None, typer.Option(help="For a run that can be repeated; its noise hides nothing.")] = None,
) -> None:
    """Cluster records whose columns several parties hold (vertical k-means)."""
    from coterie.commands import clustering

    given = {"epsilon": epsilon, "low": low, "high": high, "bound": bound}
    options = {name: value for name, value in given.items() if value is not None}
    clustering.cluster(files, clusters, ids, defence, options, out, seed, private_ids)


@app.command(rich_help_panel=PAPERS)
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="A paper's name; without one, all tables are listed.")] = None,
    table: Annotated[str | None, typer.Option(help="One table or figure; else all of the paper.")] = None,
    scale: Annotated[Literal["quick", "paper"], typer.Option(help="Or the paper's own settings.")] = "quick",
    seeds: Annotated[
        str | None, typer.Option(help="How many (3), or which (5-9 or 2,4); else as many as each table needs.")
    ] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only rows with this word; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder with data sets.")] = None,
    folder: Annotated[Path, typer.Option(help="Where results are kept.")] = RUNS / "reproduce",
    html: Annotated[
        Path | None, typer.Option(help="Write the same as a page; without a paper, of all tables that have been run.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all of it again, whatever results are kept.")] = False,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Also where we differ on purpose (property-inference, mingledpie).")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="End long runs after so many rounds (property-inference, mingledpie).")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Only list the paper's tables and figures.")] = False,
    engine: Engine = "processes",
    address: Address = None,
) -> None:
    """Run tables and figures of the papers: ours beside the published values."""
    from coterie.commands import reproduction
    from coterie.recipes.settings import Scale, Settings, parse_seeds

    given = seeds is not None
    chosen = parse_seeds(seeds or "3")
    settings = Settings(Scale(scale), chosen, tuple(rows or ()), data, as_published, rounds, seeds_are_given=given)
    if paper is None:
        reproduction.show_list(settings, folder, html, command_line())
    elif show_list:
        reproduction.show_paper(paper, settings, folder)
    else:
        with jobs_on(engine, address):
            reproduction.reproduce(paper, table, settings, folder, html, command_line(), fresh)


@app.command(rich_help_panel=PAPERS)
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which benchmarks; without a name, all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every ratio as JSON.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Only list the benchmarks.")] = False,
    repeats: Annotated[int, typer.Option(help="How often each side is timed; the best counts.")] = 5,
    flower_python: Annotated[
        Path | None, typer.Option(help="A Python with flwr and its simulation extra, for peers.")
    ] = None,
    pfl_python: Annotated[Path | None, typer.Option(help="A Python with pfl, for peers and kmeans.")] = None,
    feddp_kmeans: Annotated[Path | None, typer.Option(help="Public code of FedDP-KMeans, for kmeans.")] = None,
    location30: Annotated[Path | None, typer.Option(help="A folder with Location-30, for members.")] = None,
    lira: Annotated[Path | None, typer.Option(help="A folder with LiRA's plot.py, for members.")] = None,
    privacy_meter: Annotated[Path | None, typer.Option(help="A folder with its attacks.py, for members.")] = None,
    science_python: Annotated[
        Path | None, typer.Option(help="A Python with matplotlib, for members; with xxhash, for vertical_peers.")
    ] = None,
    spu_python: Annotated[Path | None, typer.Option(help="A Python with spu, for vertical_peers.")] = None,
    vertcohirf: Annotated[Path | None, typer.Option(help="VertCoHiRF's public code, for vertical_peers.")] = None,
) -> None:
    """Measure speeds, each as a ratio to a baseline measured beside it."""
    from coterie.bench.registry import Options
    from coterie.commands import benchmarking

    if show_list:
        benchmarking.show_list()
    else:
        options = Options(
            repeats=repeats,
            flower_python=flower_python,
            pfl_python=pfl_python,
            feddp_kmeans=feddp_kmeans,
            location30=location30,
            lira=lira,
            privacy_meter=privacy_meter,
            science_python=science_python,
            spu_python=spu_python,
            vertcohirf=vertcohirf,
        )
        benchmarking.bench(names or [], as_json, options)


def jobs_on(engine: Literal["processes", "dask", "ray"], address: str | None) -> AbstractContextManager[None]:
    from coterie.run import engines

    return engines.engine(engine, address)


def command_line() -> str:
    """As it was typed, for reports to repeat."""
    return shlex.join(["coterie", *sys.argv[1:]])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    sys.path.append(str(Path.cwd()))  # so that a model of one's own, ``module:Class``, is found where one stands


def main(arguments: list[str] | None = None) -> Any:
    """Errors that we raise on purpose are messages, not tracebacks."""
    from coterie.errors import CoterieError

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            return app(arguments)
    except CoterieError as error:
        print(f"coterie: {_printable(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, an unreadable file
        told = f"{error.filename}: {error.strerror}; name another, or make room" if error.filename else error
        print(f"coterie: {_printable(told)}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        print(f"coterie: there is not memory enough ({_printable(error)}); take smaller numbers", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == STOPPED:
            print(f"coterie: stopped; {how_to_go_on(arguments or sys.argv[1:])}", file=sys.stderr)
        raise


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """As errors are told: nobody needs our line of code."""
    print(f"coterie: {_printable(message)}", file=sys.stderr)


def _printable(error: BaseException | str) -> str:
    """Names of files and columns are other people's: what would command a terminal is shown in its place."""
    text = str(error) or type(error).__name__
    if len(text) > LONGEST:  # a value may be as long as its file; what is to be done stands at the end
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


LONGEST = 1000  # letters of an error
STOPPED = 130  # what typer makes of Ctrl-C


def how_to_go_on(arguments: list[str]) -> str:
    command = arguments[0] if arguments else ""
    if command in ("train", "resume"):
        return "what was finished is kept, `coterie runs` names it and `coterie resume FOLDER` goes on"
    if command in ("audit", "frontier", "reproduce"):
        again = [word for word in arguments if word != "--fresh"]  # which would begin anew
        same = "the same command" if again == arguments else "this command"
        return f"what was finished is kept, and {same} goes on: {shlex.join(['coterie', *again])}"
    return "nothing was changed"


if __name__ == "__main__":
    main()
