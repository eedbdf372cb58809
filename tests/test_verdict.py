"""Invariants of the verdict on an overfit run."""

from __future__ import annotations

import numpy as np
import pytest

from rookexp import verdict


def autoregressive(rng: np.random.Generator, rho: float, n: int, count: int) -> np.ndarray:
    noise = rng.standard_normal((count, n))
    noise[:, 0] /= np.sqrt(1 - rho**2)
    for t in range(1, n):
        noise[:, t] += rho * noise[:, t - 1]
    return noise


def judged(reward: np.ndarray, /, **changes: object) -> verdict.Verdict:
    n = len(reward)
    series = {
        "greedy_start": float(reward[0]),
        "greedy_end": float(reward[-1]),
        "steps": np.arange(n),
        "reward": reward,
        "kl_share": np.full(n, 0.2),
        "grad_norm": np.full(n, 0.5),
        "dead_share": (np.arange(n), np.full(n, 0.1)),
    }
    return verdict.judge(**(series | changes))


def rising(n: int = 120) -> np.ndarray:
    return 0.2 + 0.6 * (1 - np.exp(-np.arange(n) / (n / 4))) + 0.03 * np.random.default_rng(0).standard_normal(n)


@pytest.mark.parametrize(
    ("n", "rho", "at_least"), [(40, 0.0, 0.92), (100, 0.0, 0.92), (100, 0.5, 0.92), (100, 0.8, 0.91), (200, 0.95, 0.91)]
)
def test_interval_covers_zero_on_noise_without_trend(n: int, rho: float, at_least: float) -> None:
    noise = 0.5 + 0.1 * autoregressive(np.random.default_rng(1), rho, n, 500)
    slopes = [verdict.moving_average_slope(np.arange(n), row) for row in noise]
    covered = np.mean([slope.low <= 0 <= slope.high for slope in slopes])
    assert at_least <= covered <= 0.98


