"""Natural mistakes end in one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.commands import clustering, deploying
from coterie.deploy.keys import GROUP
from coterie.errors import DataMissing, InvalidInput


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
