"""The comparison says what differs and whether that is real, and refuses what is not one measure."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import PROMPTS, make, sweep

from rookexp import compare
from rookexp.comparison import measures, page, points, wording
from rookexp.errors import ConfigError, DataError
from rookexp.statistics import Difference
from rookexp.sweep import summary


def words(*folders: Path, baseline: str | None = None) -> str:
    return " ".join(wording.said(points.compare(folders, baseline=baseline)))


def test_runs_that_differ_in_the_seed_are_one_point(tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        make(tmp_path / f"run{seed}", gain=0.5 + seed / 10, seed=seed)
    (point,) = points.compare([tmp_path]).points
    assert point.by_seed("gain") == pytest.approx({0: 0.5, 1: 0.6, 2: 0.7})
    assert "differ in the seed only" in words(tmp_path)


@pytest.mark.parametrize("fixed", [{}, {"task.seed": 0}])
def test_a_model_that_is_drawn_by_the_seed_makes_no_points(fixed: dict[str, int], tmp_path: Path) -> None:
    for seed in range(3):
        make(tmp_path / str(seed), **{"seed": seed, "model.seed": seed}, **fixed)
    assert words(tmp_path).startswith("All 3 runs have the same settings and differ in the seed only.")


def test_points_that_are_the_same_have_no_highest(tmp_path: Path) -> None:
    for lr in (1e-5, 1e-4, 1e-3):
        for seed in range(2):
            make(tmp_path / f"{lr}-{seed}", gain=0.1 * seed, **{"seed": seed, "optim.lr": lr})
    assert "in all 3 points, seed by seed: nothing separates them." in (said := words(tmp_path))
    assert "Highest" not in said


def test_trials_of_a_sweep_are_points_beside_the_first(tmp_path: Path) -> None:
    found = points.compare([sweep(tmp_path / "s", points=3, seeds=3)])
    assert [point.name for point in found.points] == ["#0", "#1", "#2"]
    assert found.points[2].settings == {"optim.lr": pytest.approx(3e-5)}
    assert found.baseline.name == "#0"
    gain = found.beside["#2"]["gain"]
    assert isinstance(gain, Difference)
    assert (gain.n, gain.said) == (3, "higher")
    assert gain.interval.value == pytest.approx(0.4, abs=0.03)
    asked = points.compare([tmp_path / "s"], baseline="2")
    assert asked.baseline.name == "#2"
    with pytest.raises(ConfigError, match="--baseline 9: no such point; allowed: #0, #1, #2"):
        points.compare([tmp_path / "s"], baseline="9")


def aims(folder: Path, name: str, direction: str) -> None:
    (folder / "sweep.json").write_text(json.dumps({"objectives": [{"name": name, "direction": direction}]}))


def test_a_sweep_is_judged_by_what_it_aims_at(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "s", points=3, seeds=3)
    aims(folder, "gain", "minimize")
    assert "Lowest mean gain: #0 (" in words(folder)
    found = points.compare([folder], baseline="1")
    assert [point.name for point in found.ranked] == ["#1", "#0", "#2"]
    html = page.html(found)
    assert '<span class="badge bad">higher</span>' in html
    assert '<span class="badge good">lower</span>' in html
    assert "gain ↓" in html
    aims(folder, "reward", "maximize")
    assert points.compare([folder]).main == "reward"
    assert "Highest mean reward: #2 (" in words(folder)
    assert points.compare([folder, folder / "0"]).main == "gain", "several folders have no objective in common"
    aims(folder, "eval/legal", "maximize")
    found = points.compare([folder])
    assert found.main == "gain"
    assert "judged by gain here; the sweep's objective is eval/legal" in found.notes[0]


def test_two_runs_are_told_what_differs_and_that_one_seed_shows_nothing(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b", gain=0.7, **{"optim.lr": 2e-4})
    text = words(a, b)
    assert "b differs from a in optim.lr 0.0001 → 0.0002." in text
    assert "under the one seed in common b has +0.200. Whether that is more than noise cannot be told" in text
    assert "on the 2 prompts that both were asked, b is better on 2" in text
    assert "mean difference +0.200, the same for each prompt, sign-flip p 0.5. Another seed" in text


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((0.7, 0.72, 0.68), "higher, and more than noise. 3 seeds show that only if differences are about normal"),
        ((0.9, 0.5, 0.2), "within noise. That is not equality; a difference of"),
        ((0.5, 0.5, 0.5), ": identical. The setting does not change this figure here"),
        ((0.7,) * 3, "+0.200, the same for each seed, sign-flip p 0.25. Equal differences have no spread to judge by."),
        ((0.7, 0.6), "sign-flip p 0.5. Two seeds are too few to tell; run 3 or more."),
    ],
)
def test_two_points_are_judged_over_seeds(tmp_path: Path, gains: tuple[float, ...], expected: str) -> None:
    for seed, gain in enumerate(gains):
        make(tmp_path / f"a{seed}", seed=seed)
        make(tmp_path / f"b{seed}", seed=seed, gain=gain, **{"optim.lr": 2e-4})
    assert expected in words(tmp_path)


def test_other_prompts_and_other_rewards_are_not_compared(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", gain=0.9, prompts=(PROMPTS[0], PROMPTS[0].replace("2 8", "2 9")), **{"optim.lr": 2e-4})
    make(tmp_path / "c", gain=0.9, **{"reward.best": 0.9})
    make(tmp_path / "d", **{"grpo.temperature": 0.7})
    found = points.compare([tmp_path])
    assert found.beside["b"]["gain"] == "the evaluation asks other prompts"
    assert found.beside["c"]["gain"] == "not the same measure: reward.best differs"
    assert isinstance(found.beside["b"]["entropy"], Difference)
    assert found.beside["d"]["kl"] == "not the same measure: grpo.temperature differs"
    assert isinstance(found.beside["d"]["gain"], Difference)
    assert any("not on one scale" in note for note in found.notes)
    assert "comparable with the baseline: a (" in words(tmp_path)  # what is on another scale is no candidate


def test_rewards_that_other_engines_judged_are_not_compared(tmp_path: Path) -> None:
    """As after an upgrade of Stockfish, also where a run was resumed after it; its entropy has no judge."""
    starts = {"a": ["16"], "b": ["16"], "c": ["17"], "d": ["17", "16"], "e": []}
    for i, (name, engines) in enumerate(starts.items()):
        make(tmp_path / name, **{"optim.lr": 1 + i, "reward.engine": {"path": f"/bin/{name}", "processes": i}})
        earlier, now = engines[:-1], engines[-1:]
        note = {"engines": now, "earlier_starts": [{"engines": [each]} for each in earlier]}
        if name != "e":  # it has no run.json
            (tmp_path / name / "run.json").write_text(json.dumps(note), encoding="utf-8")
    found = points.compare([tmp_path])
    said = {name: isinstance(beside["gain"], str) and beside["gain"] for name, beside in found.beside.items()}
    assert said == {"b": False, "c": measures.OTHER_ENGINES, "d": measures.OTHER_ENGINES, "e": False}
    assert isinstance(found.beside["c"]["entropy"], Difference)
    note = "not all runs are judged by the same engines; rewards are compared only where they are"
    assert note in found.notes
    assert points.compare([tmp_path / name for name in "abe"]).notes == (), "their place and number score nothing"


def test_runs_that_did_not_finish_are_counted_and_not_averaged(tmp_path: Path) -> None:
    for seed in range(3):
        make(tmp_path / f"a{seed}", seed=seed)
    make(tmp_path / "b0", seed=0, gain=0.6, kl={"coef": 0.0})
    make(tmp_path / "b1", seed=1, gain=9.0, status="diverged", reason="step 3: loss", kl={"coef": 0.0})
    found = points.compare([tmp_path])
    assert found.points[1].by_seed("gain") == pytest.approx({0: 0.6})
    assert "1 of 5 runs did not finish (1 diverged)." in words(tmp_path)
    assert any("flatters" in note for note in found.notes)


def test_a_point_given_up_after_some_seeds_is_not_the_best(tmp_path: Path) -> None:
    """As a pruner or a kill between two seeds leaves it: what there is has finished, under an easier seed."""
    for trial, gains in enumerate(((0.9, 0.4, 0.5), (0.8,), (0.85, 0.3, 0.4))):
        for seed, gain in enumerate(gains):
            folder = make(tmp_path / f"{3 * trial + seed}", gain=gain, seed=seed, **{"optim.lr": 1e-4 * (trial + 1)})
            (folder / "trial.json").write_text(json.dumps({"trial": trial, "seeds": 3}), encoding="utf-8")
    found = points.compare([tmp_path])
    assert "Highest mean gain of points whose runs all finished: #0 (optim.lr=0.0001), 0.600" in words(tmp_path)
    assert found.notes[0].startswith("#1: some runs did not finish, or are not here")
    shown = io.StringIO()
    compare.show(found, shown)
    assert "1 of 3" in shown.getvalue()
    assert "1 of 3" in page.html(found)


def test_a_run_done_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path / "a", gain=0.5)
    make(tmp_path / "b", gain=0.6, status="interrupted")
    found = points.compare([tmp_path])
    assert [run.folder.name for run in found.points[0].runs] == ["a"]
    assert found.notes[0] == "b is left out: a has the same settings and seed"


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run in it"):
        points.compare([tmp_path])


def test_every_named_folder_must_be_there(tmp_path: Path) -> None:
    run, empty, table = make(tmp_path / "run"), tmp_path / "empty", tmp_path / "trials.csv"
    empty.mkdir()
    table.touch()
    found = points.compare([run, empty, table])  # as a shell writes `sweep/*`
    assert [len(point.runs) for point in found.points] == [1]
    assert found.notes == (f"{empty}: no run in it; left out",)
    with pytest.raises(DataError, match=r"empty: no run in it; allowed: run folders"):
        points.compare([empty])
    with pytest.raises(DataError, match=r"rum: no such folder; allowed: run folders"):
        points.compare([tmp_path / "rum", run])


def test_the_door_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path / "s", points=3, seeds=3)
    compare.compare([str(tmp_path / "s"), "--out", str(tmp_path / "out"), "--baseline", "1"])
    printed = capsys.readouterr().out
    assert printed.startswith("3 points differ in optim.lr (3 values).")
    assert printed.index("#1") < printed.index("#0")
    table = list(csv.DictReader(io.StringIO((tmp_path / "out" / "points.csv").read_text(encoding="utf-8"))))
    assert [row["gain_said"] for row in table] == ["lower", "", "higher"]
    assert float(table[2]["gain_minus_baseline"]) == pytest.approx(0.2, abs=0.03)
    runs = list(csv.DictReader(io.StringIO((tmp_path / "out" / "runs.csv").read_text(encoding="utf-8"))))
    assert len(runs) == 9
    assert {Path(row["folder"]) for row in runs} == {each.parent for each in (tmp_path / "s").glob("*/summary.json")}
    assert {row["status"] for row in runs} == {"finished"}
    assert (tmp_path / "out" / "compare.html").is_file()


def test_a_reader_who_has_gone_does_not_keep_the_files_from_being_written(tmp_path: Path) -> None:
    sweep(tmp_path / "s", points=3, seeds=3)
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "rookexp.compare", str(tmp_path / "s"), "--out", str(tmp_path / "out")]
    ended = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert (tmp_path / "out" / "compare.html").is_file()


def test_ctrl_c_is_a_status_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **values: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(points, "compare", interrupted)
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        compare.main()
    assert ended.value.code == 130


def test_a_file_gets_plain_text_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    compare.show(points.compare([sweep(tmp_path, points=3, seeds=3)]), seen := io.StringIO())
    assert "\x1b" not in seen.getvalue()


def test_the_table_of_hydras_own_sweep_is_plain_and_whole_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    why = "the disk is full; " * 3
    make(tmp_path / "0", status="failed", reason=why.strip(), seed=0)
    summary.show(tmp_path)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert f"failed {why.strip()}" in said


def test_the_table_of_hydras_own_sweep_shows_what_was_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job, typed in enumerate((["baseline=rloo", "steps=20"], ["baseline=gae", "steps=20", "kl=none"])):
        folder = make(tmp_path / str(job), seed=0, **{"grpo.temperature": 1.0 + job})
        (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(typed), encoding="utf-8")
    summary.show(tmp_path)
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()[:-1]]
    assert header[:4] == ["job", "baseline", "kl", "gain"]
    assert [row[:3] for row in rows] == [["0", "rloo", "-"], ["1", "gae", "none"]]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_loses_no_point_and_no_word(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    compare.show(points.compare([sweep(tmp_path, points=3, seeds=3)]), seen := Terminal())
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in seen.getvalue()
    words = "".join("".join(lines).split())
    assert words.count("higher") >= 2, "a column that is cut off loses the word"
    assert "5morecolumnsareinthefiles" in words
    assert all(any(line.split()[:1] == [name] for line in lines) for name in ("#0", "#1", "#2")), seen.getvalue()


def test_the_door_says_in_one_line_that_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        compare.compare([str(tmp_path / "run"), "--out", str(tmp_path / "file")])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said == f"error: {tmp_path}/file: File exists; type --out and another folder\n"


def test_the_door_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.compare([str(tmp_path)])
    assert ended.value.code == 2
    assert re.fullmatch(r"error: .*no run in it; allowed: .*\n", capsys.readouterr().err)
