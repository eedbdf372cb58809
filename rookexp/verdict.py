"""Did an overfit run learn? Five criteria over per-step series; numbers in, a judgement with its reasons out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Real

Series = Real[np.ndarray, "..."] | Sequence[float]
Array = Float[np.ndarray, "..."]
Rows = Sequence[Mapping[str, Any]]

WINDOW = 20  # values in the moving average, and steps in "the last steps"
MIN_VALUES = 2 * WINDOW  # fewer do not tell a trend from noise
KL_SHARE_LIMIT = 0.7
GRAD_GROWTH_LIMIT = 10.0
DEAD_SHARE_LIMIT = 0.9
LEARNT = 0.95  # share of the moving average's rise after which dead groups count as solved

# The noise model of the interval: the residuals of the series around a polynomial are first-order autoregressive. A
# lower degree does not follow a reward that rises fast and then stays, and takes the misfit for noise.
TREND_DEGREE = 5
RHOS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99)
SIMULATIONS = 1000
LONGEST = 4000  # values of a simulated series; at 8000 the interval is 2 % apart, 8 % narrower at 0.99
RHO_QUANTILE = 0.25  # the assumed autocorrelation is the one of which a quarter of estimates are below the measured one


@dataclass(frozen=True, slots=True)
class Slope:
    """Slope of a moving average with its 95 % confidence interval, in units of y per unit of x."""

    value: float
    low: float
    high: float
    autocorrelation: float  # lag-1 autocorrelation of the noise that the interval assumes


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement and what it rests on."""

    passed: bool  # every criterion holds
    reasons: tuple[str, ...]  # `PASS name: value (limit)` or `FAIL ...`, one line a criterion
    figures: dict[str, float]  # the numbers in the reasons; NaN = not applicable


def judge_rows(rows: Rows) -> Verdict:
    """The verdict on a run's metrics, one mapping a step as in metrics.jsonl.

    The slope is that of `reward/mean`, however often there is an evaluation: greedy rewards of a few prompts rise in
    steps without noise between them, which no interval can tell from a random walk. Start and end are greedy.
    """
    _, greedy = column(rows, "eval/reward")
    steps, reward = column(rows, "reward/mean")
    return judge(
        greedy_start=float(greedy[0]) if len(greedy) else float("nan"),
        greedy_end=float(greedy[-1]) if len(greedy) else float("nan"),
        steps=steps,
        reward=reward,
        kl_share=column(rows, "kl_share")[1] if np.any(column(rows, "kl_coef")[1]) else None,
        grad_norm=np.array([_number(row["grad_norm"]) for row in rows if "grad_norm" in row]),
        dead_share=column(rows, "frac_reward_zero_std"),
    )


