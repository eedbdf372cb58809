"""Runs as points: which of them are one, what it is called, and what it is set beside."""

from __future__ import annotations

import datetime
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_runs import ANSWERS, PROMPTS, make

from rookexp import statistics
from rookexp.comparison import measures, notes, points
from rookexp.errors import ConfigError, DataError
from rookexp.run_folder import runs

COSTS = {"kl_share", "dead_groups", "grad_norm_max", "seconds", "tokens_per_s"}


def named(*folders: Path, **choices: Any) -> list[str]:
    return [point.name for point in points.compare(folders, **choices).points]


def rewritten(folder: Path, **changes: Any) -> Path:
    """A run whose rows of metrics.jsonl have other values, None for none."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) | changes for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [{key: value for key, value in row.items() if value is not None} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return folder


# ---- which runs are one ---------------------------------------------------------------------------------------------


def test_the_order_of_keys_makes_no_point(tmp_path: Path) -> None:
    make(tmp_path / "a", **{"grpo.since": datetime.date(2026, 1, 2)})
    path = make(tmp_path / "b", seed=1, **{"grpo.since": datetime.date(2026, 1, 2)}) / "config.yaml"
    turned = dict(reversed(runs.read_config(tmp_path / "b").items()))
    path.write_text(yaml.safe_dump(turned, sort_keys=False), encoding="utf-8")
    (point,) = points.compare([tmp_path]).points
    assert list(point.by_seed("gain")) == [0, 1]


def test_a_trial_is_a_point_of_its_own_whatever_its_settings(tmp_path: Path) -> None:
    for name in ("one/s/0", "one/s/1", "two/s/0"):
        make(tmp_path / name, trial=int(name[-1]))
    assert named(tmp_path / "one") == ["#0", "#1"]
    make(tmp_path / "t" / "0", trial=0)
    assert named(tmp_path / "one" / "s" / "0", tmp_path / "t") == ["s/#0", "t/#0"]
    assert named(tmp_path) == ["s/#0 (1)", "s/#1", "t/#0", "s/#0 (2)"]


@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        (("finished", "failed"), 0),
        (("failed", "finished"), 1),
        (("failed", "failed"), 1),
        (("finished", "finished"), 1),
        (("failed", "finished", "failed"), 1),
    ],
)
def test_of_runs_with_one_seed_the_one_that_finished_counts_else_the_last(
    ends: tuple[str, ...], counts: int, tmp_path: Path
) -> None:
    for i, status in enumerate(ends):
        make(tmp_path / f"run{i}", status=status)
    found = points.compare([tmp_path])
    assert [run.folder.name for run in found.points[0].runs] == [f"run{counts}"]
    assert len([note for note in found.notes if "left out" in note]) == len(ends) - 1
    assert all(note.split()[0] != f"run{counts}" for note in found.notes if "left out" in note)


def test_a_run_without_a_seed_is_as_one_with_seed_0_and_the_last(tmp_path: Path) -> None:
    path = make(tmp_path / "a") / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("seed: 0", "seed: null"), encoding="utf-8")
    (alone,) = points.compare([tmp_path]).points
    assert alone.by_seed("gain") == pytest.approx({0: 0.5})
    for name, seed in (("b", 3), ("c", 1)):
        make(tmp_path / name, seed=seed)
    (point,) = points.compare([tmp_path]).points
    assert [run.seed for run in point.runs] == [1, 3, None]


# ---- what is shown --------------------------------------------------------------------------------------------------


def test_paths_are_the_last_of_the_settings(tmp_path: Path) -> None:
    make(tmp_path / "a", **{"model.path": "gpt2"})
    make(tmp_path / "b", **{"model.path": "/my/model", "optim.lr": 1e-3, "hardware.device": "cuda"})
    found = points.compare([tmp_path])
    assert list(found.points[0].settings) == ["hardware.device", "optim.lr", "model.path"]


def test_the_first_of_the_settings_is_what_has_most_values(tmp_path: Path) -> None:
    """Else the many keys in which one run of another task differs would hide the rates of the others."""
    for i in range(3):
        make(tmp_path / str(i), **{"optim.lr": 1e-4 * (i + 1), "grpo.temperature": 1.0 + (i > 1)})
    assert list(points.compare([tmp_path]).baseline.settings) == ["optim.lr", "grpo.temperature"]


def test_what_a_sweep_varies_is_named_as_it_was_typed(tmp_path: Path) -> None:
    options = {"group_mean": ("rookexp.baselines.GroupMean", "sample"), "none": ("rookexp.baselines.NoBaseline", None)}
    for job, (option, (target, std)) in enumerate(options.items()):
        varied = {"baseline": {"_target_": target, "std": std}, "optim.lr": 0.1 + job, "hardware.threads": job}
        folder = make(tmp_path / str(job), trial=job, **varied)
        note = json.loads((folder / "trial.json").read_text(encoding="utf-8"))
        note |= {"sweep": "one", "params": {"baseline": option, "optim.lr": 0.1 + job, "+steps": 3}}
        (folder / "trial.json").write_text(json.dumps(note), encoding="utf-8")
    found = points.compare([tmp_path]).points
    assert [list(point.settings.items()) for point in found] == [
        [("baseline", option), ("optim.lr", 0.1 + job), ("hardware.threads", job)] for job, option in enumerate(options)
    ]
    make(tmp_path / "2", seed=1, **{"optim.lr": 0.3})  # no job of it
    assert "baseline._target_" in points.compare([tmp_path]).points[0].settings


def test_the_option_of_a_group_stands_for_what_it_decides(tmp_path: Path) -> None:
    """The rate is the option's in a, b and c; the temperature differs between two runs with the same option."""
    made = {"a": ("adamw", 1e-4, 1.0), "b": ("muon", 2e-4, 1.0), "c": ("muon", 2e-4, 0.7)}
    for name, (option, lr, temperature) in made.items():
        make(tmp_path / name, **{"optim.lr": lr, "grpo.temperature": temperature})
        choices = {"optim": option, "grpo": "default", "experiment": None, "sweep": None}
        about = {"hydra": {"runtime": {"choices": choices}}}
        (tmp_path / name / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    settings = [point.settings for point in points.compare([tmp_path]).points]
    assert settings == [
        {"optim": "adamw", "grpo.temperature": 1.0},
        {"optim": "muon", "grpo.temperature": 1.0},
        {"optim": "muon", "grpo.temperature": 0.7},
    ]
    both = {"optim.lr", "grpo.temperature"}
    (tmp_path / "b" / ".hydra" / "overrides.yaml").write_text("[optim=muon, optim.lr=2e-4]", encoding="utf-8")
    assert both == set(points.compare([tmp_path]).points[0].settings), "a rate that was typed is shown"
    make(tmp_path / "d", **{"optim.lr": 3e-4})  # it does not say which option it has
    assert both == set(points.compare([tmp_path]).points[0].settings)


def test_no_setting_has_the_name_of_a_figure(tmp_path: Path) -> None:
    for i, option in enumerate(("fixed", "none")):
        made = make(tmp_path / str(i), **{"kl.coef": 0.1 * i})
        about = {"hydra": {"runtime": {"choices": {"kl": option, "sweep": None, "odd": ["a"]}}}}
        (made / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    assert [point.settings for point in points.compare([tmp_path]).points] == [
        {"kl (option)": "fixed"},
        {"kl (option)": "none"},
    ]


def test_a_setting_is_shown_as_it_would_be_typed() -> None:
    shown = {None: "null", 1: "1", 2.5e-6: "2.5e-06", 0.1 + 0.2: "0.3", "word": "word", "rookexp.losses.Clip": "Clip"}
    assert {value: points.text(value) for value in shown} == shown
    assert [points.text(True), points.text(False)] == ["true", "false"]
    assert points.text("mine.rookexp.Clip") == "mine.rookexp.Clip"
    assert points.text([1, [0.5, None]]) == "[1,[0.5,null]]"
    assert points.label("loss._target_", "rookexp.losses.Clip") == "loss=Clip"
    assert points.label("optim.lr", 1e-4) == "optim.lr=0.0001"


def test_one_folder_gives_its_name_to_the_comparison_and_several_their_number(tmp_path: Path) -> None:
    for seed in range(2):
        make(tmp_path / "s" / str(seed), seed=seed)
    make(tmp_path / "other", **{"optim.lr": 1e-3})
    assert points.compare([tmp_path / "s"]).title == "s"
    assert points.compare([tmp_path / "s", tmp_path / "other"]).title == "2 points, 3 runs"


def test_the_best_come_first_behind_the_baseline_and_those_without_a_value_last(tmp_path: Path) -> None:
    gains = {"a": 0.9, "b": 0.1, "c": 0.3, "d": 0.2}
    for i, (name, gain) in enumerate(gains.items()):
        make(tmp_path / name, gain=gain, status="failed" if name == "a" else "finished", **{"optim.lr": i + 1})
    found = points.compare([tmp_path])
    assert found.baseline.name == "b", "the first that has finished"
    assert [point.name for point in found.ranked] == ["b", "c", "d", "a"]
    assert [point.name for point in replace(found, minimized=True).ranked] == ["b", "d", "c", "a"]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_the_first_and_the_last_greedy_answers(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", steps=20)
    path = folder / "completions.jsonl"
    middle = {"step": 10, "kind": "greedy", "prompt": PROMPTS[0], "completion": "", "reward": 0.0}
    lines = path.read_text(encoding="utf-8").splitlines()
    later = [*lines[4:6], json.dumps({"step": 20, "kind": "greedy", "prompt": "p", "completion": ""})]
    path.write_text("\n".join([*lines[:4], json.dumps(middle), *later]) + '\n{"step": 20, "kind', encoding="utf-8")
    first, last = measures.first_answers(folder), measures.last_answers(folder)
    assert [(row["step"], row["prompt"], row["completion"]) for row in first] == [
        (0, prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    ]
    assert [(row["step"], row["prompt"]) for row in last] == [(20, PROMPTS[0]), (20, PROMPTS[1]), (20, "p")]
    path.unlink()
    assert measures.last_answers(folder) == measures.first_answers(folder) == []


def test_what_a_run_was_asked_is_known_by_seed(tmp_path: Path) -> None:
    one, turned, other, silent = (
        make(tmp_path / name, seed=seed, prompts=prompts)
        for seed, (name, prompts) in enumerate(
            {"a": PROMPTS, "b": PROMPTS[::-1], "c": (PROMPTS[0], "P: x"), "d": PROMPTS}.items()
        )
    )
    (silent / "completions.jsonl").unlink()
    known = tuple(sorted(PROMPTS))
    one, turned, other, silent = (runs.read(folder) for folder in (one, turned, other, silent))
    assert measures.asked([one, turned]) == {0: measures.Asked(known, None), 1: measures.Asked(known, None)}
    assert measures.asked([one, silent]).keys() == {0}, "one that was stopped before it was asked"
    assert measures.asked([other])[2].prompts == tuple(sorted((PROMPTS[0], "P: x")))
    assert measures.asked([silent]) == {}


def test_evaluations_are_set_side_by_side_seed_by_seed() -> None:
    a, b, strict, legacy = (
        measures.Asked((prompt,), answers) for prompt, answers in (("a", None), ("b", None), ("a", "1"), ("a", "2"))
    )
    apart = measures.asked_apart
    assert apart({0: a, 1: b}, {0: a, 1: b}) is None, "prompts that the seed draws"
    assert apart({0: a, 1: b}, {0: b, 1: a}) == measures.OTHER_PROMPTS
    assert apart({0: a, 1: b}, {0: a}) is None
    assert apart({0: a}, {1: a}) is None
    assert apart({0: a}, {1: b}) == measures.OTHER_PROMPTS, "no seed in common, and not the same prompts"
    assert apart({0: strict}, {0: legacy}) == measures.OTHER_ANSWERS
    assert apart({0: strict}, {0: strict}) is None
    assert apart({0: strict}, {0: a}) is None, "a run of before it was noted"
    assert apart({}, {0: a}) == apart({0: a}, {}) == apart({}, {}) == measures.NOT_KNOWN


# ---- beside what ----------------------------------------------------------------------------------------------------


def test_the_baseline_is_the_named_point_else_the_sweeps_else_the_first_that_finished(tmp_path: Path) -> None:
    for i, lr in enumerate((1e-3, 1e-4, 2e-4, 3e-4)):
        make(tmp_path / str(i), trial=i, status="finished" if i else "failed", **{"optim.lr": lr})
    make(tmp_path / "4", trial=1, status="diverged", **{"optim.lr": 1e-4, "seed": 1})
    assert points.compare([tmp_path]).baseline.name == "#2", "one of which every run has finished"
    shutil.rmtree(tmp_path / "4")
    assert points.compare([tmp_path]).baseline.name == "#1"
    for asked in ("3", "#3", str(tmp_path / "3")):
        assert points.compare([tmp_path], baseline=asked).baseline.name == "#3"
    note = tmp_path / "sweep.json"
    note.write_text(json.dumps({"baseline": {"optim.lr": 2e-4, "kl.coef": 0.005}}), encoding="utf-8")
    assert points.compare([tmp_path]).baseline.name == "#2"
    assert points.compare([tmp_path], baseline="3").baseline.name == "#3"
    assert points.compare([tmp_path, tmp_path / "0"]).baseline.name == "#1", "not one sweep"
    for told in ({"baseline": {"optim.lr": 2e-4, "kl.coef": 7}}, {"baseline": {"optim.lrr": 2e-4}}, []):
        note.write_text(json.dumps(told), encoding="utf-8")
        assert points.compare([tmp_path]).baseline.name == "#1"
    note.write_text(json.dumps({"baseline": {"optim.lr": 5e-4}}), encoding="utf-8")
    said = "the sweep's baseline, optim.lr=0.0005, has no run here; points are compared with #1"
    assert said in points.compare([tmp_path]).notes
    note.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"sweep\.json: no JSON"):
        points.compare([tmp_path])


def test_a_debug_run_is_the_baseline_only_where_nothing_else_has_finished(tmp_path: Path) -> None:
    for name, status, lr in (("debug", "finished", 1e-4), ("one", "failed", 2e-4), ("other", "finished", 3e-4)):
        make(tmp_path / name, status=status, **{"optim.lr": lr})
    for text, base in (("debug=fast", "other"), ("debug=null", "debug")):
        (tmp_path / "debug" / ".hydra" / "overrides.yaml").write_text(f"- {text}\n", encoding="utf-8")
        assert points.compare([tmp_path]).baseline.name == base
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "debug" / ".hydra" / "overrides.yaml").write_text("- debug=fast\n", encoding="utf-8")
    assert points.compare([tmp_path]).baseline.name == "debug"


@pytest.mark.parametrize("count", [20, 21])
def test_a_wrong_name_is_answered_with_twenty_right_ones(count: int, tmp_path: Path) -> None:
    for i in range(count):
        make(tmp_path / str(i), trial=i, **{"optim.lr": 1 + i})
    with pytest.raises(ConfigError) as refused:
        points.compare([tmp_path], baseline="x")
    assert str(refused.value).endswith("#18, #19" + ", ..." * (count > 20))


def test_only_the_main_figure_is_widened_for_the_number_of_points(tmp_path: Path) -> None:
    """0.16, 0.21 and 0.26 leave 0 out for one comparison and for two, but not for three; 0.1, 0.15 and 0.2 for one."""
    for i in range(4):
        for seed, noise in enumerate((-0.05, 0.0, 0.05)):
            gain, entropy = (0.3 + (more + noise if i else 0) for more in (0.21, 0.15))
            folder = make(tmp_path / f"{i}-{seed}", gain=gain, **{"seed": seed, "optim.lr": 1 + i})
            rewritten(folder, entropy=entropy)
        make(tmp_path / f"{i}-failed", status="failed", **{"optim.lr": 10 + i})  # nothing to be compared
    three, four = (points.compare(sorted(tmp_path.iterdir())[: 4 * count]) for count in (3, 4))
    for found, count, said in ((three, 2, "higher"), (four, 3, "higher?")):
        own, base = found.points[2], found.baseline
        for figure in ("gain", "entropy"):
            widened = count if figure == "gain" else 1
            alone = statistics.compared(own.by_seed(figure), base.by_seed(figure), comparisons=widened)
            assert found.beside[own.name][figure] == alone
        assert found.beside[own.name]["gain"].said == said  # type: ignore[union-attr]
        assert found.beside[own.name]["entropy"].said == "higher"  # type: ignore[union-attr]


def test_without_any_evaluation_points_are_judged_by_their_speed(tmp_path: Path) -> None:
    rewritten(make(tmp_path / "a"), **{"eval/reward": None})
    rewritten(make(tmp_path / "b", **{"optim.lr": 1e-3}), **{"eval/reward": None})
    assert points.compare([tmp_path]).main == "tokens_per_s"
    make(tmp_path / "c", **{"optim.lr": 1e-2})
    found = points.compare([tmp_path])
    assert found.main == "gain"
    assert found.beside["b"].keys() == found.beside["c"].keys() == {"kl", "entropy", *COSTS}
    assert points.compare([tmp_path], baseline="c").beside["a"].keys() == found.beside["c"].keys()


def test_an_objective_that_is_no_figure_says_nothing_of_its_way(tmp_path: Path) -> None:
    make(tmp_path / "0", trial=0)
    for name, minimized in (("kl", True), ("eval/illegal", False)):
        objectives = [{"name": name, "direction": "minimize"}]
        (tmp_path / "sweep.json").write_text(json.dumps({"objectives": objectives}), encoding="utf-8")
        assert points.compare([tmp_path]).minimized is minimized


def test_a_figure_is_one_measure_only_under_equal_definitions(tmp_path: Path) -> None:
    made: dict[str, dict[str, Any]] = {
        "base": {},
        "twin": {"optim.lr": 1.0, "eval.every": 7, "reward.seed": 1, "seed": 1},
        "long": {"eval.max_new_tokens": 9},
        "rewarded": {"reward_model": "x"},
        "richer": {"reward.bonus": 1.0},
    }
    base, twin, long, rewarded, richer = (
        runs.read(make(tmp_path / name, **({"reward.seed": 0} | changes))) for name, changes in made.items()
    )
    known, others = {0: measures.Asked(tuple(PROMPTS), None)}, {0: measures.Asked(("other",), None)}
    asked = known, known
    assert measures.unlike("reward", base, twin, *asked) is None, "reward.seed follows the seed"
    assert measures.unlike("best", base, twin, *asked) == "not the same measure: eval.every differs"
    assert measures.unlike("slope", base, twin, *asked) == "not the same measure: eval.every differs"
    assert measures.unlike("reward", base, long, *asked) == "not the same measure: eval.max_new_tokens differs"
    assert measures.unlike("reward", base, rewarded, *asked) is None, "another key that begins alike"
    for one, other in ((base, richer), (richer, base)):
        assert measures.unlike("reward", one, other, *asked) == "not the same measure: reward.bonus differs"
    assert measures.unlike("entropy", base, twin, {}, others) is None
    assert measures.unlike("gain", base, twin, {}, known) == measures.NOT_KNOWN
    assert measures.unlike("gain", base, twin, others, known) == measures.OTHER_PROMPTS


def test_the_slope_of_samples_depends_on_how_they_are_drawn(tmp_path: Path) -> None:
    asked = {0: measures.Asked(tuple(PROMPTS), None)}
    for every, said in ((5, "not the same measure: grpo.temperature differs"), (1, None)):
        cold, warm = (
            runs.read(make(tmp_path / f"{every}-{t}", **{"grpo.temperature": t, "eval.every": every})) for t in (0.5, 1)
        )
        assert measures.unlike("slope", cold, warm, asked, asked) == said
        assert measures.unlike("gain", cold, warm, asked, asked) is None


def test_what_a_reader_has_to_know_first(tmp_path: Path) -> None:
    """Nothing, of runs that are alike; else a note for each reason why numbers are not what they seem."""
    make(tmp_path / "a")
    make(tmp_path / "b", **{"optim.lr": 1.0})
    assert points.compare([tmp_path]).notes == ()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"hardware.device": "cuda"}, "the hardware settings differ"),
        ({"reward.best": 0.9}, "reward.best differs: rewards under it"),
        ({"steps": 10}, "the runs have different numbers of steps"),
        ({"prompts": (PROMPTS[0], "P: x")}, "not all evaluations ask the same;"),
    ]
    for i, (changes, note) in enumerate(cases):
        folder = make(tmp_path / f"case{i}", **({"optim.lr": 2.0} | changes))
        (said,) = points.compare([tmp_path / "a", folder]).notes
        assert said.startswith(note)
    stopped = make(tmp_path / "stopped", status="failed", steps=10, **{"optim.lr": 3.0})
    (said,) = points.compare([tmp_path / "a", stopped]).notes
    assert said == "stopped: no run finished, so there are no figures"
    path = stopped / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("\nsteps: 20\n", "\nsteps: 30\n"), encoding="utf-8")
    assert points.compare([tmp_path / "a", stopped]).notes[1].startswith("the runs have different numbers of steps")


