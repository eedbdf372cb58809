"""Outcome-level advantages against the conventions of the frameworks, and what each convention may not break."""

import statistics
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from rookexp.baselines import (
    EMA_TASKS,
    Adaptive,
    Ema,
    GroupMean,
    LeaveOneOut,
    MaxRL,
    NoBaseline,
    Process,
    Rloo,
)
from rookexp.config import check, nodes
from rookexp.errors import ConfigError
from rookexp.returns import Baseline, TokenRewards, at_last_token
from rookexp.types import Scores

CONF = Path(__file__).resolve().parent.parent / "conf" / "baseline"
R = torch.tensor([[1, 0, 0.5, 0]], dtype=torch.float64)  # Fixture R: one group of four rewards
BASELINES = {
    "trl": GroupMean(std="sample", std_eps=1e-4, std_floor=0.0),
    "verl": GroupMean(std="sample", std_eps=1e-6, std_floor=0.0),
    "openrlhf": GroupMean(std="sample", std_eps=1e-9, std_floor=0.0),
    "open-instruct": GroupMean(std="population", std_eps=1e-8, std_floor=0.0),
    "no-eps": GroupMean(std="sample", std_eps=0.0, std_floor=0.0),
    "floor": GroupMean(std="sample", std_eps=0.0, std_floor=0.05),
    "batch": GroupMean(std="batch", std_eps=1e-4, std_floor=0.0),
    "batch-no-eps": GroupMean(std="batch", std_eps=0.0, std_floor=0.0),
    "dr_grpo": GroupMean(std="none", std_eps=0.0, std_floor=0.0),
    "rloo": Rloo(),
    "leave-one-out": LeaveOneOut(std_eps=1e-6),
    "adaptive": Adaptive(threshold=0.123),  # no sd and no mean of rewards in tenths is next to these two
    "maxrl": MaxRL(min_mean=0.0123),
}
GROUPLESS = {"none": NoBaseline(), "ema": Ema(alpha=0.1, per="global"), "ema-task": Ema(alpha=0.1, per="task")}
# What leaves the advantages as they are, or their sum in a group 0; not in the list: does not.
IGNORES_SHIFT = [name for name in BASELINES if name != "maxrl"]
IGNORES_SCALE = ["no-eps", "batch-no-eps"]  # and leave-one-out where it divides, and maxrl above its min_mean
FOLLOWS_SCALE = ["dr_grpo", "rloo", "none"]  # r times c gives A times c
SUMS_TO_ZERO = [name for name in BASELINES if name not in ("leave-one-out", "adaptive")]
GROUPS_APART = [name for name in BASELINES if not name.startswith("batch")] + ["none"]

BOTH = BASELINES | GROUPLESS
few = settings(max_examples=20)  # for each baseline
lengths_of_rows = st.lists(st.integers(0, 4), min_size=24, max_size=24)
everyone = pytest.mark.parametrize("baseline", list(BASELINES.values()), ids=list(BASELINES))


def named(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("baseline", [BOTH[name] for name in names], ids=names)


def of(baseline: Baseline, rewards: Tensor) -> Tensor:
    return baseline(rewards, ("P",) * len(rewards))


@st.composite
def rewards_of_groups(draw, least: float = -10) -> Tensor:
    """(P, G) in float64; in some groups rewards are equal, in none nearly so."""
    size = draw(st.integers(2, 6))
    reward = st.floats(least, 10, width=16).map(lambda r: round(r, 1))
    group = st.lists(reward, min_size=size, max_size=size)
    return torch.tensor(draw(st.lists(group, min_size=1, max_size=4)), dtype=torch.float64)


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trl", [1.3053097494, -0.7831858496, 0.2610619499, -0.7831858496]),
        ("verl", [1.3055796924, -0.7833478154, 0.2611159385, -0.7833478154]),
        ("openrlhf", [1.3055824169, -0.7833494502, 0.2611164834, -0.7833494502]),
        ("open-instruct", [1.5075566865, -0.9045340119, 0.3015113373, -0.9045340119]),
        ("floor", [1.3055824197, -0.7833494518, 0.2611164839, -0.7833494518]),
        ("dr_grpo", [0.625, -0.375, 0.125, -0.375]),
        ("rloo", [0.8333333333, -0.5, 0.1666666667, -0.5]),
        ("leave-one-out", [2.886741346, -0.999998, 0.2886746346, -0.999998]),
        ("maxrl", [1.6666666667, -1, 0.3333333333, -1]),
        ("adaptive", [0.75, -0.25, 0.25, -0.25]),
        ("none", [1, 0, 0.5, 0]),
    ],
)
def test_golden_advantages(name, expected):
    advantages = of(BOTH[name], R)
    assert advantages[0].tolist() == pytest.approx(expected, abs=1e-9)
    if name == "floor":
        assert advantages.clamp(-2, 2).equal(advantages)