def judge(
    *,
    greedy_start: float,
    greedy_end: float,
    steps: Series,
    reward: Series,
    kl_share: Series | None,
    grad_norm: Series,
    dead_share: tuple[Series, Series],
) -> Verdict:
    """The verdict on series of at least 40 values; shorter ones fail.

    `kl_share` is beta KL / (beta KL + mean |advantage|) per step, both token means: how large the penalty is beside the
    advantages. It is no share of the loss, whose policy term is 0 on-policy whatever its gradient. None: no KL term.
    `dead_share` is (steps, share of groups whose rewards are all equal); it counts until the reward has made 95 % of
    its rise, because solved groups are dead too.
    """
    x, y = np.asarray(steps, float), np.asarray(reward, float)
    if len(y) < MIN_VALUES:
        reason = f"FAIL length: {len(y)} rollout rewards (at least {MIN_VALUES}, else noise looks like a trend)"
        return Verdict(False, (reason,), {"values": float(len(y))})
    slope = moving_average_slope(x, y)
    late_kl = (
        float(np.median(np.asarray(kl_share, float)[-WINDOW:])) if kl_share is not None and len(kl_share) else np.nan
    )
    growth = grad_growth(grad_norm)
    dead = _dead_share(x, y, np.asarray(dead_share[0], float), np.asarray(dead_share[1], float))
    dead_text = "not logged" if np.isnan(dead) else f"{dead:.2f} while learning"
    per_100 = [100 * value for value in (slope.value, slope.low, slope.high)]
    digits = ".1g" if abs(late_kl) < 0.005 else ".2f"
    kl_text = "no KL term" if kl_share is None else f"median of the last {WINDOW} steps {late_kl:{digits}}"
    criteria = (
        (greedy_end > greedy_start, f"greedy reward: {greedy_start:.3f} -> {greedy_end:.3f} (higher at the end)"),
        (
            slope.low > 0,
            f"slope of the {WINDOW}-value mean of the rollout reward: {per_100[0]:+.4f} per 100 steps, "
            f"95 % interval [{per_100[1]:+.4f}, {per_100[2]:+.4f}] (above 0){_hint(x, y, slope)}",
        ),
        (
            kl_share is None or late_kl <= KL_SHARE_LIMIT,
            f"KL share beside the advantages: {kl_text} (at most {KL_SHARE_LIMIT})",
        ),
        (
            growth <= GRAD_GROWTH_LIMIT,
            f"gradient norm: worst {WINDOW} steps {growth:.2f} x the first (finite, at most {GRAD_GROWTH_LIMIT:g} x)",
        ),
        (
            not dead > DEAD_SHARE_LIMIT,
            f"dead groups: {dead_text} (at most {DEAD_SHARE_LIMIT})",
        ),
    )
    figures = {
        "values": float(len(y)),
        "greedy_start": greedy_start,
        "greedy_end": greedy_end,
        "slope": per_100[0],
        "slope_low": per_100[1],
        "slope_high": per_100[2],
        "autocorrelation": slope.autocorrelation,
        "kl_share": late_kl,
        "grad_growth": growth,
        "dead_share": dead,
    }
    reasons = tuple(f"{'PASS' if ok else 'FAIL'} {text}" for ok, text in criteria)
    return Verdict(all(ok for ok, _ in criteria), reasons, figures)


def column(rows: Rows, name: str) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Steps and values of a metric, where it was logged and is finite."""
    pairs = [(row["step"], _number(row[name])) for row in rows if name in row]
    pairs = [(step, value) for step, value in pairs if np.isfinite(value)]
    return np.array([step for step, _ in pairs], float), np.array([value for _, value in pairs], float)


def moving_average(y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """At each value the mean of the last `WINDOW` values up to it, of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(y)])
    last = np.arange(1, len(y) + 1)
    first = np.maximum(last - WINDOW, 0)
    return (sums[last] - sums[first]) / (last - first)


