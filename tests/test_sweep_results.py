"""What a sweep makes of its jobs and points, without running any."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from hydra.core.utils import JobReturn, JobStatus
from made_runs import make, rows
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from rookexp import statistics
from rookexp.comparison import measures, wording
from rookexp.comparison.points import Point
from rookexp.errors import DataError, TrainingDiverged
from rookexp.run_folder import runs
from rookexp.sweep import outcome, ranking, results
from rookexp.sweep.outcome import Outcome
from rookexp.sweep.plan import Plan
from rookexp.sweep.ranking import Standing
from rookexp.sweep.settings import Settings
from rookexp.sweep.space import Interval, Listed, Space


def settings(**changes: Any) -> Settings:
    chosen: dict[str, Any] = {
        "study_name": "s", "storage": None, "n_trials": None, "n_jobs": 1, "seeds": 1,
        "objective": "gain", "direction": "maximize", "constraints": [], "baseline": None, "max_failure_rate": 1.0,
        "params": {}, "sampler": {}, "new_seed": False, "pruner": {}, "prune_on": "step",
    }  # fmt: skip
    return Settings(**chosen | changes)


def plan(**changes: Any) -> Any:
    return SimpleNamespace(settings=settings(**changes))


def trials(*values: tuple[float, ...] | None, excess: dict[int, float] | None = None) -> list[FrozenTrial]:
    """Complete trials in order, None for one that failed; some break a constraint."""
    made = []
    for number, own in enumerate(values):
        broken = {"excess": {"kl <= 1": excess[number]}} if excess and number in excess else {}
        state = TrialState.FAIL if own is None else TrialState.COMPLETE
        trial = create_trial(state=state, values=own, user_attrs=broken)
        trial.number = number
        made.append(trial)
    return made


def numbers(found: list[FrozenTrial]) -> list[int]:
    return [trial.number for trial in found]


# ---- points ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("direction", "order"), [("maximize", [1, 3, 0, 4, 2]), ("minimize", [0, 3, 1, 2, 4])])
def test_points_are_ranked_by_the_first_objective_behind_the_constraints(direction: str, order: list[int]) -> None:
    made = trials((0.1,), (0.3,), (0.4,), (0.2,), (0.9,), None, excess={2: 1.0, 4: 0.1, 3: 0.0, 1: -1.0})
    assert numbers(Standing(plan(direction=direction), made).ranked) == order
    assert numbers(Standing(plan(direction=direction), made).best) == order[:1]
    assert [ranking.feasible(trial) for trial in made] == [True, True, False, True, False, True]
    assert Standing(plan(), trials((0.1,), None, excess={0: 0.5})).best == []


def test_with_several_objectives_the_best_are_those_that_no_other_dominates() -> None:
    made = trials((1.0, 5.0), (2.0, 5.0), (3.0, 9.0), (0.0, 1.0), (2.0, 5.0), (9.0, 0.0), excess={5: 1.0})
    two = plan(objective=["gain", "kl"], direction=["maximize", "minimize"])
    assert numbers(Standing(two, made).best) == [2, 1, 4, 3]
    assert numbers(Standing(plan(objective=["gain", "kl"]), made).best) == [2]


def test_the_rivals_of_the_best_are_those_that_its_seeds_do_not_tell_apart_from_it() -> None:
    made = trials((0.5,), (0.48,), (0.2,), (0.45,), excess={3: 1.0})
    gains = [(0.4, 0.5, 0.6, 0.5), (0.45, 0.4, 0.6, 0.47), (0.11, 0.19, 0.31, 0.2), (0.4, 0.5, 0.6, 0.49)]
    for trial, own in zip(made, gains, strict=True):
        trial.set_user_attr("figures", {str(seed): {"gain": gain} for seed, gain in enumerate(own)})
    standing = Standing(plan(), made)
    assert standing.compared(made[0], made[2], 2).said == "higher"
    assert standing.compared(made[0], made[1], 2).said == "within noise"
    # Trial 2 is lower, and trial 3 breaks a constraint.
    assert numbers(standing.rivals(made[0])) == [1]


def test_many_rivals_are_counted_and_few_are_named() -> None:
    for count, said in ((3, "trial 1, 2"), (9, "all 8 others")):
        made = trials(*((0.5 - number / 1000,) for number in range(count)))
        for number, trial in enumerate(made):
            own = {str(seed): {"gain": 0.5 - number / 1000 + (seed * 7 + number) % 5 / 10} for seed in range(4)}
            trial.set_user_attr("figures", own)
        standing = Standing(Plan(settings(), Space((), ()), [0, 1, 2, 3], Path("nowhere"), {}, None), made)
        vars(standing)["points"] = {}  # there are no run folders
        lines = results.closing(standing)
        assert f"not told apart from it by 4 seeds: {said}" in lines


def test_a_figure_of_a_point_is_its_mean_over_the_seeds_that_have_it() -> None:
    known = {"0": {"gain": 0.1}, "1": {"kl": 7.0}, "2": {"gain": 0.2}, "3": {"gain": 0.9}, "4": {"gain": 0.3}}
    values = [0.1, 0.2, 0.9, 0.3]
    assert ranking.spread(known, "gain") == statistics.mean(values)
    assert math.isnan(ranking.spread(known, "entropy").value)


def test_a_column_has_the_last_part_of_its_key_where_no_other_ends_so() -> None:
    keys = ["optim.lr", "kl.coef", "grpo.entropy.coef", "steps"]
    assert [results.short(key, keys) for key in keys] == ["lr", "kl.coef", "grpo.entropy.coef", "steps"]


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_a_point_is_complete_where_all_its_jobs_finished() -> None:
    done, bad, silent = Outcome("finished"), Outcome("failed", "why"), Outcome("diverged")
    assert outcome.judged({0: done, 1: done}, None) == (TrialState.COMPLETE, "")
    assert outcome.judged({0: done, 3: bad, 4: silent}, None) == (TrialState.FAIL, "seed 3: why")
    assert outcome.judged({3: bad}, None) == (TrialState.FAIL, "why")
    assert outcome.judged({0: done, 1: silent}, None) == (TrialState.FAIL, "seed 1: diverged")
    assert outcome.judged({0: bad}, "too slow") == (TrialState.PRUNED, "too slow")


def test_figures_are_those_that_are_logged_and_finite_and_those_that_are_asked_for() -> None:
    logged = [*rows(gain=0.5), {"step": 21, "eval/legal": 0.75, "odd": None}]
    found = outcome.figures(Outcome("finished", rows=logged), plan(objective=["eval/legal", "odd", "gain", "never"]))
    assert found["eval/legal"] == 0.75
    assert found["gain"] == pytest.approx(0.5)
    assert "entropy" in found
    assert not {"odd", "never"} & found.keys()
    infinite = [{"step": 1, "grad_norm": None, "kl": 2.0}]
    assert outcome.figures(Outcome("finished", rows=infinite), plan(objective="kl")) == {"kl": 2.0, "steps": 1.0}


def test_a_constraint_is_broken_by_what_is_beyond_it() -> None:
    both = plan(constraints=["kl <= 0.5", "entropy>=1"])
    found = outcome.excess(both, {"kl": 0.75, "entropy": 1.25})
    assert found == {"kl <= 0.5": 0.25, "entropy >= 1": -0.25}


def test_what_a_job_left_is_read_in_one_line(tmp_path: Path) -> None:
    assert outcome.read(tmp_path / "never") == Outcome("")
    (tmp_path / "summary.json").write_text(json.dumps({"status": "failed", "reason": "a\n  b"}), encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n', encoding="utf-8")
    assert outcome.read(tmp_path) == Outcome("failed", "a b", [{"step": 0}])
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    assert outcome.read(tmp_path) == Outcome("")


def ended(status: JobStatus, value: Any = None) -> JobReturn:
    return JobReturn(status=status, _return_value=value)


@pytest.mark.parametrize(
    ("summary", "error", "after"),
    [
        (None, ValueError("a\nb"), {"status": "failed", "reason": "ValueError: a b"}),
        (None, ValueError(), {"status": "failed", "reason": "ValueError"}),
        (None, DataError("no data"), {"status": "failed", "reason": "no data"}),
        ({"status": "running", "x": 1}, DataError("no"), {"status": "failed", "x": 1, "reason": "no"}),
        ({"status": "diverged"}, TrainingDiverged("nan"), {"status": "failed", "reason": "nan"}),
        ({"status": "diverged", "reason": "known"}, TrainingDiverged("nan"), {"status": "diverged", "reason": "known"}),
        ({"status": "finished"}, DataError("late"), {"status": "finished"}),
    ],
)
def test_why_a_job_failed_is_noted_unless_the_job_has_done_so(
    summary: dict[str, Any] | None, error: Exception, after: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "7"
    if summary is not None:
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    outcome.note_failure(folder, ended(JobStatus.FAILED, error))
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == after
    assert (folder / "error.txt").exists() is isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("configured", "status", "noted"),
    [(True, "finished", False), (True, "running", True), (True, None, True), (False, None, False)],
)
def test_a_job_that_ends_in_silence_has_failed_if_it_had_begun(
    configured: bool, status: str | None, noted: bool, tmp_path: Path
) -> None:
    if configured:
        (tmp_path / "config.yaml").touch()
    if status is not None:
        (tmp_path / "summary.json").write_text(json.dumps({"status": status}), encoding="utf-8")
    outcome.note_failure(tmp_path, ended(JobStatus.COMPLETED))
    found = outcome.read(tmp_path)
    assert found.status == ("failed" if noted else status or "")
    assert found.reason.endswith("does not say how") is noted


# ---- what is left to read -------------------------------------------------------------------------------------------


def grid(folder: Path, cells: dict[tuple[int, int], float | None], **changes: Any) -> tuple[Plan, list[FrozenTrial]]:
    """A sweep of two seeds over `b` and `a`, whose gains at (a, b) are the value, and that plus 0.1; None: failed."""
    space: Any = SimpleNamespace(
        params=[Listed.__new__(Listed)] * 2,
        declared={"b": "0,1", "a": "0,1"},
        snapped=lambda point: {"b": point["b"], "a": point["a"]},
        overrides=lambda point: [f"{key}={point[key]}" for key in ("b", "a")],
        part=lambda typed, path: typed,
    )
    chosen = CategoricalDistribution((0, 1, 2))
    made = []
    for number, ((a, b), value) in enumerate(cells.items()):
        found = {} if value is None else {"0": {"gain": value, "kl": 1.0}, "1": {"gain": value + 0.1}}
        trial = create_trial(
            state=TrialState.FAIL if value is None else TrialState.COMPLETE,
            values=None if value is None else [value + 0.05],
            params={"a": a, "b": b},
            distributions={"a": chosen, "b": chosen},
            user_attrs={"figures": found, "excess": {}} | ({"reason": "why"} if value is None else {}),
        )
        trial.number = number
        made.append(trial)
    return Plan(settings(**changes), space, [0, 1], folder, {}, None), made


def test_importance_is_the_share_of_the_variance_that_a_parameter_explains(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 3.0, (1, 1): 4.0, (0, 2): None})
    found = Standing(plan, made).importance()
    assert found == pytest.approx({"a": 0.9, "b": 0.1})
    assert list(found) == ["a", "b"], "largest first"
    usual, most = zip(*Standing(plan, made).by_chance().values(), strict=True)
    assert usual == pytest.approx((1 / 3, 1 / 3))
    assert most == pytest.approx((0.9025, 0.9025), abs=0.01)  # P(Beta(1/2, 1) <= x) = sqrt(x)
    turned = grid(tmp_path, {(0, 0): 0.0, (1, 0): 1.0, (0, 1): 3.0, (1, 1): 4.0})[1]
    assert list(Standing(plan, turned).importance()) == ["b", "a"]
    assert Standing(plan, made[1:]).importance() == pytest.approx({"a": 25 / 28, "b": 1 / 28})
    assert Standing(plan, made[:2]).importance() == {}
    equal = grid(tmp_path, {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 1.0})[1]
    assert Standing(plan, equal).importance() == {}


@pytest.mark.parametrize(("direction", "most"), [("maximize", "b"), ("minimize", "a")])
def test_in_ranges_importance_is_what_tells_good_points_from_the_others(
    tmp_path: Path, direction: str, most: str
) -> None:
    """`a` decides which points are low, `b` which are high."""
    space: Any = SimpleNamespace(params=[Interval(key, "", 0.0, 1.0, False) for key in "ab"])
    ranges = dict.fromkeys("ab", FloatDistribution(0.0, 1.0))
    draw, made = random.Random(0), []
    for number in range(60):
        a, b = draw.random(), draw.random()
        value = math.exp(-30 * (1 - b)) - math.exp(-30 * a)
        made.append(create_trial(values=[value], params={"a": a, "b": b}, distributions=ranges))
        made[-1].number = number
    known = Plan(settings(direction=direction), space, [0], tmp_path, {}, None)
    found = Standing(known, made).importance()
    assert max(found, key=found.__getitem__) == most
    assert found[most] > 0.9
    assert sum(found.values()) == pytest.approx(1.0)


def test_it_is_said_that_no_point_keeps_the_constraints(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 0): 0.0, (0, 1): 1.0})
    said = "no best point, for none keeps the constraints"
    assert said not in results.closing(Standing(plan, made))
    for trial in made:
        trial.set_user_attr("excess", {"kl <= 0.5": 0.1})
    assert said in results.closing(Standing(plan, made))


def test_importance_is_not_said_of_points_that_are_not_measured_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, made = grid(tmp_path, {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 3.0, (1, 1): 4.0})
    monkeypatch.setattr(Standing, "apart", "trial 1 beside trial 0: the evaluation asks other prompts")
    assert Standing(plan, made).importance() == {}
    assert not any(line.startswith("importance") for line in results.closing(Standing(plan, made)))


def test_importance_without_lists_is_that_of_the_points_however_often_one_was_drawn(tmp_path: Path) -> None:
    """Optuna's PED-ANOVA over the trials that `Standing` is given, each a point of its own."""
    values = {(a, b): 3.0 * a + b for a in range(3) for b in range(3)}
    plan, made = grid(tmp_path, values)
    ranges = {key: optuna.distributions.IntDistribution(0, 2) for key in ("a", "b")}
    for trial in made:
        trial.distributions = ranges
    plan.space.params = []  # none of them a list
    found = Standing(plan, made).importance()
    assert list(found) == ["a", "b"], "largest first"
    assert sum(found.values()) == pytest.approx(1)
    assert found["a"] > 0.6


