"""The folder of a run: numbered, held by one process, never overwritten, and no stumbling block if it is damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coterie.commands.cli import app as main
from coterie.errors import InvalidInput, RunDamaged
from coterie.files import write_atomically
from coterie.run.folder import CHECKPOINT, RunFolder, free_folder, list_runs


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", {"config": {}})
    write_atomically(run.path / CHECKPOINT, b"COTERIE1 and then nothing sensible")
    with pytest.raises(RunDamaged, match=r"checkpoint\.bin is damaged"):
        run.load()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {"config": {}})
    with pytest.raises(InvalidInput, match="already holds a run"):
        RunFolder.create(tmp_path / "r", {"config": {}})


@pytest.mark.parametrize("text", ["[1]", "{}", "", "nonsense", '{"config": 3}', '{"config": {}, "created": 7}', "\xff"])
def test_a_damaged_record_stops_nobody_else(tmp_path: Path, text: str) -> None:
    whole = RunFolder.create(tmp_path / "whole", {"config": {}})
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_bytes(text.encode("latin-1"))
    found = list_runs(tmp_path)
    assert {run.path.name for run in found} == {"odd", "whole"}
    assert whole.state == "stopped"
    assert RunFolder(tmp_path / "odd").state in ("damaged", "stopped")
    main(["runs", "--runs", str(tmp_path)], standalone_mode=False)


def test_two_processes_that_want_one_folder_do_not_share_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: free_folder(tmp_path, "x"), range(8)))
    assert len(set(paths)) == 8

    def create(number: int) -> bool:
        try:
            RunFolder.create(tmp_path / "one", {"config": {"number": number}})
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.json"]


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", {"config": {}})
    with run.held():
        assert run.state == "running"
        with pytest.raises(InvalidInput, match="another process"), run.held():
            pass
    assert run.state == "stopped"


def test_folders_are_numbered_and_listed(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder.create(free_folder(tmp_path, "x"), {"config": {}})
    assert [run.path.name for run in list_runs(tmp_path)] == ["x-001", "x-002"]