def moving_average_slope(x: Real[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Slope:
    """Least-squares slope of the full-window moving average of n >= 40 values, evenly spaced, with a 95 % interval.

    The slope is a fixed weighted sum of y, so the averaging, which correlates neighbouring points, needs no correction;
    the correlation of y's own noise does. Its standard error is a Bartlett sum over lags up to the window (Newey and
    West 1987), and in place of 1.96 it uses the 95 % quantile of |slope| / error over series of the same length, or of
    `LONGEST`, without trend, whose first-order autocorrelation is that of y around a quintic, corrected for what the
    quintic hides.
    Measured coverage of 0 without trend: white noise 0.94 with 100 values, 0.96 with 45; autocorrelation 0.8: 0.94 and
    0.92; 0.95: 0.90 and 0.86; a random walk: 0.82, half of the misses a rise. White noise on top hides how slowly a
    level wanders: around a level of autocorrelation 0.97 with as much white noise on top, 0 is missed in up to a
    quarter of series. A rise much faster than a tenth of the series looks like one step of a random walk, and the
    interval then includes 0.
    """
    n = len(y)
    if np.ptp(y) == 0:
        return Slope(0.0, 0.0, 0.0, 0.0)
    weights, errors = _slope_weights(n), _residuals(y, _trend_basis(n))
    looks, critical = _calibration(min(n, LONGEST))
    rho = float(np.interp(_lag_one(errors), looks, RHOS))
    value = float(y @ weights)
    half = float(np.interp(rho, RHOS, critical) * _standard_error(errors, weights))
    spacing = float(x[-1] - x[0]) / (n - 1)
    return Slope(value / spacing, (value - half) / spacing, (value + half) / spacing, rho)


def grad_growth(grad_norm: Series) -> float:
    """The worst window's 90th percentile over the first window's median; infinite when a norm is not finite.

    The percentile forgives one spike in twenty; steps whose norm is 0 (every group dead) do not count.
    """
    norms = np.asarray(grad_norm, float)
    if not len(norms) or not np.isfinite(norms).all():
        return float("inf")
    norms = norms[norms > 0]
    if len(norms) < WINDOW:
        return 1.0
    windows = np.lib.stride_tricks.sliding_window_view(norms, WINDOW)
    return float(np.quantile(windows, 0.9, axis=1).max() / np.median(norms[:WINDOW]))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _rise_end(x: Array, y: Array) -> float:
    """The step at which the moving average has made 95 % of its rise; the last step when there is none."""
    smooth = moving_average(y)
    rise = smooth.max() - y[0]
    return float(x[np.argmax(smooth >= y[0] + LEARNT * rise)]) if rise > 0 else float(x[-1])


def _dead_share(x: Array, y: Array, dead_x: Array, dead: Array) -> float:
    learning = dead[dead_x <= _rise_end(x, y)]
    return float(learning.mean()) if len(learning) else (float(dead.mean()) if len(dead) else float("nan"))


def _hint(x: Array, y: Array, slope: Slope) -> str:
    end = _rise_end(x, y)
    if slope.low > 0 or slope.value <= 0 or end > x[0] + (x[-1] - x[0]) / 3:
        return ""
    return f"; most of the rise was over by step {end:g}, judge a shorter run or lower the learning rate"


def _slope_weights(n: int) -> Array:
    """w with w @ y = the least-squares slope, per value, of the full-window moving average of y."""
    points = n - WINDOW + 1
    centred = np.arange(points) - (points - 1) / 2
    return np.convolve(centred / (centred @ centred), np.full(WINDOW, 1 / WINDOW))


def _trend_basis(n: int) -> Array:
    return np.linalg.qr(np.vander(np.linspace(-1, 1, n), TREND_DEGREE + 1))[0]


def _residuals(y: Array, basis: Array) -> Array:
    return y - (y @ basis) @ basis.T


def _lag_one(errors: Array) -> Array | float:
    return (errors[..., 1:] * errors[..., :-1]).sum(-1) / np.maximum((errors**2).sum(-1), 1e-300)


def _standard_error(errors: Array, weights: Array) -> Array | float:
    scores = errors * weights
    variance = (scores**2).sum(-1)
    for lag in range(1, WINDOW + 1):
        variance = variance + 2 * (1 - lag / (WINDOW + 1)) * (scores[..., lag:] * scores[..., :-lag]).sum(-1)
    return np.sqrt(np.maximum(variance, 0))


@lru_cache(maxsize=8)
def _calibration(n: int) -> tuple[Array, Array]:
    """For each of RHOS: the lag-1 autocorrelation that it shows around a quintic; the 95 % point of |slope| / error."""
    weights, basis = _slope_weights(n), _trend_basis(n)
    looks, critical = [], []
    for rho in RHOS:
        noise = np.random.default_rng(0).standard_normal((SIMULATIONS, n))
        noise[:, 0] /= np.sqrt(1 - rho**2)
        for t in range(1, n):
            noise[:, t] += rho * noise[:, t - 1]
        errors = _residuals(noise, basis)
        looks.append(np.quantile(_lag_one(errors), RHO_QUANTILE))
        critical.append(np.quantile(np.abs(noise @ weights) / _standard_error(errors, weights), 0.95))
    return np.maximum.accumulate(np.array(looks)), np.array(critical)