def test_a_line_of_the_table_has_what_was_measured(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 1): 0.5, (1, 0): None})
    found = results.row(plan, made[0])
    gain = statistics.mean([0.5, 0.6])
    assert list(found)[:8] == ["trial", "state", "reason", "folders", "params_b", "params_a", "seeds", "gain"]
    assert (found["trial"], found["state"], found["reason"], found["folders"]) == (0, "complete", "", "0 1")
    assert (found["params_a"], found["params_b"], found["seeds"]) == (0, 1, 2)
    assert (found["gain"], found["gain_low"], found["gain_high"]) == (gain.value, gain.low, gain.high)
    assert found["kl"] == 1.0
    assert "entropy" not in found
    failed = {"trial": 1, "state": "fail", "reason": "why", "folders": "2 3", "params_b": 0, "params_a": 1, "seeds": 0}
    assert results.row(plan, made[1]) == failed
    made[0].user_attrs["excess"] = {"kl <= 0": 1.0, "kl <= 2": -1.0}
    assert results.row(plan, made[0]) == found | {"kl <= 0": 1.0}
    assert results.line(plan, made[0]) == f"trial 0 done: b=1 a=0: gain {wording.interval(gain)}"
    assert results.line(plan, made[1]) == "trial 1 failed: b=0 a=1: why"