def test_golden_batch_std():
    advantages, expected = of(BASELINES["batch"], torch.cat([R, R * 0])), [1.679602271, -1.0077613626, 0.3359204542]
    assert advantages[0].tolist() == pytest.approx([*expected, expected[1]], abs=1e-9)
    assert advantages[1].tolist() == [0, 0, 0, 0]


def test_the_floor_holds_where_rewards_hardly_differ():
    advantages = of(BASELINES["floor"], R / 100)
    assert advantages[0].tolist() == pytest.approx([0.125, -0.075, 0.025, -0.075])


def test_rloo_is_the_reward_minus_the_mean_of_the_others():
    rewards = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.0, 6.0]])
    assert of(Rloo(), rewards).tolist() == [[1.5, -1.5, 0], [-3, -3, 6]]


def test_leave_one_out_is_undivided_where_the_others_agree():
    assert of(BASELINES["leave-one-out"], torch.tensor([[0.1, 0.1, 0.1, 0.7]]))[0, 3].item() == pytest.approx(0.6)
    assert of(BASELINES["leave-one-out"], torch.tensor([[3.0, 1.0]])).tolist() == [[2, -2]]


def test_leave_one_out_takes_rounding_for_no_difference():
    exact, rounded = (of(LeaveOneOut(std_eps=1e-6), torch.tensor([[0.9, 0.9, r, 0.89]]))[0] for r in (0.9, 0.9000001))
    torch.testing.assert_close(rounded, exact, atol=1e-4, rtol=0)
    assert exact[-1].item() == pytest.approx(-0.01, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_leave_one_out_is_the_formula_of_the_others(size):
    rewards = torch.tensor([0.3, 1.0, -0.4, 0.1, 2.0, 0.7, -1.1], dtype=torch.float64)[None, :size]
    for i, advantage in enumerate(of(LeaveOneOut(std_eps=0.25), rewards)[0].tolist()):
        others = [r for j, r in enumerate(rewards[0].tolist()) if j != i]
        divisor = statistics.stdev(others) + 0.25 if size > 2 else 1
        assert advantage == pytest.approx((rewards[0, i].item() - statistics.mean(others)) / divisor)


def test_adaptive_takes_the_median_of_groups_that_spread():
    rewards = torch.tensor([[0.0, 0, 0, 0, 1], [0.5, 0.5, 0.5, 0.5, 0.6]], dtype=torch.float64)
    assert of(Adaptive(threshold=0.1), rewards)[0].tolist() == [0, 0, 0, 0, 1]
    assert of(Adaptive(threshold=0.1), rewards)[1].tolist() == pytest.approx([-0.02, -0.02, -0.02, -0.02, 0.08])
    assert of(Adaptive(threshold=1.0), rewards)[0].tolist() == pytest.approx([-0.2, -0.2, -0.2, -0.2, 0.8])


def test_maxrl_teaches_nothing_where_the_mean_is_no_success_rate():
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [-1, -1, -1, 0], [1, -1, 0.5, -0.5], [0.004, 0, 0, 0]])
    expected = [[3.0, -1, -1, -1], [0] * 4, [0] * 4, [0] * 4]
    assert of(MaxRL(min_mean=0.0), rewards).tolist() == [*expected, [3, -1, -1, -1]]
    assert of(MaxRL(min_mean=0.01), rewards).tolist() == [*expected, [0] * 4]


@pytest.mark.parametrize("baseline", list(BOTH.values()), ids=list(BOTH))
def test_nan_is_not_hidden(baseline):
    if not isinstance(baseline, Ema):  # whose state it would stay in
        assert of(baseline, torch.tensor([[1.0, float("nan"), 0.5]])).isnan().any()


# ---- averages over steps -------------------------------------------------------------------------------------------


def resumed(baseline: Ema) -> Ema:
    """A new one with the old one's state."""
    other = Ema(alpha=baseline.alpha, per=baseline.per)
    other.load_state_dict(baseline.state_dict(), strict=True)
    return other


