"""The words of `coterie deploy`. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="The same federation on real machines.", no_args_is_help=True)
keys = typer.Typer(help="Make keys: each party its own.", no_args_is_help=True)
app.add_typer(keys, name="keys")

Home = Annotated[Path, typer.Option("--home", help="The server's folder of keys and cards.")]
HOME = Path("server")
Folder = Annotated[Path, typer.Option("--keys", help="The client's own folder of keys.")]
KEYS = Path("keys")
Cards = Annotated[Path, typer.Option("--cards", help="The folder with the other clients' cards.")]
CARDS = Path("cards")


@keys.command("server")
def keys_server(
    address: Annotated[str, typer.Argument(help="HOST:PORT, as clients reach it.")],
    home: Home = HOME,
    local_port: Annotated[int, typer.Option(help="On loopback: for runs on this machine.")] = 9093,
) -> None:
    """The server's keys and certificate, once."""
    from coterie.commands import deploying

    deploying.server_keys(home, address, local_port)


@keys.command("client")
def keys_client(
    name: Annotated[str, typer.Argument(help="By which the federation knows this client: a plain word.")],
    folder: Folder = KEYS,
) -> None:
    """A client's own keys, once, on its own machine."""
    from coterie.commands import deploying

    deploying.client_keys(folder, name)


@keys.command("group")
def keys_group(
    kind: Annotated[Literal["secure_sums", "ckks"], typer.Argument(help="The cipher of `mingling`.")] = "secure_sums",
    folder: Folder = KEYS,
    cards: Cards = CARDS,
    out: Annotated[Path, typer.Option(help="Where it is put, sealed for each of the others.")] = Path("sealed"),
) -> None:
    """What all clients share and the server lacks: one client makes it."""
    from coterie.commands import deploying

    deploying.group_key(folder, cards, kind, out)


@keys.command("take")
def keys_take(
    letter: Annotated[Path, typer.Argument(help="The sealed key that another client made for this one.")],
    folder: Folder = KEYS,
    cards: Cards = CARDS,
) -> None:
    """Open a shared key that was sealed for this client."""
    from coterie.commands import deploying

    deploying.take_group_key(folder, cards, letter)


@app.command()
def server(
    home: Home = HOME, host: Annotated[str, typer.Option(help="Where clients may come in from.")] = "0.0.0.0"
) -> None:
    """Run the link that clients connect to, until it is stopped."""
    from coterie.commands import deploying

    deploying.server(home, host)


@app.command()
def client(
    files: Annotated[
        list[Path], typer.Argument(help="The client's own file: data, keys and the owner's policy. Several: to try it.")
    ],
    log: Annotated[Path | None, typer.Option(help="Also write events to this file.")] = None,
) -> None:
    """Take part with this machine's data, as its owner allows, until it is stopped."""
    from coterie.commands import deploying

    deploying.client(files, log)


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="The run's file.")] = None,
    home: Home = HOME,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs are kept.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write down every message, for `coterie audit --recorded`.")
    ] = None,
) -> None:
    """Run a federation on the clients that are connected; on the server's machine."""
    from coterie.commands import deploying

    deploying.run(home, file, runs, resume, record)


@app.command("app")
def stock_app(
    file: Annotated[Path, typer.Argument(help="The run's file.")],
    home: Home = HOME,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs are kept.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="The folder of the app.")] = Path("app"),
) -> None:
    """Write an app for `flwr run`: the second way, over Flower's own SuperLink and SuperNodes, which promises less."""
    from coterie.commands import deploying

    deploying.app(file, home, runs, out)


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Option(help="Keep everything here; else it is thrown away.")] = None,
) -> None:
    """Four clients and a server on this machine: MingledPie under CKKS, and FedDP-KMeans with shared noise."""
    from coterie.commands import deploying

    deploying.demo(folder)


@app.command()
def scale(
    enrolled: Annotated[int, typer.Option(help="Clients.")] = 1_000_000,
    cohort: Annotated[int, typer.Option(help="Of them, asked in a round.")] = 1_000,
    drop: Annotated[float, typer.Option(help="The share of those asked who do not answer.")] = 0.1,
    every: Annotated[float, typer.Option(help="Seconds between two looks for messages of a client in no run.")] = 600.0,
) -> None:
    """What a large federation would need, computed from parts that are measured here."""
    from coterie.commands import deploying

    deploying.scale(enrolled, cohort, drop, every)


@app.command()
def status(
    home: Home = HOME, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Say which clients are connected."""
    from coterie.commands import deploying

    deploying.status(home, as_json)