def test_what_made_points_fail_is_not_said_to_have_no_effect(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 1): 0.5, (1, 0): None, (1, 1): 0.5})
    lines = results.closing(Standing(plan, made))
    assert "nothing separates the 2 points that were measured: gain the same in all" in lines


def test_a_figure_has_no_interval_beyond_what_it_can_be(tmp_path: Path) -> None:
    known = {"0": {"seconds": 1.0, "gain": 1.0}, "1": {"seconds": 9.0, "gain": 9.0}}
    found = [ranking.spread(known, name) for name in ("seconds", "gain")]
    assert [(span.value, span.low < 0) for span in found] == [(5.0, False), (5.0, True)]
    dead = measures.possible("dead_groups", statistics.mean([0.9, 1.0]))
    assert (round(dead.low, 3), dead.high) == (0.315, 1.0)


def test_the_summary_names_the_best_and_where_it_lies(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 1): 0.5, (1, 0): None, (1, 1): 0.7})
    found = results.summary(Standing(plan, made))
    assert (found["best_params"], found["best_value"]) == ({"b": 1, "a": 1}, 0.75)
    assert (found["best_trials"], found["best_folders"]) == ([2], [f"{tmp_path}/4", f"{tmp_path}/5"])
    assert {state: count for state, count in found["counts"].items() if count} == {"complete": 2, "fail": 1}
    nothing = results.summary(Standing(plan, made[1:2]))
    assert (nothing["best_params"], nothing["best_value"], nothing["best_trials"]) == (None, None, [])


