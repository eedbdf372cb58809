"""How beta moves: step by step against each law, at its bounds, and resumed at any step."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rookexp.coefficients import AdaptiveKL, AnnealKL, Coefficient, FixedKL, NoKL, PpoRuleKL, ProportionalKL, WarmupKL
from rookexp.config import check, nodes
from rookexp.errors import ConfigError

STEP = {"tokens": 2240, "rows": 256}
BOUNDS = {"min_coef": 0.001, "max_coef": 1.0}
ADAPTIVE = {"band_low": 0.8, "band_high": 1.25, "up": 1.5, "down": 0.5}
CONF = Path(__file__).resolve().parent.parent / "conf" / "kl"


def adaptive(coef: float = 0.2, **changes: float) -> AdaptiveKL:
    return AdaptiveKL(**{"coef": coef, "target_nats": 0.1} | ADAPTIVE | BOUNDS | changes)


def ppo_rule(coef: float = 0.2, **changes: float) -> PpoRuleKL:
    return PpoRuleKL(**{"coef": coef, "target_nats": 0.1} | BOUNDS | changes)


def proportional(coef: float = 0.2, **changes: float) -> ProportionalKL:
    settings = {"coef": coef, "target_nats": 0.1, "error_clip": 0.2, "horizon": 10_000}
    return ProportionalKL(**settings | BOUNDS | changes)


MAKERS: list[Callable[[], Coefficient]] = [
    NoKL,
    lambda: FixedKL(coef=0.1),
    lambda: WarmupKL(coef=0.1, warmup=3, unit="steps", shape="linear"),
    lambda: WarmupKL(coef=0.1, warmup=5000, unit="tokens", shape="linear"),
    lambda: AnnealKL(start_coef=0.3, end_coef=0.1, anneal_steps=3),
    adaptive,
    ppo_rule,
    proportional,
]
CONTROLLERS = [adaptive, ppo_rule, lambda coef=0.2, **changes: proportional(coef, horizon=256, **changes)]
every = pytest.mark.parametrize("make", MAKERS)
controllers = pytest.mark.parametrize("make", CONTROLLERS)


@controllers
@pytest.mark.parametrize("bound", BOUNDS.values())
def test_a_start_at_a_bound_is_allowed(make, bound):
    assert make(bound).coefficient() == bound


# ---- all -----------------------------------------------------------------------------------------------------------


def state(coefficient: Coefficient) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in coefficient.state_dict().items()}


@every
@pytest.mark.parametrize("kl_nats", [-0.05, -1e-6, float("nan")])
def test_a_signed_estimator_is_refused_and_moves_nothing(make, kl_nats):
    coefficient = make()
    before = state(coefficient)
    with pytest.raises(ValueError, match="never negative"):
        coefficient.observe(kl_nats, **STEP)
    assert before == coefficient.state_dict()
    coefficient.observe(0.0, **STEP)


@every
def test_resumed_after_every_step_is_straight_bitwise(make):
    straight = make()
    for kl_nats in [0.0, 0.3, 0.11, 0.012, 0.7, 1 / 3]:
        resumed = make()
        resumed.load_state_dict(state(straight))
        assert resumed.coefficient() == straight.coefficient()
        for coefficient in (straight, resumed):
            coefficient.observe(kl_nats, **STEP)
        assert resumed.coefficient() == straight.coefficient()
        assert resumed.state_dict() == straight.state_dict()


def test_only_a_coefficient_that_stays_zero_needs_no_reference():
    assert not NoKL().can_be_nonzero
    assert FixedKL(coef=0.04).can_be_nonzero
    assert not FixedKL(coef=0.0).can_be_nonzero
    assert WarmupKL(coef=0.1, warmup=9, unit="steps", shape="switch").can_be_nonzero
    assert not WarmupKL(coef=0.0, warmup=9, unit="steps", shape="switch").can_be_nonzero
    assert AnnealKL(start_coef=0.0, end_coef=0.1, anneal_steps=2).can_be_nonzero
    assert AnnealKL(start_coef=0.1, end_coef=0.0, anneal_steps=2).can_be_nonzero
    assert not AnnealKL(start_coef=0.0, end_coef=0.0, anneal_steps=2).can_be_nonzero
    assert all(make().can_be_nonzero for make in CONTROLLERS)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_yaml_of_every_coefficient_builds_it(path):
    config = OmegaConf.to_container(OmegaConf.create({"steps": 7, "kl": OmegaConf.load(path)}), resolve=True)
    check.check_node(config["kl"], "kl")
    coefficient = nodes.make(config["kl"])
    for _ in range(30):
        assert 0 <= coefficient.coefficient() <= 0.05
        coefficient.observe(0.2, **STEP)
    assert (coefficient.coefficient() > 0) == coefficient.can_be_nonzero


# ---- known in advance ----------------------------------------------------------------------------------------------


def test_none_and_fixed():
    assert NoKL().coefficient() == 0
    assert FixedKL(coef=0.04).coefficient() == 0.04


@pytest.mark.parametrize(
    ("shape", "unit", "warmup", "expected"),
    [
        ("switch", "steps", 3, [0, 0, 0, 0.4, 0.4]),
        ("linear", "steps", 4, [0, 0.1, 0.2, 0.3, 0.4, 0.4]),
        ("switch", "steps", 0, [0.4, 0.4]),
        ("linear", "steps", 0, [0.4, 0.4]),
        ("switch", "tokens", 30, [0, 0, 0, 0.4, 0.4]),
        ("switch", "tokens", 31, [0, 0, 0, 0, 0.4]),
        ("linear", "tokens", 40, [0, 0.1, 0.2, 0.3, 0.4, 0.4]),
        ("linear", "tokens", 25, [0, 0.16, 0.32, 0.4]),
        ("linear", "tokens", 0, [0.4, 0.4]),
    ],
)
def test_warmup_step_by_step(shape, unit, warmup, expected):
    coefficient = WarmupKL(coef=0.4, warmup=warmup, unit=unit, shape=shape)
    for value in expected:
        assert coefficient.coefficient() == pytest.approx(value)
        coefficient.observe(0.1, tokens=10, rows=4)


@pytest.mark.parametrize(
    ("tokens", "beta"), [(2_240, 1.12e-5), (100_000, 5e-4), (200_000, 1e-3), (200_001, 1e-3), (10**9, 1e-3)]
)
def test_golden_token_warmup(tokens, beta):
    coefficient = WarmupKL(coef=1e-3, warmup=200_000, unit="tokens", shape="linear")
    coefficient.observe(0.1, tokens=tokens, rows=4)
    assert coefficient.coefficient() == pytest.approx(beta, rel=1e-12)


@pytest.mark.parametrize(("start", "end"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.0), (0.0, 0.2)])
def test_anneal_step_by_step(start, end):
    coefficient = AnnealKL(start_coef=start, end_coef=end, anneal_steps=4)
    assert coefficient.coefficient() == start
    for share in [0, 0.25, 0.5, 0.75, 1, 1, 1]:
        assert coefficient.coefficient() == pytest.approx(start + (end - start) * share)
        coefficient.observe(0.1, **STEP)
    assert coefficient.coefficient() == end


# ---- steered by the divergence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kl_nats", "beta"),
    [
        (proportional, 0.3, 0.201024),
        (proportional, 0.11, 0.200512),
        (proportional, 0.1, 0.2),
        (proportional, 0.01, 0.198976),
        (proportional, float("inf"), 0.201024),
        (ppo_rule, 0.151, 0.4),
        (ppo_rule, 0.149, 0.2),
        (ppo_rule, 0.067, 0.2),
        (ppo_rule, 0.066, 0.1),
        (ppo_rule, 0.0, 0.1),
        (adaptive, 0.126, 0.3),
        (adaptive, 0.124, 0.2),
        (adaptive, 0.081, 0.2),
        (adaptive, 0.079, 0.1),
        (adaptive, float("inf"), 0.3),
    ],
)
def test_golden_step(make, kl_nats, beta):
    coefficient = make(0.2)
    coefficient.observe(kl_nats, tokens=5, rows=256)
    assert coefficient.coefficient() == pytest.approx(beta, rel=1e-12)


def test_the_proportional_law_counts_completions():
    coefficient = proportional(horizon=1000)
    coefficient.observe(0.3, tokens=9, rows=500)
    assert coefficient.coefficient() == pytest.approx(0.2 * 1.1)
    coefficient.observe(0.0, tokens=9, rows=500_000)  # 1 + e n / horizon is below 0
    assert coefficient.coefficient() == BOUNDS["min_coef"]


@controllers
def test_twice_the_target_raises_beta_to_its_cap_step_by_step(make):
    """R27: a controller that sees the divergence, not beta times it, cannot stop before the cap."""
    coefficient, seen = make(0.01), []
    while len(seen) < 40:
        seen.append(coefficient.coefficient())
        coefficient.observe(0.2, **STEP)
    top = seen.index(1.0)
    assert all(before < after for before, after in pairwise(seen[: top + 1]))
    assert set(seen[top:]) == {1.0}


@controllers
def test_below_the_target_beta_falls_to_its_floor_and_comes_back(make):
    coefficient = make(0.01)
    for _ in range(60):
        before = coefficient.coefficient()
        coefficient.observe(0.0, **STEP)
        assert coefficient.coefficient() <= before
    assert coefficient.coefficient() == BOUNDS["min_coef"]
    coefficient.observe(0.2, **STEP)
    assert coefficient.coefficient() > BOUNDS["min_coef"]


@controllers
@settings(max_examples=30)
@given(seen=st.lists(st.floats(0, 1e6), max_size=20))
def test_beta_stays_within_its_bounds_and_rests_at_the_target(make, seen):
    coefficient = make(0.01)
    for kl_nats in seen:
        coefficient.observe(kl_nats, **STEP)
        assert BOUNDS["min_coef"] <= coefficient.coefficient() <= BOUNDS["max_coef"]
    before = coefficient.coefficient()
    coefficient.observe(0.1, **STEP)
    assert coefficient.coefficient() == before


def test_a_band_from_zero_never_lowers():
    coefficient = adaptive(band_low=0.0)
    coefficient.observe(0.0, **STEP)
    assert coefficient.coefficient() == 0.2


@controllers
@pytest.mark.parametrize("changes", [{"min_coef": 0.3}, {"max_coef": 0.1}, {"min_coef": 2.0}])
def test_a_start_outside_the_bounds_is_refused(make, changes):
    with pytest.raises(ConfigError, match="kl.coef=0.2: allowed: from kl.min_coef="):
        make(0.2, **changes)


@pytest.mark.parametrize("name", ["adaptive", "proportional", "ppo_rule"])
def test_a_floor_of_zero_is_refused_because_a_product_never_leaves_it(name):
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    with pytest.raises(ConfigError, match="kl.min_coef=0.0: allowed: a number > 0"):
        check.check_node(node | {"min_coef": 0.0}, "kl")


@pytest.mark.parametrize("given", [-0.1, math.nan, math.inf, None, "0.1", torch.tensor([0.1])])
def test_what_user_code_may_not_give_is_refused(given):
    class Own(Coefficient):
        can_be_nonzero = True

        def coefficient(self):
            return given

    with pytest.raises(ConfigError, match=r"^kl=Own: coefficient gave .*; wanted: a finite number >= 0$"):
        Own().now()


def test_a_coefficient_that_said_it_stays_zero_must():
    class Own(NoKL):
        def coefficient(self):
            return 0.1

    assert NoKL().now() == 0
    with pytest.raises(ConfigError, match=r"^kl=Own: coefficient gave 0\.1; wanted: 0, as can_be_nonzero is False$"):
        Own().now()