def test_longer_series_are_judged_by_simulations_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all 50 000 steps of a run would take minutes and gigabytes at its end."""
    simulated: list[int] = []
    of = verdict._calibration
    monkeypatch.setattr(verdict, "LONGEST", 400)
    monkeypatch.setattr(verdict, "_calibration", lambda n: simulated.append(n) or of(n))
    noise = 0.5 + 0.1 * autoregressive(np.random.default_rng(1), 0.8, 2000, 200)
    slopes = [verdict.moving_average_slope(np.arange(2000), row) for row in noise]
    assert set(simulated) == {400}
    assert np.mean([slope.low <= 0 <= slope.high for slope in slopes]) >= 0.93
    assert verdict.moving_average_slope(np.arange(2000), noise[0] + np.linspace(0, 0.2, 2000)).low > 0


@pytest.mark.parametrize("n", [60, 100, 200])
@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize("shape", ["line", "saturating", "sigmoid"])
def test_interval_excludes_zero_on_a_real_trend(n: int, noise: float, shape: str) -> None:
    t = np.arange(n) / n
    trend = {
        "line": 0.3 + 0.5 * t,
        "saturating": 0.9 - 0.7 * np.exp(-6 * t),
        "sigmoid": 0.2 + 0.7 / (1 + np.exp(6 - 12 * t)),
    }
    rng = np.random.default_rng(2)
    found = [
        verdict.moving_average_slope(np.arange(n), trend[shape] + noise * rng.standard_normal(n)) for _ in range(20)
    ]
    assert np.mean([slope.low > 0 for slope in found]) >= 0.9


def test_slope_is_the_least_squares_slope_of_the_moving_average() -> None:
    y = np.random.default_rng(3).standard_normal(90)
    x = 10.0 + 5 * np.arange(90)
    smooth = np.convolve(y, np.full(verdict.WINDOW, 1 / verdict.WINDOW), mode="valid")
    expected = np.polyfit(x[verdict.WINDOW - 1 :], smooth, 1)[0]
    slope = verdict.moving_average_slope(x, y)
    assert slope.value == pytest.approx(expected)
    assert slope.low < slope.value < slope.high


def test_slope_scales_with_the_reward_and_ignores_an_offset() -> None:
    y, x = rising(), np.arange(120)
    one, other = verdict.moving_average_slope(x, y), verdict.moving_average_slope(x, 7 - 3 * y)
    assert (other.low, other.high) == pytest.approx((-3 * one.high, -3 * one.low))


def test_a_naive_interval_would_lie() -> None:
    """The usual least-squares error on the averaged points misses 0 most of the time; this is why it is not used."""
    x = np.arange(100 - verdict.WINDOW + 1)
    missed = 0
    for row in np.random.default_rng(4).standard_normal((200, 100)):
        smooth = np.convolve(row, np.full(verdict.WINDOW, 1 / verdict.WINDOW), mode="valid")
        (slope, _), covariance = np.polyfit(x, smooth, 1, cov=True)
        missed += abs(slope) > 1.96 * np.sqrt(covariance[0, 0])
    assert missed / 200 > 0.4


def test_the_rows_of_a_run_are_judged_as_their_series() -> None:
    """Greedy rewards are those of the first and the last evaluation, slopes are per 100 steps, and NaN is left out."""
    reward = rising()
    every = {"kl_coef": 0.1, "kl_share": 0.2, "grad_norm": 0.5, "frac_reward_zero_std": 0.1}
    rows = [{"step": float(step), "reward/mean": value, **every} for step, value in enumerate(reward, start=1)]
    rows[30]["reward/mean"] = float("nan")
    for step, greedy in ((1, 0.3), (60, 0.9), (120, 0.7)):
        rows[step - 1]["eval/reward"] = greedy
    kept = np.delete(np.arange(120), 30)
    series = {"steps": 1 + kept, "reward": reward[kept], "dead_share": (np.arange(1, 121), np.full(120, 0.1))}
    found = verdict.judge_rows(rows)
    assert found == judged(reward, greedy_start=0.3, greedy_end=0.7, **series)
    assert found.figures["slope"] == pytest.approx(100 * verdict.moving_average_slope(1 + kept, reward[kept]).value)
    free = verdict.judge_rows([row | {"kl_coef": 0.0} for row in rows])
    assert free.reasons[2] == "PASS KL share beside the advantages: no KL term (at most 0.7)"


def test_a_run_that_learns_passes() -> None:
    result = judged(rising())
    assert result.passed, result.reasons
    assert len(result.reasons) == 5
    assert all(reason.startswith("PASS ") for reason in result.reasons)
    assert result.figures["slope_low"] > 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"greedy_end": 0.1}, "greedy reward"),
        ({"greedy_end": float("nan")}, "greedy reward"),
        ({"reward": 0.5 + 0.02 * np.random.default_rng(5).standard_normal(120)}, "slope"),
        ({"reward": np.full(120, 0.3)}, "slope"),
        ({"kl_share": np.r_[np.full(100, 0.1), np.full(20, 0.8)]}, "KL share"),
        ({"kl_share": np.array([])}, "KL share"),
        ({"grad_norm": np.r_[np.full(60, 0.5), np.full(60, 8.0)]}, "gradient norm"),
        ({"grad_norm": np.r_[np.full(119, 0.5), np.nan]}, "gradient norm"),
        ({"grad_norm": np.geomspace(0.1, 10, 120)}, "gradient norm"),
        ({"dead_share": (np.arange(120), np.full(120, 0.95))}, "dead groups"),
    ],
)
def test_each_criterion_fails_alone(changes: dict[str, object], word: str) -> None:
    result = judged(rising(), **changes)
    failed = [reason for reason in result.reasons if reason.startswith("FAIL")]
    assert not result.passed
    assert len(failed) == 1, result.reasons
    assert failed[0].startswith(f"FAIL {word}")


def test_transient_spikes_dead_solved_groups_and_no_kl_term_do_not_fail() -> None:
    norms = np.full(120, 0.5)
    norms[[30, 90]] = 40.0  # one spike in twenty steps
    norms[50:60] = 0.0
    share = np.full(120, 0.9)
    share[-11:] = 0.1
    dead = np.where(np.arange(120) < 70, 0.1, 1.0)
    reward = np.r_[np.linspace(0.1, 1.0, 70), np.ones(50)]
    changes = {"grad_norm": norms, "kl_share": share, "dead_share": (np.arange(120), dead)}
    assert judged(reward, **changes).passed
    assert judged(rising(), kl_share=None).passed


def test_groups_are_dead_too_soon_only_before_95_percent_of_the_rise() -> None:
    steps, reward = 100 + np.arange(120), np.r_[np.linspace(0.5, 2.5, 31), np.full(89, 2.5)]
    means = [reward[max(0, i - verdict.WINDOW + 1) : i + 1].mean() for i in range(120)]
    end = next(i for i, mean in enumerate(means) if mean >= 0.5 + 0.95 * 2)
    assert 30 < end < 60
    dead = np.arange(120) / 120
    result = judged(reward, steps=steps, dead_share=(steps, dead))
    assert result.figures["dead_share"] == pytest.approx(dead[: end + 1].mean())
    falling = judged(reward[::-1].copy(), steps=steps, dead_share=(steps, dead))
    assert falling.figures["dead_share"] == pytest.approx(dead.mean())


def test_a_reward_that_never_moves_has_no_slope_and_no_interval() -> None:
    result = judged(np.full(60, 0.3))
    assert [result.figures[name] for name in ("slope", "slope_low", "slope_high", "autocorrelation")] == [0, 0, 0, 0]
    assert not result.passed


def test_gradient_norms_of_dead_steps_do_not_count_and_none_at_all_are_not_steady() -> None:
    norms = np.r_[np.full(30, 0.5), np.full(30, 1.0)]
    assert verdict.grad_growth(norms) == 2
    assert verdict.grad_growth(np.insert(norms, np.repeat(np.arange(60), 2), 0.0)) == 2
    assert verdict.grad_growth(norms[30 - 9 : 30 + 10]) == 1  # no whole window
    assert verdict.grad_growth([]) == np.inf


def test_forty_values_are_enough() -> None:
    assert len(judged(rising(verdict.MIN_VALUES)).reasons) == 5


def test_too_few_steps_do_not_pass() -> None:
    result = judged(np.linspace(0, 1, verdict.MIN_VALUES - 1))
    assert not result.passed
    assert result.reasons[0].startswith("FAIL length: 39 rollout rewards")


def test_a_rise_that_is_over_early_says_so() -> None:
    result = judged(np.r_[np.full(5, 0.1), np.full(195, 0.9)] + 0.02 * np.random.default_rng(6).standard_normal(200))
    (failed,) = [reason for reason in result.reasons if reason.startswith("FAIL")]
    assert "judge a shorter run" in failed


def rows_of(reward: np.ndarray, eval_every: int) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = [{"step": 0, "eval/reward": float(reward[0])}]
    for step, value in enumerate(reward[1:], start=1):
        row: dict[str, float | None] = {"step": step, "reward/mean": float(value) - 0.1, "kl_coef": 0.005}
        row |= {"kl_share": 0.1, "grad_norm": 0.5, "frac_reward_zero_std": 0.2}
        if step % eval_every == 0:
            row["eval/reward"] = float(value)
        rows.append(row)
    return rows


def test_how_often_a_run_is_evaluated_does_not_decide_whether_it_learns() -> None:
    rows = rows_of(rising(121), 1)
    # Four prompts, each solved once and for good: greedy rewards in four steps without noise, like a random walk's.
    for row in rows:
        row["eval/reward"] = sum(int(row["step"] or 0) >= solved for solved in (20, 45, 70, 95)) / 4
    every = verdict.judge_rows(rows)
    now_and_then = verdict.judge_rows(
        [{k: v for k, v in row.items() if k != "eval/reward" or int(row["step"] or 0) % 10 == 0} for row in rows]
    )
    assert every.passed, every.reasons
    assert every == now_and_then
    assert every.figures["values"] == 120


def test_rows_without_a_kl_share_fail_only_where_a_coefficient_is_on() -> None:
    rows = [{k: v for k, v in row.items() if k != "kl_share"} for row in rows_of(rising(121), 1)]
    assert not verdict.judge_rows(rows).passed
    assert verdict.judge_rows([row | {"kl_coef": 0.0} for row in rows]).passed


def test_a_run_begins_at_its_first_evaluation_and_without_one_does_not_pass() -> None:
    rows = rows_of(rising(121), 10)
    assert verdict.judge_rows(rows).figures["greedy_start"] == rows[0]["eval/reward"]
    never = verdict.judge_rows([{k: v for k, v in row.items() if k != "eval/reward"} for row in rows])
    assert np.isnan([never.figures["greedy_start"], never.figures["greedy_end"]]).all()
    assert [reason[:19] for reason in never.reasons if reason.startswith("FAIL")] == ["FAIL greedy reward:"]


def test_a_penalty_that_is_warmed_up_counts() -> None:
    rows = [row | {"kl_share": 0.9, "kl_coef": 0.0 if row["step"] < 9 else 0.1} for row in rows_of(rising(121), 1)]
    assert [reason[:13] for reason in verdict.judge_rows(rows).reasons if reason.startswith("FAIL")] == [
        "FAIL KL share"
    ]


def test_a_null_gradient_norm_fails() -> None:
    rows = rows_of(rising(121), 1)
    rows[60]["grad_norm"] = None
    result = verdict.judge_rows(rows)
    assert [reason for reason in result.reasons if reason.startswith("FAIL gradient norm")]


# ---- the parts of it ------------------------------------------------------------------------------------------------


def test_the_moving_average_is_of_the_last_values_and_of_fewer_at_the_start() -> None:
    y = np.random.default_rng(0).standard_normal(50)
    plain = [y[max(0, i - verdict.WINDOW + 1) : i + 1].mean() for i in range(50)]
    assert verdict.moving_average(y) == pytest.approx(np.array(plain))


def test_the_interval_is_a_step_of_x_as_the_slope_is() -> None:
    y = rising()
    every, fifth = (verdict.moving_average_slope(7.0 + spacing * np.arange(120), y) for spacing in (1, 5))
    for name in ("value", "low", "high"):
        assert getattr(fifth, name) == pytest.approx(getattr(every, name) / 5)


def test_the_noise_is_what_a_quintic_leaves_and_its_error_a_bartlett_sum() -> None:
    n = 60
    y, x = np.random.default_rng(0).standard_normal(n), np.linspace(-1, 1, n)
    errors = verdict._residuals(y, verdict._trend_basis(n))
    assert errors == pytest.approx(y - np.polyval(np.polyfit(x, y, 5), x))
    assert verdict._lag_one(errors) == pytest.approx(np.dot(errors[1:], errors[:-1]) / np.dot(errors, errors))
    weights = verdict._slope_weights(n)
    scores, lags = errors * weights, np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    kernel = np.maximum(1 - lags / (verdict.WINDOW + 1), 0)
    assert verdict._standard_error(errors, weights) == pytest.approx(np.sqrt(scores @ kernel @ scores))


@pytest.mark.parametrize(
    ("jump", "low", "value", "told"),
    [(22, -0.1, 0.1, True), (23, -0.1, 0.1, False), (5, 0.1, 0.2, False), (5, -0.1, 0.0, False), (5, 0.0, 0.1, True)],
)
def test_a_rise_is_over_early_within_the_first_third(jump: int, low: float, value: float, told: bool) -> None:
    """The mean of 20 has 95 % of a jump at its 19th value."""
    x, y = 100 + np.arange(121.0), (np.arange(121) >= jump).astype(float)
    said = verdict._hint(x, y, verdict.Slope(value, low, 0.3, 0.0))
    assert (f"over by step {100 + jump + 18}," in said) is told
    assert bool(said) is told


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({"kl_share": np.full(120, 0.7)}, True),
        ({"grad_norm": np.r_[np.full(60, 0.5), np.full(60, 5.0)]}, True),
        ({"dead_share": ([5], [0.9])}, True),
        ({"greedy_start": 0.5, "greedy_end": 0.5}, False),
    ],
)
def test_a_limit_itself_is_allowed_and_no_gain_is_no_learning(changes: dict[str, object], passed: bool) -> None:
    assert judged(rising(), **changes).passed is passed


def test_dead_groups_count_as_far_as_they_were_logged() -> None:
    reward = rising()
    late = judged(reward, dead_share=(np.arange(110, 120), np.linspace(0.2, 0.4, 10)))
    assert late.figures["dead_share"] == pytest.approx(0.3), "all, if none is of the time of learning"
    assert "dead groups: 0.30 while learning" in late.reasons[-1]
    never = judged(reward, dead_share=(np.array([]), np.array([])))
    assert np.isnan(never.figures["dead_share"])
    assert never.reasons[-1].startswith("PASS dead groups: not logged")


def test_the_reasons_have_the_figures() -> None:
    result = judged(rising())
    slope = result.figures["slope"]
    assert (
        f"rollout reward: {slope:+.4f} per 100 steps, 95 % interval [{result.figures['slope_low']:+.4f}, "
        in (result.reasons[1])
    )
    assert "KL share beside the advantages: median of the last 20 steps 0.20 (at most" in result.reasons[2]
    assert "KL share beside the advantages: no KL term (" in judged(rising(), kl_share=None).reasons[2]


def test_one_window_of_gradient_norms_is_judged_by_itself() -> None:
    norms = np.geomspace(1, 100, verdict.WINDOW)
    assert verdict.grad_growth(norms) == pytest.approx(np.quantile(norms, 0.9) / np.median(norms))
    assert verdict.grad_growth(norms[1:]) == 1
