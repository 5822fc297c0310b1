"""Natural mistakes end in one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.audit.starter import Wishes
from coterie.commands import auditing, clustering, deploying, training
from coterie.commands.cli import how_to_go_on
from coterie.deploy.keys import GROUP
from coterie.errors import CannotWrite, DataMissing, InvalidInput


def test_a_key_for_a_group_needs_somebody_to_share_it(tmp_path: Path) -> None:
    deploying.client_keys(tmp_path / "keys", "alder")
    (tmp_path / "cards").mkdir()
    with pytest.raises(InvalidInput, match="holds no other client's card"):
        deploying.group_key(tmp_path / "keys", tmp_path / "cards", "key", tmp_path / "sealed")
    assert not (tmp_path / "keys" / GROUP).exists()


def test_a_table_of_another_country_is_read(tmp_path: Path) -> None:
    """As `coterie init` reads it: separator, encoding and decimal commas are seen."""
    path = tmp_path / "table.csv"
    path.write_bytes("Größe;Ort\n1,5;Köln\n2,5;Bonn\n".encode("cp1252"))
    assert clustering._read(path)["Größe"].tolist() == [1.5, 2.5]
    with pytest.raises(DataMissing, match=r"nobody\.csv does not exist"):
        clustering._read(tmp_path / "nobody.csv")


def test_columns_to_be_clustered_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("size,place,sex\n1.5,x,m\n2.5,y,f\n")
    with pytest.raises(InvalidInput, match=r"no numbers=\['place', 'sex'\] must be encoded first"):
        clustering.cluster([path], 2, None, "none", {}, tmp_path / "out.csv", None)
    with pytest.raises(InvalidInput, match=r"epsilon=1.0 is a defence's; name one by --defence"):
        clustering.cluster([path], 2, None, "none", {"epsilon": 1.0}, tmp_path / "out.csv", None)


@pytest.mark.parametrize("arguments", [["status"], ["demo"], ["client", "client.toml"]])
def test_deploying_without_flower_says_what_to_install(tmp_path: Path, arguments: list[str]) -> None:
    hidden = "import sys; sys.modules['flwr'] = None; from coterie.commands.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", hidden, "deploy", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Flower is not installed" in done.stderr
    assert "[deploy]" in done.stderr


def test_who_stops_what_begins_anew_is_told_what_goes_on() -> None:
    """With --fresh the same command would throw away what was finished."""
    told = how_to_go_on(["audit", "my file.toml", "--fresh"])
    assert told == "what was finished is kept, and this command goes on: coterie audit 'my file.toml'"
    assert "and the same command goes on: coterie audit f.toml" in how_to_go_on(["audit", "f.toml"])


def test_a_folder_that_nothing_can_be_written_in_is_named_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"cannot write in .*file/.*; name another folder with --folder"):
        auditing.run_audit(None, tmp_path / "file")


def test_a_folder_of_data_sets_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataMissing, match=r"--folder=.*dta is no folder; did you mean '.*data'\? name the one"):
        training.list_data(tmp_path / "dta")


@pytest.mark.parametrize("module", ["coterie", "coterie.commands.cli"])
def test_python_runs_it_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_an_epsilon_without_data_of_ones_own_is_asked_what_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--epsilon is for data of yours. Name them: coterie init --data FILE"):
        auditing.init(tmp_path / "f.toml", None, Wishes(epsilon=3.0))
