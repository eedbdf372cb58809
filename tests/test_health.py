"""Findings: said once an episode, with value, limit and advice, counted in the summary, and beside the live bar."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import grpo, nudged, policy, trainer

from rookexp import health, track
from rookexp.config import nodes
from rookexp.trackers import console

LIMITS: dict[str, Any] = {
    "dead_groups": 0.5,
    "entropy_share": 0.1,
    "entropy_rise_nats": 2.0,
    "kl_share": 0.7,
    "kl_share_steps": 3,
    "kl_rise_nats": 1.0,
    "sampler_nats": 0.05,
    "truncated": 0.1,
    "identical": 0.8,
    "grad_share": 0.9,
    "core_wait": 0.3,
    "calm_steps": 2,
}
ONE_UPDATE = {"grpo": {"inner_epochs": 1, "minibatches": 1}}
Told = list[dict[str, Any]]


class Listener(track.Tracker):
    """A tracker that keeps what the summary is told."""

    def __init__(self) -> None:
        self.told: Told = []

    def summary(self, values: Any) -> None:
        self.told.append(dict(values))


Run = Callable[..., tuple[list[str], dict[str, int]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Logs one mapping a step, from step 1 on; the lines on standard error, and the counts as last told."""

    def call(
        steps: Sequence[dict[str, float]], config: dict[str, Any] = ONE_UPDATE, **changes: Any
    ) -> tuple[list[str], dict[str, int]]:
        listener = Listener()
        tracker = health.HealthTracker(**LIMITS | changes, trackers=[listener])
        tracker.start(config)
        for step, metrics in enumerate(steps, start=1):
            tracker.log(step, metrics)
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines(), listener.told[-1]["health"] if listener.told else {}

    return call