def test_golden_ema_uses_before_it_updates_and_resumes_at_every_step():
    ema = Ema(alpha=0.1, per="global")
    for mean, centred in ((0.375, 0.375), (0.5, 0.4625), (0.25, 0.16625)):
        advantages = ema(torch.tensor([[mean - 0.1, mean + 0.1], [mean, mean]], dtype=torch.float64), ("P", "A"))
        assert advantages.mean().item() == pytest.approx(centred, abs=1e-12)
        ema = resumed(ema)
    assert ema.means[0].item() == pytest.approx(0.100375, abs=1e-12)


def test_an_ema_over_all_has_one_average_whatever_the_tasks():
    ema = Ema(alpha=0.5, per="global")
    ema(torch.tensor([[1.0, 3.0], [8.0, 8.0]]), ("P", "A"))  # mean 5
    assert ema(torch.zeros(3, 1), ("P", "A", "new")).tolist() == [[-2.5]] * 3


def test_an_ema_of_each_task():
    """A task's average starts at its first step, rests when it is absent, and does not depend on the others."""
    ema = Ema(alpha=0.5, per="task")
    two = torch.tensor([[1.0, 3.0], [8.0, 8.0], [5.0, 7.0]])
    assert ema(two, ("P", "A", "P")).equal(two)  # P sees mean 4, A mean 8
    ema = resumed(ema)
    assert ema(two[:1], ("A",)).tolist() == [[-3, -1]]  # 8 / 2; then (4 + 2) / 2
    assert ema(two, ("A", "P", "new")).tolist() == [[-2, 0], [6, 6], [5, 7]]  # 3; 4 / 2; 0
    assert ema(two[:1] * 0, ("P",)).tolist() == [[-5, -5]]  # (2 + 8) / 2


def test_more_tasks_than_an_ema_holds():
    ema, reward = Ema(alpha=0.5, per="task"), torch.ones(1, 2)
    for i in range(EMA_TASKS):
        ema(reward, (f"task {i}",))
    assert ema(reward, ("task 3",)).tolist() == [[0.5, 0.5]]
    with pytest.raises(ConfigError, match=r"baseline\.per=task.*'chess'.*allowed: global"):
        ema(reward, ("chess",))


# ---- what no convention may break ----------------------------------------------------------------------------------


@everyone
@few
@given(reward=st.floats(-1e4, 1e4, width=32), group_size=st.integers(2, 9))
def test_equal_rewards_give_exactly_zero(baseline, reward, group_size):
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([[reward] * group_size, range(group_size)], dtype=dtype)
        advantages = of(baseline, rewards)
        assert (advantages[0] == 0).all()
        assert torch.isfinite(advantages).all()
        assert (advantages[1] != 0).any()
        assert (of(baseline, rewards[:1]) == 0).all()


@named(IGNORES_SHIFT)
@few
@given(rewards=rewards_of_groups(), shift=st.floats(-10, 10).map(lambda x: round(x, 1)))
def test_a_constant_added_to_all_rewards_changes_nothing(baseline, rewards, shift):
    shifted = (rewards * 10).round().add(round(shift * 10)) / 10  # equal rewards stay equal, others do not become so
    torch.testing.assert_close(of(baseline, shifted), of(baseline, rewards), rtol=1e-7, atol=1e-9)


@named(IGNORES_SCALE)
@few
@given(rewards=rewards_of_groups(), scale=st.floats(0.1, 10))
def test_dividing_by_what_scales_ignores_a_scale(baseline, rewards, scale):
    torch.testing.assert_close(of(baseline, rewards * scale), of(baseline, rewards), rtol=1e-6, atol=1e-9)


@named(FOLLOWS_SCALE)
@few
@given(rewards=rewards_of_groups(), scale=st.floats(0.1, 10))
def test_without_a_divisor_advantages_follow_the_scale(baseline, rewards, scale):
    torch.testing.assert_close(of(baseline, rewards * scale), of(baseline, rewards) * scale)


@named(SUMS_TO_ZERO)
@few
@given(rewards=rewards_of_groups())
def test_advantages_of_a_group_sum_to_zero(baseline, rewards):
    advantages = of(baseline, rewards)
    assert (advantages.sum(1).abs() <= 1e-9 * (1 + advantages.abs().amax(1))).all()


@few
@given(rewards=rewards_of_groups(least=0), scale=st.floats(0.1, 10))
def test_maxrl_is_bounded_and_ignores_a_scale_where_rewards_are_not_negative(rewards, scale):
    advantages = of(MaxRL(min_mean=0.0), rewards)
    torch.testing.assert_close(of(MaxRL(min_mean=0.0), rewards * scale), advantages)
    assert (advantages >= -1).all()
    assert (advantages <= rewards.shape[1] - 1 + 1e-9).all()


