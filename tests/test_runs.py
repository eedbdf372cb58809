"""A run folder is read as it is, whole or torn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import config, make, rows

from rookexp import verdict
from rookexp.comparison import measures
from rookexp.errors import DataError
from rookexp.run_folder import runs


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = runs.read(make(tmp_path / "7", status="diverged", reason="step 3:\n loss is inf", seed=2))
    assert (run.status, run.reason, run.seed, run.overrides) == ("diverged", "step 3: loss is inf", 2, ("seed=2",))
    assert run.rows == rows(gain=0.5, seed=2)
    assert run.config["optim"]["lr"] == 1e-4


def test_what_a_kill_left_is_read_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "7")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step":21,"kl"')
    for name in ("summary.json", "completions.jsonl"):
        (folder / name).unlink()
    (folder / ".hydra" / "overrides.yaml").unlink()
    run = runs.read(folder)
    assert (run.status, run.reason, run.overrides, run.summary) == ("unknown", None, (), {})
    assert run.rows[-1]["step"] == 20


def test_a_run_knows_how_its_p_prompts_were_written(tmp_path: Path) -> None:
    run = make(tmp_path / "7", **{"task.p_style": "padded_prefill"})
    model = run / "checkpoints" / "step-000020" / "model"
    model.mkdir(parents=True)
    assert {runs.p_style_of(str(place)) for place in (run, model.parent, model)} == {"padded_prefill"}
    # A mix, of the time when the key was called `style`.
    mixed = make(tmp_path / "8", task={"tasks": {"P": {"style": "padded_prefill"}, "A": {"positions": "x"}}})
    (mixed / "checkpoints").mkdir()
    assert runs.p_style_of(str(mixed)) == "padded_prefill"
    (tmp_path / "model").mkdir()
    elsewhere = (None, "", "owner/name", str(tmp_path / "model"), str(make(tmp_path / "9")))
    assert {runs.p_style_of(place) for place in elsewhere} == {"bare"}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.yaml"):
        runs.read(tmp_path)


def test_a_configuration_without_a_record_of_its_run_is_no_run(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    assert runs.find(tmp_path) == [run]
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").unlink()
    assert runs.find(tmp_path) == []
    (run / "run.json").write_text("{}", encoding="utf-8")  # begun, and nothing logged yet
    assert runs.find(tmp_path) == [run]


DAMAGED = {
    ("config.yaml", b"seed: \xff\n"): "config.yaml: no YAML",
    (".hydra/overrides.yaml", b"- \xff\n"): "overrides.yaml: no YAML",
    (".hydra/overrides.yaml", b"seed: 1\n"): "overrides.yaml: no list",
    ("summary.json", b"[]"): "summary.json: no JSON object; delete it",
    ("summary.json", b"\xff"): "summary.json: no JSON .*; delete it",
    (
        "metrics.jsonl",
        b'{"step": 0, "eval/reward": "x"}\n',
    ): "metrics.jsonl: row 1: eval/reward is no number .'x'.; delete",
    ("metrics.jsonl", b"[1]\n"): "metrics.jsonl: row 1 is no metrics object",
    ("metrics.jsonl", b"\xff\n"): "metrics.jsonl: row 1 is no metrics object",
}


@pytest.mark.parametrize("harm", DAMAGED)
def test_damage_is_named(harm: tuple[str, bytes], tmp_path: Path) -> None:
    name, content = harm
    (make(tmp_path / "run") / name).write_bytes(content)
    with pytest.raises(DataError, match=DAMAGED[harm]) as caught:
        runs.read(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_odd_lines_among_the_completions_are_passed_over(tmp_path: Path) -> None:
    path = make(tmp_path / "run") / "completions.jsonl"
    known = measures.last_answers(tmp_path / "run")
    odd = b'[1]\n{"kind": "greedy", "step": 20}\n{"kind": "sampled", "prompt": "\xff"}\n\xff\n'
    path.write_bytes(path.read_bytes() + odd)
    assert measures.last_answers(tmp_path / "run") == known


def test_runs_are_found_at_any_depth_in_natural_order(tmp_path: Path) -> None:
    for name in ("sweep/10", "sweep/2", "sweep/2/inner", "a/b/c"):
        make(tmp_path / name)
    found = [str(path.relative_to(tmp_path)) for path in runs.find(tmp_path)]
    assert found == ["a/b/c", "sweep/2", "sweep/10"]
    assert runs.find(tmp_path / "a/b/c") == [tmp_path / "a/b/c"]
    assert runs.find(tmp_path / "nowhere") == []


def test_links_to_runs_are_followed_once(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "best").symlink_to(tmp_path / "runs" / "1")
    (tmp_path / "links" / "round").symlink_to(tmp_path / "links")
    assert runs.find(tmp_path / "links") == [tmp_path / "links" / "best"]
    assert len(runs.find(tmp_path)) == 1


def test_figures_are_of_the_end_and_only_of_what_was_logged() -> None:
    found = runs.figures(rows(gain=0.5))
    assert found["gain"] == pytest.approx(0.5)
    assert found["reward"] == found["best"] == pytest.approx(0.25)
    assert found["kl"] == pytest.approx(0.01 * np.mean(range(1, 21)))
    assert (found["steps"], found["seconds"], found["grad_norm_max"]) == (20, 10.0, 0.5)
    assert "slope" not in found
    assert runs.figures([]) == {}
    assert runs.figures([{"step": 0, "eval/reward": 0.3}]) == {"reward": 0.3, "best": 0.3, "steps": 0}
    assert math.isinf(runs.figures([{"step": 1, "grad_norm": None}])["grad_norm_max"])


def test_slope_is_the_verdicts() -> None:
    made = rows(gain=0.5, steps=60)
    assert runs.figures(made)["slope"] == pytest.approx(verdict.judge_rows(made).figures["slope"])


def test_only_what_varies_and_matters_differs() -> None:
    first = config(seed=0, task_name="a")
    second = config(**{"seed": 1, "task_name": "b", "optim.lr": 2e-4, "grpo.extra": [1, 2]})
    assert runs.differing([first, second]) == {"optim.lr": (1e-4, 2e-4), "grpo.extra": (runs.ABSENT, [1, 2])}
    assert runs.differing([config(kl={"coef": True}), config(kl={"coef": 1})]) == {"kl.coef": (True, 1)}
    drawn = [config(**{"seed": seed, "model.seed": seed}) for seed in (3, 4)]
    assert runs.differing(drawn) == {}, "a model that is drawn by the run's seed is no other setting"
    assert runs.differing([config(**{"model.seed": seed}) for seed in (0, 4)]) == {"model.seed": (0, 4)}
    fixed = [config(**{"seed": seed, "task.seed": 0}) for seed in (0, 1)]
    assert runs.differing(fixed) == {}
    assert json.dumps(runs.flat({"a": {"b": {"c": 1}, "d": []}})) == '{"a.b.c": 1, "a.d": []}'
