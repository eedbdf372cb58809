"""The end of a run: what is shown, and where."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from rookexp.run_folder import report
from rookexp.verdict import Verdict

PNG = b"\x89PNG\r\n"


def rows_of(steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"step": 0, "eval/best": 0.1, "eval/reward": 0.25, "eval/best_is_engine_white": 0.0}]
    for step in range(1, steps + 1):
        row = {"step": step, "reward/mean": step / steps, "kl": 0.01, "entropy": 1.0, "grad_norm": 0.5, "step_s": 2.0}
        rows.append(row | {"tokens_per_s": 100.0 * step})
    rows[-1] |= {"eval/best": 0.6, "eval/reward": 0.75, "eval/best_is_engine_white": 0.5, "kl": None}
    return rows


def completions_of(*steps: int) -> list[dict[str, Any]]:
    return [
        {"step": step, "prompt": f"P: [{i}]", "completion": f" M: e2e4\n{step}-{i}", "reward": step / 10}
        for step in steps
        for i in range(4)
    ]


def shown(rows: Any, completions: Any, verdict: Verdict | None) -> str:
    out = io.StringIO()
    report.show(rows, completions, verdict, Path("outputs/run [1]"), samples=3, file=out)
    return out.getvalue()


def test_report_shows_table_samples_verdict_cost_and_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shown(rows_of(5), completions_of(0, 2, 5), Verdict(False, ("PASS a: 1 (b)", "FAIL c: 2 (d)"), {}))
    assert "\x1b" not in text
    assert [line.split() for line in text.splitlines() if line.startswith("  reward")] == [
        ["reward", "0.250", "0.750", "+0.500"]
    ]
    assert text.index("reward ") < text.index("best ")
    assert text.count("before  0.000  M: e2e4 0-") == 3
    assert text.count("after   0.500  M: e2e4 5-") == 3
    assert "P: [0]" in text  # brackets are no markup
    assert "PASS a: 1 (b)\nFAIL c: 2 (d)\nverdict: FAIL\n" in text
    assert text.endswith(
        "5 steps in 10s, 300 tokens/s\ncurves: outputs/run [1]/curves.png\nrun folder: outputs/run [1]\n"
    )


@pytest.mark.parametrize(("text", "said"), [(" \n\t ", "(4 characters, all of them space)"), ("", "(empty)")])
def test_an_answer_without_a_word_is_seen(text: str, said: str) -> None:
    answers = [row | {"completion": text} for row in completions_of(0, 5)]
    assert f"before  0.000  {said}\n" in shown(rows_of(5), answers, None)


def test_report_of_a_run_that_logged_little(tmp_path: Path) -> None:
    assert (
        shown([{"step": 3}], [], None) == "3 steps\ncurves: outputs/run [1]/curves.png\nrun folder: outputs/run [1]\n"
    )
    assert shown([], [], None).startswith("0 steps")
    report.plot([], tmp_path / "empty.png", title="nothing")
    assert (tmp_path / "empty.png").read_bytes().startswith(PNG)


def test_a_narrow_scale_of_norms_has_labels() -> None:
    axes = Figure().add_subplot()
    report._grad_norm(axes, [{"step": step, "grad_norm": 1 + 0.1 * step} for step in range(1, 4)])
    low, high = axes.get_ylim()
    assert sum(low <= at <= high for at in axes.yaxis.get_majorticklocs()) >= 3


@pytest.mark.parametrize("first", [1.0, 0.0])
def test_norms_are_on_a_log_scale_if_the_axis_says_so(first: float) -> None:
    axes = Figure().add_subplot()
    report._grad_norm(axes, [{"step": 1, "grad_norm": first}, {"step": 2, "grad_norm": 10.0}])
    assert ("log" in axes.get_ylabel()) == (axes.get_yscale() == "log") == (first > 0)


def test_samples_are_the_same_prompts_before_and_after() -> None:
    completions = completions_of(0, 5)
    del completions[4]  # prompt 0 has no completion at the end
    found = report.pairs(completions, 2)
    assert [(before["prompt"], after["step"]) for before, after in found] == [("P: [1]", 5), ("P: [2]", 5)]


def test_a_terminal_gets_colours() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        report.show(rows_of(5), [], Verdict(True, ("PASS a",), {}), Path("run"), samples=3, file=out)
    assert "\x1b[32m" in out.getvalue()


@pytest.mark.parametrize("steps", [5, 60])
def test_plot_writes_a_png(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "new" / "curves.png"
    report.plot(rows_of(steps), path, title="run")
    assert path.read_bytes().startswith(PNG)