@named(GROUPS_APART)
@few
@given(rewards=rewards_of_groups())
def test_groups_do_not_see_each_other(baseline, rewards):
    apart = torch.cat([of(baseline, group) for group in rewards.split(1)])
    torch.testing.assert_close(of(baseline, rewards), apart, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", list(BOTH))
@few
@given(rewards=rewards_of_groups(), seed=st.integers(0, 99))
def test_the_order_of_a_group_does_not_matter(name, rewards, seed):
    one, other = (Ema(alpha=0.1, per="task") if "ema" in name else BOTH[name] for _ in range(2))
    order = torch.randperm(rewards.shape[1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(of(one, rewards[:, order]), of(other, rewards)[:, order], rtol=1e-9, atol=1e-9)


@everyone
def test_a_group_of_one_is_an_error_that_names_the_remedy(baseline):
    assert baseline.needs_groups
    with pytest.raises(ConfigError, match="set group_size to 2 or more"):
        of(baseline, torch.ones(3, 1))


@pytest.mark.parametrize("baseline", list(BOTH.values()), ids=list(BOTH))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_have_the_rewards_precision(baseline, dtype):
    assert of(baseline, torch.tensor([[1.0, 0.0, 0.5]], dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("baseline", list(GROUPLESS.values()), ids=list(GROUPLESS))
def test_a_group_of_one_is_enough_for_the_others(baseline):
    assert not baseline.needs_groups
    assert torch.isfinite(of(baseline, torch.ones(3, 1))).all()


# ---- every option, on ragged rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", sorted(path.stem for path in CONF.glob("*.yaml")))
@few
@given(rewards=rewards_of_groups(), lengths=lengths_of_rows, ended=st.booleans())
def test_every_option_on_rows_of_any_length(option, rewards, lengths, ended):
    """Two prompt tokens, then 0 to 4 completion tokens; all rows truncated or none."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{option}.yaml"))
    check.check_node(node, "baseline")
    baseline = nodes.make(node)
    column = torch.arange(7)
    mask = (column >= 2) & (column < 2 + torch.tensor(lengths[: rewards.numel()])[:, None])
    given_ = TokenRewards(
        rewards=at_last_token(rewards.flatten(), mask).requires_grad_(),
        mask=mask,
        group_size=rewards.shape[1],
        tasks=("P",) * len(rewards),
        values=mask * 0.5 if baseline.needs_values else None,
        truncated=torch.full((rewards.numel(),), not ended),
    )
    out = baseline.advantages(given_)
    advantages = out.advantages
    assert torch.isfinite(advantages).all()
    assert not advantages.requires_grad
    assert (advantages[~mask] == 0).all()
    assert (out.returns is not None) == baseline.needs_values
    if baseline.whole_rows:
        expected = of(nodes.make(node), rewards).reshape(-1, 1)
        assert advantages.equal(torch.where(mask, expected, 0))


def test_rewards_of_a_row_are_added_up():
    mask = torch.tensor([[0, 1, 1], [0, 1, 0]]).bool()
    dense = torch.tensor([[0, 1.0, 2], [0, 1, 0]])
    given_ = TokenRewards(
        rewards=dense, mask=mask, group_size=2, tasks=("P",), values=None, truncated=torch.zeros(2).bool()
    )
    assert BASELINES["dr_grpo"].advantages(given_).advantages.tolist() == [[0, 1, 1], [0, -1, 0]]


# ---- stages ----------------------------------------------------------------------------------------------------------

# One group of four rows of four tokens, all of a second stage but for the last row, which never comes to it.
STAGE = torch.tensor([[0, 0, 1, 1]] * 3 + [[0] * 4])
EARNED = torch.tensor([[0, 1, 0, 2], [0, 0, 0, 1], [0, 2, 0, 0], [0, -1, 0, -2]], dtype=torch.float64)


def staged(credit: str, std: str = "none", floor: float = 0.0, **changes) -> Tensor:
    given_ = {
        "rewards": EARNED,
        "mask": torch.ones(4, 4).bool(),
        "group_size": 4,
        "tasks": ("P",),
        "values": None,
        "truncated": torch.zeros(4).bool(),
        "stage": STAGE,
    }
    baseline = Process(std=std, std_eps=0.0, std_floor=floor, credit=credit)
    return baseline.advantages(TokenRewards(**given_ | changes)).advantages


def test_a_stage_is_compared_with_the_same_stage_of_the_rows_that_have_it():
    own = [[1, 1], [0, 1 - 1], [2, 0 - 1], [-3, -3]]  # first stage: 1, 0, 2, -3, mean 0; second: 2, 1, 0, mean 1
    assert staged("own").tolist() == [[a, a, b, b] for a, b in own]
    assert staged("to_go").tolist() == [[2, 2, 1, 1], [0, 0, 0, 0], [1, 1, -1, -1], [-3] * 4]


@pytest.mark.parametrize("std", ["sample", "population", "batch"])
def test_all_stages_are_divided_by_the_spread_of_whole_rewards(std):
    whole = GroupMean(std=std, std_eps=0.0, std_floor=0.0)
    spread = EARNED.sum(1).std(correction=0 if std == "population" else 1)
    assert of(whole, EARNED.sum(1)[None])[0, 0] == pytest.approx(float((3 - EARNED.sum(1).mean()) / spread))
    torch.testing.assert_close(staged("own", std) * spread, staged("own"))
    torch.testing.assert_close(staged("own", std, floor=100.0), staged("own") / 100)


@few
@given(rewards=rewards_of_groups(), credit=st.sampled_from(["own", "to_go"]), std=st.sampled_from(["none", "sample"]))
def test_with_one_stage_it_is_outcome_supervision(rewards, credit, std):
    mask = torch.ones(rewards.numel(), 2).bool()
    found = staged(
        credit,
        std,
        0.05,
        rewards=at_last_token(rewards.flatten(), mask),
        mask=mask,
        group_size=rewards.shape[1],
        tasks=("P",) * len(rewards),
        truncated=torch.zeros(len(mask)).bool(),
        stage=None,
    )
    expected = of(GroupMean(std=std, std_eps=0.0, std_floor=0.05), rewards).reshape(-1, 1).expand(-1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert ((found == 0) == (expected == 0)).all()


@few
@given(first=rewards_of_groups(), seed=st.integers(0, 99))
def test_where_all_rows_have_all_stages_these_add_up_to_the_outcome(first, seed):
    second = torch.randn(first.shape, generator=torch.Generator().manual_seed(seed), dtype=first.dtype)
    mask = torch.ones(first.numel(), 2).bool()
    shape = {"mask": mask, "group_size": first.shape[1], "tasks": ("P",) * len(first)}
    rewards = torch.stack([first.flatten(), second.flatten()], 1)
    fields = shape | {"truncated": torch.zeros(len(mask)).bool(), "stage": torch.arange(2).expand(len(mask), 2)}
    own, to_go = (staged(credit, "sample", 0.05, rewards=rewards, **fields) for credit in ("own", "to_go"))
    expected = of(GroupMean(std="sample", std_eps=0.0, std_floor=0.05), first + second).flatten()
    torch.testing.assert_close(own.sum(1), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(to_go, torch.stack([own.sum(1), own[:, 1]], 1))


def test_a_stage_of_equal_rewards_and_a_lone_one_add_exactly_nothing():
    third = torch.tensor([[0.1, 0.2], [0.3, 0.2], [0.5, 0.2]])
    fields = {"mask": torch.ones(3, 2).bool(), "group_size": 3, "truncated": torch.zeros(3).bool()}
    found = staged("own", rewards=third, stage=torch.tensor([[0, 1]] * 3), **fields)
    assert found[:, 1].tolist() == [0, 0, 0]
    assert found[:, 0].tolist() == pytest.approx([-0.2, 0, 0.2], abs=1e-6)
    alone = staged("own", rewards=third, stage=torch.tensor([[0, 1], [0, 0], [0, 0]]), **fields)
    assert alone[0, 1] == 0
    others = torch.tensor([[0.1, 0.43], [0.3, 0.43], [0.5, 0.43], [0.7, 0.0]])
    mixed = {"stage": torch.tensor([[0, 1]] * 3 + [[0, 0]]), "mask": torch.ones(4, 2).bool()}
    assert staged("own", rewards=others, **mixed)[:3, 1].tolist() == [0, 0, 0]  # their mean is 0.43 only nearly


def test_a_group_of_one_has_no_stages_to_compare():
    with pytest.raises(ConfigError, match="set group_size to 2 or more"):
        staged("own", group_size=1, tasks=("P",) * 4)


@named([name for name in BASELINES if not name.startswith("batch")])
def test_rewards_that_rounding_parts_are_equal(baseline: Baseline) -> None:
    rewards = torch.tensor([[0.9, 0.9 + 6e-8, 0.9 - 6e-8, 0.9]])
    assert len(set(rewards[0].tolist())) > 1
    assert not baseline(rewards, ["P"]).any()
    assert Scores(rewards[0], {}).dead(4, by_stage=False).all()