def test_a_point_is_set_beside_the_baseline_seed_by_seed(tmp_path: Path) -> None:
    plan, made = grid(tmp_path, {(0, 0): None, (0, 1): 0.5, (1, 1): 0.7}, baseline=None)
    now = Standing(plan, made)
    base = now.baseline
    assert base is made[1], "the first that is complete"
    assert Standing(replace(plan, settings=settings(baseline={"a": 1})), made).baseline is made[2]
    assert Standing(replace(plan, settings=settings(baseline={"a": 2})), made).baseline is None
    for trial, gain in ((made[1], 0.5), (made[2], 0.7)):
        noise = (0.0, 0.01, -0.01)
        trial.user_attrs["figures"] = {str(i): {"gain": gain + i * 0.1 + (gain > 0.6) * noise[i]} for i in range(3)}
    assert now.beside(made[2], base, 1).startswith("+0.200 [+0.175, +0.225] higher")
    assert now.beside(base, made[2], 1).endswith(" lower")
    assert now.beside(base, made[2], 100).endswith(" lower?")
    assert now.beside(made[2], base, 100).endswith(" higher?")
    assert now.beside(base, base, 1) == "0 identical"
    less = replace(plan, settings=settings(direction="minimize"))
    assert Standing(less, made).beside(made[2], base, 1).endswith(" higher"), "the word is that of compare"
    del base.user_attrs["figures"]["2"], base.user_attrs["figures"]["1"]
    assert now.beside(made[2], base, 1) == "+0.200 cannot tell, 1 seed"


