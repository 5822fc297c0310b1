"""Natural mistakes end in one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.commands import clustering, deploying
from coterie.deploy.keys import GROUP
from coterie.errors import InvalidInput


def test_a_key_for_a_group_needs_somebody_to_share_it(tmp_path: Path) -> None:
    deploying.client_keys(tmp_path / "keys", "alder")
    (tmp_path / "cards").mkdir()
    with pytest.raises(InvalidInput, match="holds no other client's card"):
        deploying.group_key(tmp_path / "keys", tmp_path / "cards", "key", tmp_path / "sealed")
    assert not (tmp_path / "keys" / GROUP).exists()


def test_a_table_in_another_encoding_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("name;place\nx;Köln\n".encode("cp1252"))
    with pytest.raises(InvalidInput, match="is not in UTF-8"):
        clustering._read(path)


@pytest.mark.parametrize("arguments", [["status"], ["demo"], ["client", "client.toml"]])
def test_deploying_without_flower_says_what_to_install(tmp_path: Path, arguments: list[str]) -> None:
    hidden = "import sys; sys.modules['flwr'] = None; from coterie.commands.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", hidden, "deploy", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Flower is not installed" in done.stderr
    assert "[deploy]" in done.stderr
