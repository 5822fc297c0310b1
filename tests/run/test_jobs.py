"""Jobs: kept results are not run again, and a failure loses nothing that was finished."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from coterie.errors import InvalidInput
from coterie.run import fingerprint
from coterie.run.jobs import Job, JobFailed, Kept, run_jobs, stored


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
    found = [stored(tmp_path / "kept", job) for job in jobs([5, -1], tmp_path / "trace")]
    assert found == [{"square": 25}, None]


def test_a_damaged_result_says_what_to_do(tmp_path: Path) -> None:
    made_by = json.dumps(asdict(Job("broken", square).fingerprint))
    for text in ("{", "[]", "{}", f'{{"made by": {made_by}}}', f'{{"made by": {made_by}, "result": 3}}', "\ud800"):
        (tmp_path / "broken.json").write_text(text, errors="surrogatepass")
        if text != "{}":  # which was made by other code
            with pytest.raises(InvalidInput, match=r"delete it to run that job again"):
                stored(tmp_path, Job("broken", square))


def test_progress_counts_what_was_kept(tmp_path: Path) -> None:
    run_jobs(jobs([1], tmp_path / "trace"), tmp_path / "kept")
    seen: list[tuple[int, int, str]] = []
    run_jobs(jobs([1, 2], tmp_path / "trace"), tmp_path / "kept", progress=lambda *row: seen.append(row))
    ahead = (1, 2, "1 job on 1 process; how long, the first of them will show")
    assert seen == [(1, 2, "1 result is from before"), ahead, (2, 2, "squares/2")]


def test_what_lies_ahead_is_said_by_what_it_took_before(tmp_path: Path) -> None:
    """Also under other settings, of which an audit has a folder each."""
    trace, told = tmp_path / "trace", list[str]()
    run_jobs(jobs([1, 2, 3], trace), tmp_path / "a")
    for path in (tmp_path / "a").rglob("*.json"):
        path.write_text(re.sub(r'"seconds": [\d.]+', '"seconds": 240.0', path.read_text()))
    run_jobs(jobs([1, 2, 3, 4], trace), tmp_path / "b", processes=2, progress=lambda *row: told.append(row[2]))
    assert told[1] == "4 jobs on 2 processes; about 8.0 minutes, by what 3 of them took before"


def test_two_jobs_cannot_share_a_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="same key"):
        run_jobs(jobs([1, 1], tmp_path / "trace"), tmp_path)


def test_a_key_is_a_path_that_stays_inside() -> None:
    for key in ("../out", "/absolute", "a//b", "with space", ""):
        with pytest.raises(InvalidInput, match="key="):
            Job(key, square)


def test_a_kept_result_is_the_one_that_was_handed_back(tmp_path: Path) -> None:
    job = Job("shapes", shapes)
    assert run_jobs([job], tmp_path)["shapes"] == stored(tmp_path, job) == {"pair": [1, 2], "by number": {"3": 4}}


def shapes() -> dict[str, object]:
    return {"pair": (1, 2), "by number": {3: 4}}


def test_other_arguments_and_other_data_make_another_result(tmp_path: Path) -> None:
    data, trace = tmp_path / "data.csv", str(tmp_path / "trace")
    data.write_text("1,2")
    told: list[str] = []

    def run(value: int) -> object:
        fingerprint.forget()
        job = Job("same", square, {"value": value, "trace": trace}, files=(str(data),))
        return run_jobs([job], tmp_path, progress=lambda done, total, words: told.append(words))["same"]["square"]

    assert [run(2), run(2), run(3)] == [4, 4, 9]
    assert told == [
        "",
        "1 job on 1 process; how long, the first of them will show",
        "same",
        "1 result is from before",
        "1 result is from before the settings changed, and made anew",
        "1 job on 1 process; about 1 s, by what 1 of them took before",
        "same",
    ]
    data.write_text("1,3")
    told.clear()
    assert run(3) == 9
    assert told[0] == "1 result is from before the data changed, and made anew"
    assert Path(trace).read_text().split() == ["2", "3", "3"]


def test_fresh_work_takes_nothing_from_before(tmp_path: Path) -> None:
    for fresh in (False, False, True):
        run_jobs(jobs([7], tmp_path / "trace"), tmp_path / "kept", fresh=fresh)
    assert (tmp_path / "trace").read_text().split() == ["7", "7"]


def test_a_result_that_does_not_say_what_made_it_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"square": 5}')
    job = Job("old", square, {"value": 3, "trace": str(tmp_path / "trace")})
    assert Kept.of([job], tmp_path) == Kept({}, {"old": "code"})
    assert run_jobs([job], tmp_path) == {"old": {"square": 9}}


def test_workers_die_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Killed outright, so that it cannot tell them."""
    (tmp_path / "program.py").write_text(
        "import os, pathlib, time\n"
        "def work(place):\n"
        "    pathlib.Path(place).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    code = (
        "import pathlib, program\n"
        "from coterie.run import jobs\n"
        "todo = [jobs.Job(name, program.work, {'place': name}) for name in 'ab']\n"
        "jobs.run_jobs(todo, pathlib.Path('out'), processes=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    places = [tmp_path / name for name in "ab"]
    while not all(place.exists() and place.read_text() for place in places):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    workers = [int(place.read_text()) for place in places]
    while any(psutil.pid_exists(worker) for worker in workers):  # the test's own time limit ends it otherwise
        time.sleep(0.01)