CASES = {
    "dead_groups": (
        "frac_reward_zero_std",
        0.5,
        0.625,
        "62.5 % of the groups .*limit 50 %.*grpo.dead_groups=resampled, or a larger",
    ),
    "truncated": ("completions/truncated_frac", 0.1, 0.25, "25 % of the completions .*limit 10 %.*max_new_tokens"),
    "identical": ("completions/identical_frac", 0.8, 0.9, "90 % of the completions .*limit 80 %.*grpo.temperature"),
    "kl_gradient": ("grad_share/kl", 0.9, 0.95, "95 % of the gradient .*divergence .limit 90 %.*kl.coef"),
    "entropy_gradient": ("grad_share/entropy", 0.9, 0.95, "95 % of the gradient .*limit 90 %.*entropy_coef"),
    "clip_frac": ("clip_frac/any", 0.0, 0.0004, "0.04 % of the tokens .*limit 0 %.*rookexp.doctor"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_share_above_its_limit_is_said_and_one_at_it_is_not(name: str, run: Run) -> None:
    metric, limit, beyond, words = CASES[name]
    for at in (limit, torch.tensor(limit).item()):  # as fp32 has it: 0.1 is 0.10000000149
        assert run([{metric: at}] * 3) == ([], {name: 0})
    lines, counts = run([{metric: limit}, {metric: beyond}])
    assert counts == {name: 1}
    assert len(lines) == 1
    assert re.fullmatch(rf"health: step 2: {words}.*", lines[0])
    assert re.fullmatch(r"health: step \d+: [^;]+ \(limit [^;]+\); [^;]+: try [^;]+", lines[0])


def test_a_machine_must_be_busy_for_some_steps(run: Run) -> None:
    assert run([{"core_wait": share} for share in (0.9, 0.1, 0.1, 0.9, 0.2, 0.3)])[1] == {"core_wait": 0}
    lines, counts = run([{"core_wait": share} for share in (0.1, 0.5, 0.1, 0.4, 0.9)])
    assert counts == {"core_wait": 1}
    assert re.fullmatch(r"health: step 4: 40 % of the time .*limit 30 %.*try hardware\.threads=1", lines[0])


def test_once_an_episode_and_again_only_after_calm(run: Run) -> None:
    dead = [0.9, 0.4, 0.9, 0.9, 0.4, 0.4, 0.4, 0.9, 0.4]
    lines, counts = run([{"frac_reward_zero_std": value} for value in dead])
    assert [line.split(":")[1] for line in lines] == [" step 1", " step 8"]  # a single calm step ends nothing
    assert counts == {"dead_groups": 2}


def test_steps_without_the_metric_neither_begin_nor_end_anything(run: Run) -> None:
    beyond, within, silent = {"grad_share/kl": 0.99}, {"grad_share/kl": 0.1}, {"loss": 1.0}
    nan = {"grad_share/kl": math.nan}
    lines, counts = run([beyond, silent, nan, silent, beyond, within, silent, nan, beyond])
    assert len(lines) == counts["kl_gradient"] == 1
    lines, counts = run([beyond, within, silent, within, beyond])
    assert len(lines) == counts["kl_gradient"] == 2


def test_entropy_collapses_against_its_first_value(run: Run) -> None:
    lines, counts = run([{"eval/reward": 0.0}, *({"entropy": value} for value in (2.0, 0.3, 0.2, 0.19))])
    assert counts == {"entropy": 1, "entropy_rise": 0}
    assert lines == [
        "health: step 5: entropy 0.19 nats a token, 2 at first (limit 0.2); "
        "the policy collapses onto one answer to each prompt: try a larger grpo.entropy_coef"
    ]
    assert run([{"entropy": 0.005}, {"entropy": 0.0051}])[1] == {"entropy": 0, "entropy_rise": 0}, "A answers begin so"


def test_a_policy_that_dissolves_into_noise_is_named(run: Run) -> None:
    """As under baseline=rloo, where the advantages are a third of those that the entropy bonus is made for."""
    lines, counts = run([{"entropy": value} for value in (1.25, 2.0, 3.25, 5.0, 8.0)])
    assert counts == {"entropy": 0, "entropy_rise": 1}
    assert lines == [
        "health: step 4: entropy 5 nats a token, 1.25 at first (limit 3.25); "
        "the policy dissolves into noise: try a smaller optim.lr, or a smaller grpo.entropy_coef"
    ]


def test_the_entropy_of_other_tasks_is_no_collapse(run: Run) -> None:
    """As where the next phase asks A prompts; each is compared with its own beginning."""

    def step(task: str, entropy: float) -> dict[str, float]:
        return {"entropy": entropy, f"reward/mean_{task}": 0.5}

    rows = [step("P", 1.5), step("P", 1.4), step("A", 0.014), step("A", 0.012), step("P", 1.3)]
    assert run(rows)[1] == {"entropy": 0, "entropy_rise": 0}
    lines, counts = run([*rows, step("A", 0.001)])
    assert counts == {"entropy": 1, "entropy_rise": 0}
    assert "entropy 0.001 nats a token, 0.014 at first (limit 0.0014)" in lines[0]


def test_kl_share_must_persist(run: Run) -> None:
    once = [0.1, 0.9, 0.1, 0.1, 0.9, 0.1]
    assert run([{"kl_share": value} for value in once]) == ([], {"kl_share": 0})
    assert run([{"kl_share": 0.9}] * 2) == ([], {"kl_share": 0})  # too few to say that it persists
    lines, counts = run([{"kl_share": value} for value in (0.1, 0.9, 0.8, 0.9)])
    assert counts == {"kl_share": 1}
    assert lines[0].startswith("health: step 3: KL share 0.80, median of the last 3 steps (limit 0.7); ")


def test_a_step_that_was_too_long_is_said_and_a_kl_that_is_high_or_falls_is_not(run: Run) -> None:
    lines, counts = run([{"kl/forward": kl} for kl in (8.0, 9.0, 0.5, 1.5, 2.6)])
    assert counts == {"kl_rise": 1}
    assert lines == [
        "health: step 5: the KL to the reference rose by 1.1 nats a token in one step (limit 1); "
        "the step was too long and undoes what the model knew: try a smaller optim.lr"
    ]


def test_a_kl_is_not_set_beside_that_of_other_tasks(run: Run) -> None:
    def step(task: str, kl: float) -> dict[str, float]:
        return {"kl/forward": kl, f"reward/mean_{task}": 0.5}

    assert run([step("A", 0.1), step("P", 2.0), step("P", 2.5), step("A", 0.1)])[1] == {"kl_rise": 0}
    assert run([step("A", 0.1), step("P", 2.0), step("P", 3.5)])[1] == {"kl_rise": 1}


def test_a_sampler_that_differs_is_said_whatever_the_ratio(run: Run) -> None:
    lines, counts = run([{"sampler/abs_logprob_error": error, "ratio/max": 1.0} for error in (0.05, 0.21)])
    assert counts == {"sampler": 1}
    assert lines[0].startswith("health: step 2: sampler and training differ by 0.21 nats a token (limit 0.05); ")
    assert "try python -m rookexp.doctor" in lines[0]


@pytest.mark.parametrize("config", [{"grpo": {"inner_epochs": 2, "minibatches": 1}}, {"corpus": "x"}])
def test_later_updates_of_a_batch_may_be_clipped(config: dict[str, Any], run: Run) -> None:
    assert run([{"clip_frac/any": 0.3}], config) == ([], {})


# ---- where it goes ------------------------------------------------------------------------------------------------


def test_the_summary_file_has_the_counts_at_once_and_at_the_end(tmp_path: Path) -> None:
    def saved() -> dict[str, Any]:
        return json.loads((tmp_path / track.SUMMARY).read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    trackers: list[track.Tracker] = []  # as the build makes it: it grows while they are made
    trackers.append(health.HealthTracker(**LIMITS, trackers=trackers))
    trackers.append(track.JsonlTracker(folder=tmp_path, first_step=0))
    run = track.FanOut(trackers=trackers)
    run.start(ONE_UPDATE)
    assert "health" not in saved()
    run.log(0, {"eval/reward": 0.5})
    run.log(1, {"frac_reward_zero_std": 0.0, "entropy": 1.0})
    assert saved() == {"status": "running", "health": {"dead_groups": 0, "entropy": 0, "entropy_rise": 0}}
    run.log(2, {"frac_reward_zero_std": 1.0, "entropy": 1.0})
    run.summary({"costs": {}})
    run.finish("finished")
    assert saved() == {"status": "finished", "health": {"dead_groups": 1, "entropy": 0, "entropy_rise": 0}, "costs": {}}
    assert [row["step"] for row in track.read_jsonl(tmp_path / track.METRICS)] == [0, 1, 2]


def test_the_limits_in_the_yaml_are_taken(root: Path) -> None:
    node = yaml.safe_load((root / "conf/track/local.yaml").read_text(encoding="utf-8"))["health"]
    made = nodes.make(node, folder=root, first_step=0, total_steps=1, trackers=[])
    assert isinstance(made, health.HealthTracker)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("shared", [True, False])
def test_beside_a_live_bar_the_line_stands_above_it_or_where_errors_were_sent(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = Terminal(), Terminal() if shared else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "300")
    bar = console.ConsoleTracker(every=1, total_steps=2)
    run = track.FanOut(trackers=[bar, health.HealthTracker(**LIMITS, trackers=[])])
    run.start({})
    run.log(1, {"frac_reward_zero_std": 0.75})
    run.log(2, {"frac_reward_zero_std": 0.75})
    run.finish("finished")
    assert sys.stderr is err
    screen = out.getvalue()
    said, other = (screen, err.getvalue()) if shared else (err.getvalue(), screen)
    assert said.count("health: step 1: 75 % of the groups") == 1
    assert "health" not in other
    assert "2/2" in screen
    if shared:
        assert "\n" in screen[screen.index("health") : screen.index("2/2")]  # a line of its own, the bar after it


def trained(
    capsys: pytest.CaptureFixture[str], config: dict[str, Any] = ONE_UPDATE, *, mismatch: bool = False, **changes: Any
) -> str:
    """What is said of two steps of training."""
    model = policy()
    objective = grpo(model, **changes)
    collect = objective.collect

    def collected(step: int) -> Any:
        found = collect(step)
        if mismatch:
            nudged(model, 0.3)
        return found

    objective.collect = collected
    tracker = health.HealthTracker(**LIMITS | {"truncated": 1.0, "identical": 1.0}, trackers=[])
    tracker.start(config)
    trainer(model, objective, lr=0.0, tracker=tracker).fit()
    return capsys.readouterr().err


def test_a_training_whose_sampler_is_not_the_policy_is_found_out_at_its_first_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert trained(capsys) == ""
    said = trained(capsys, mismatch=True).splitlines()
    assert [line for line in said if re.match(r"health: step 1: .* % of the tokens are clipped", line)]
    assert [line for line in said if line.startswith("health: step 1: sampler and training differ by ")]
    assert "clipped" not in trained(capsys, {}, mismatch=True, single_update=False)