@pytest.mark.parametrize(
    ("objective", "figure"), [("gain", "gain"), ("entropy", "entropy"), ("eval/legal", "reward"), ("loss", None)]
)
def test_only_a_reward_is_refused_for_the_reward(
    objective: str, figure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(measures, "unlike", lambda *given: seen.append(given) or "no")
    asked = {0: measures.Asked(("p",), None)}
    both: list[Any] = ["run", "other"]
    monkeypatch.setattr(Standing, "points", {i: Point(run, (run,), (), {}, asked, 1) for i, run in enumerate(both)})
    one, other, deleted = made = trials((0.1,), (0.2,), (0.3,))
    now = Standing(plan(objective=objective), made)
    assert now.unlike(one, other) == ("no" if figure else None)
    assert seen == ([(figure, "run", "other", asked, asked)] if figure else [])
    for pair in ((deleted, other), (one, deleted)):
        assert now.unlike(*pair) is None
    assert len(seen) == bool(figure)
    monkeypatch.setattr(measures, "unlike", lambda *given: measures.NOT_KNOWN)
    assert now.unlike(one, other) is None, "what was not logged refuses nothing"


def test_points_are_apart_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trials((0.1,), (0.3,), (0.4,), (0.2,), None)
    kinds = {0: "a", 2: "a", 3: "b"}
    monkeypatch.setattr(Standing, "points", kinds)
    pairs = {("a", "a"): None, ("a", "b"): "ab"}
    monkeypatch.setattr(Standing, "unlike", lambda _, one, other: pairs[kinds[one.number], kinds[other.number]])
    assert Standing(plan(), made[::-1]).apart == "trial 3 beside trial 2: ab"
    assert Standing(plan(), made[2::-1]).apart is None


def test_the_runs_of_a_point_are_read_once_and_a_deleted_one_leaves_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, made = grid(tmp_path, {(0, 0): 0.5, (0, 1): 0.7, (1, 1): None, (1, 0): 0.6})
    for number in (0, 1, 2, 4, 5, 6, 7):
        make(tmp_path / str(number), seed=number % 2, **{"reward.best": 0.1 if number < 6 else 0.2})
    read = []
    original = runs.read
    monkeypatch.setattr(runs, "read", lambda folder: read.append(folder.name) or original(folder))
    now = Standing(plan, made)
    assert now.apart == "trial 3 beside trial 0: not the same measure: reward.best differs"
    assert now.beside(made[3], made[0], 2) == "not compared: not the same measure: reward.best differs"
    assert now.beside(made[1], made[0], 2).startswith("+0.200 ")
    assert {number: len(point.runs) for number, point in now.points.items()} == {0: 2, 3: 2}
    assert sorted(read) == ["0", "1", "2", "3", "6", "7"]
