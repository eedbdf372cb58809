"""The dry run: what a run would ask is found out without weights, and what does not fit fails it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest

from rookexp import dry_run
from rookexp.config import door
from rookexp.errors import CheckupFailed, ConfigError
from rookexp.models import weights
from rookexp.tasks.mixed import Phases
from rookexp.types import Prompt

ASSETS = door.PACKAGE / "assets" / "positions"
RELEASED = Path(__file__).parent / "released.txt"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def loaded(*_: Any) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(weights, "load_model", loaded)

    def run(*overrides: str) -> list[str]:
        door.register_resolvers()
        with hydra.initialize_config_dir(str(door.conf_dir()), **door.version_base()):
            config = door.plain(hydra.compose("config", ["dry_run=true", *overrides]))
        dry_run.run(config)
        return capsys.readouterr().out.splitlines()

    return run


def test_the_default_run_fits(run: Any) -> None:
    lines = run(f"eval.positions={ASSETS}/eval.jsonl")
    assert [line.split()[0] for line in lines] == ["ok"] * 7
    assert "the task: steps 1 to 40, P 100.0 %" in lines[0]
    assert lines[1].endswith("4 prompts trained, 4 evaluated, 0 of these on positions that are trained")
    assert "P: 8 earn 1 to 1, empty ones -0.38 to -0.38" in lines[2]
    assert "4 prompts x 24 completions = 96 rows a step, 1 update of 96 rows; 40 steps ask 160 prompts" in lines[-1]


def test_the_task_says_how_many_prompts_a_step_asks(run: Any) -> None:
    said = run("task.prompts=2")[-1]
    assert "2 prompts x 24 completions = 48 rows a step, 1 update of 48 rows; 40 steps ask 80 prompts, 2 of" in said


def test_uneven_updates_and_a_batch_that_may_grow_are_told(run: Any) -> None:
    said = run("grpo.minibatches=7", "hardware.fit=true", "hardware.grow=batch")[-1]
    assert "96 rows a step, 7 updates of 13 to 14 rows; 40 steps" in said
    assert "hardware.grow=batch may raise the prompts of a step" in said


def test_positions_that_an_evaluation_leaves_out_are_told(run: Any, tmp_path: Path) -> None:
    rows = (ASSETS / "eval.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    black = [row for row in rows if " b " in row]
    uneven = tmp_path / "uneven.jsonl"
    uneven.write_text("".join([*black[:3], *(row for row in rows if " w " in row)][:11]), encoding="utf-8")
    lines = run("task.order=epochs", f"eval.positions={uneven}")
    assert f"eval.positions: {uneven}: colours=balanced leaves out 5 of 11 positions, with White to move" in lines[0]
    assert any(" 6 evaluated, " in line for line in lines)


@pytest.mark.parametrize("how", ["mix", "phases"])
@pytest.mark.parametrize("option", ["a_games", "a_openings"])
def test_any_a_task_can_be_mixed(how: str, option: str, run: Any) -> None:
    lines = run(f"task=rookworld_{how}", f"+task@task.tasks.A={option}", "reward=rookworld", "grpo.max_new_tokens=128")
    assert any("gold answers   A: " in line for line in lines)


class Letters:
    """A task that asks its letter alone."""

    def __init__(self, letter: str) -> None:
        self.kinds = (letter,)

    def prompts(self) -> tuple[Prompt, ...]:
        return (Prompt(self.kinds[0], (1,), None, self.kinds[0]),)

    def select(self, step: int) -> tuple[Prompt, ...]:
        return self.prompts() * 2

    def gold(self, prompt: Prompt) -> str:
        return ""


def test_phases_are_listed_and_those_that_are_not_reached_fail(capsys: Any) -> None:
    tasks = {"P": Letters("P"), "A": Letters("A")}
    for steps, failed in ((30, []), (10, ["phases"])):
        table = dry_run.Table()
        task = Phases(tasks=tasks, schedule=[("P", 10), ("A", None)], total_steps=steps, sampling={})
        dry_run.phases(table, task, dry_run.steps_of(task, steps), steps)
        assert table.failed == failed
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "ok phase P: steps 1 to 10, P 100.0 %",
        "ok phase A: steps 11 to 30, A 100.0 %",
        "ok phase P: steps 1 to 10, P 100.0 %",
        "FAIL phases the run's 10 steps end before A; raise steps or shorten task.schedule",
    ]


ON_TRAINED = f"eval.positions={{P: {ASSETS}/train.jsonl, A: {ASSETS}/transitions-eval.txt}}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("grpo.max_new_tokens=20",), "FAIL lengths .*grpo.max_new_tokens=20: at least "),
        (
            ("task=rookworld_mix", "reward=rookworld", "task.sampling.A.max_new_tokens=9"),
            "FAIL lengths .*A: .*task.sampling.A.max_new_tokens=9: at least ",
        ),
        (("model=gpt2_tiny", "model.n_positions=90"), "FAIL lengths .*the model has 90 positions"),
        (
            ("task=rookworld_mix", "reward=rookworld", "grpo.max_new_tokens=96", ON_TRAINED),
            "FAIL split .*positions that are trained",
        ),
        (
            (
                "task=rookworld_mix",
                "reward=rookworld",
                "grpo.max_new_tokens=96",
                f"eval.positions={{P: {ASSETS}/train.jsonl}}",
            ),
            "FAIL split .* 160 of these on positions that are trained in prompts of the same kind",
        ),
        ((f"eval.positions={ASSETS}/train.jsonl",), "FAIL split .*4 of these on positions that are trained"),
        (("reward=clipped", "reward.low=-3", "reward.high=-2"), "FAIL gold answers .*no more than an empty one"),
        (
            (
                "task=rookworld",
                f"task.data={RELEASED}",
                "task.p_share=1.0",
                "grpo.max_new_tokens=128",
                "task.black_best=legacy",
            ),
            "FAIL gold answers .*P: .* earn less than the highest, as to 'P: .*: not the reward's best",
        ),
    ],
)
def test_what_does_not_fit_fails(overrides: tuple[str, ...], words: str, run: Any, capsys: Any) -> None:
    with pytest.raises(CheckupFailed, match=re.search(r"FAIL (\w+)", words)[1]):
        run(*overrides)
    assert any(re.search(words, line) for line in capsys.readouterr().out.splitlines())


def test_the_data_sets_rows_are_told_and_mistakes_refused(run: Any, capsys: Any) -> None:
    lines = run("task=rookworld", f"task.data={RELEASED}", "task.p_share=1.0", "grpo.max_new_tokens=128")
    assert any(line.endswith("of 22 rows") for line in lines)
    assert any("8 prompts trained, 2 evaluated, 0 of these" in line for line in lines)
    with pytest.raises(ConfigError, match=r"eval\.positions=.*its own split; eval\.positions=null"):
        run("task=rookworld", f"task.data={RELEASED}", f"eval.positions={ASSETS}/eval.jsonl")
