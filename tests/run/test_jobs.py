"""Jobs: kept results are not run again, and a failure loses nothing that was finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.errors import InvalidInput
from coterie.run.jobs import Job, JobFailed, run_jobs, stored


def square(value: int, trace: str) -> dict[str, int]:
    with Path(trace).open("a") as file:
        file.write(f"{value}\n")
    if value < 0:
        raise ValueError(f"value={value} is negative")
    return {"square": value * value}


def jobs(values: list[int], trace: Path) -> list[Job]:
    return [Job(f"squares/{value}", square, {"value": value, "trace": str(trace)}) for value in values]


def test_results_come_by_key_and_are_kept(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    first = run_jobs(jobs([1, 2, 3], trace), tmp_path / "kept")
    assert first == {"squares/1": {"square": 1}, "squares/2": {"square": 4}, "squares/3": {"square": 9}}
    again = run_jobs(jobs([1, 2, 3, 4], trace), tmp_path / "kept")
    assert again["squares/4"] == {"square": 16}
    assert sorted(map(int, trace.read_text().split())) == [1, 2, 3, 4]


def test_a_failure_names_the_job_and_keeps_the_others(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"job squares/-1 failed: ValueError: value=-1 is negative"):
        run_jobs(jobs([5, -1], tmp_path / "trace"), tmp_path / "kept", processes=1)
    assert stored(tmp_path / "kept", "squares/5") == {"square": 25}
    assert stored(tmp_path / "kept", "squares/-1") is None


def test_a_damaged_result_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"delete it to run that job again"):
        stored(tmp_path, "broken")


def test_progress_counts_what_was_kept(tmp_path: Path) -> None:
    run_jobs(jobs([1], tmp_path / "trace"), tmp_path / "kept")
    seen: list[tuple[int, int, str]] = []
    run_jobs(jobs([1, 2], tmp_path / "trace"), tmp_path / "kept", progress=lambda *row: seen.append(row))
    assert seen == [(1, 2, ""), (2, 2, "squares/2")]


def test_two_jobs_cannot_share_a_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="same key"):
        run_jobs(jobs([1, 1], tmp_path / "trace"), tmp_path)


def test_a_key_is_a_path_that_stays_inside() -> None:
    for key in ("../out", "/absolute", "a//b", "with space", ""):
        with pytest.raises(InvalidInput, match="key="):
            Job(key, square)