@pytest.mark.parametrize("count", [notes.SHOWN, notes.SHOWN + 1])
def test_a_note_names_a_few_points(count: int, tmp_path: Path) -> None:
    for i in range(count):
        make(tmp_path / f"p{i}", status="failed", **{"optim.lr": 1 + i})
    (said,) = points.compare([tmp_path]).notes
    assert said.startswith("p0, p1, p2, p3, p4, p5, p6, p7" + ", ..." * (count > notes.SHOWN) + ": no run finished")


def test_a_point_of_which_some_runs_finished_is_told(tmp_path: Path) -> None:
    make(tmp_path / "a", seed=1)
    make(tmp_path / "b", seed=2, status="failed")
    (said,) = points.compare([tmp_path]).notes
    assert said.startswith("a: some runs did not finish, or are not here; figures and intervals are of those that did")


def test_a_run_that_went_on_with_other_settings_is_named(tmp_path: Path) -> None:
    starts: list[list[str]] = [
        ["train", "optim.lr=1e-4"],
        ["train", "--config-dir=x", "resume=run", "optim.lr=1e-4", "steps=9", "track=local", "hydra.run.dir=run"],
        ["train", "resume=run", "optim.lr=2e-4", "kl@kl=none"],
    ]
    folder, other = make(tmp_path / "a"), make(tmp_path / "b", **{"optim.lr": 0.5})
    for path, count in ((folder, 3), (other, 2)):
        *earlier, last = [{"argv": argv} for argv in starts[:count]]
        (path / "run.json").write_text(json.dumps({**last, "earlier_starts": earlier}), encoding="utf-8")
    notes = [note for note in points.compare([folder, other]).notes if "went on" in note]
    assert notes == ["a went on with optim.lr=2e-4, kl@kl=none: it stands here as if it had begun so"]


def test_more_steps_are_named_where_a_schedule_ends_with_the_run(tmp_path: Path) -> None:
    """A cosine over 10 steps and on to 20 is not a cosine over 20."""
    starts = [{"argv": ["train", "steps=10"]}, {"argv": ["train", "steps=20", "resume=run"]}]
    told = {}
    for name, ends in (("follows", 20), ("fixed", 100)):
        folder = make(tmp_path / name, **{"optim.schedule": {"total_steps": ends}})
        (folder / "run.json").write_text(json.dumps({**starts[1], "earlier_starts": starts[:1]}), encoding="utf-8")
        told[name] = [note for note in points.compare([folder]).notes if "went on" in note]
    assert told == {"follows": ["follows went on with steps=20: it stands here as if it had begun so"], "fixed": []}


def test_of_two_runs_the_one_that_had_its_settings_from_the_first_step_on_counts(tmp_path: Path) -> None:
    starts = [{"argv": ["train"]}, {"argv": ["train", "optim.lr=2e-4", "resume=run"]}]
    for name in ("x", "z"):  # one before and one after the other, which is whole
        folder = make(tmp_path / name)
        (folder / "run.json").write_text(json.dumps({**starts[1], "earlier_starts": starts[:1]}), encoding="utf-8")
    make(tmp_path / "y")
    found = points.compare([tmp_path])
    assert [run.folder.name for run in found.points[0].runs] == ["y"]
    assert found.notes == (
        "x is left out: y has the same settings and seed, from its first step on",
        "z is left out: y has the same settings and seed, from its first step on",
    )
    found = points.compare([tmp_path / "x", tmp_path / "z"])
    assert found.notes[0] == "x is left out: z has the same settings and seed in the end"


def test_the_page_says_what_each_figure_is(root: Path) -> None:
    page = (root / "docs" / "compare.md").read_text(encoding="utf-8")
    for name, (about, *_) in measures.FIGURES.items():
        assert f"| `{name}` | {about} |" in page
