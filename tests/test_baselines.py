"""Advantages against the conventions of the frameworks, and what no convention may break."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rookexp.baselines import GroupMean, Rloo, clip_advantages
from rookexp.errors import ConfigError

R = torch.tensor([[1, 0, 0.5, 0]], dtype=torch.float64)  # Fixture R: one group of four rewards
BASELINES = {
    "trl": GroupMean(std="sample", std_eps=1e-4, std_floor=0.0),
    "verl": GroupMean(std="sample", std_eps=1e-6, std_floor=0.0),
    "openrlhf": GroupMean(std="sample", std_eps=1e-9, std_floor=0.0),
    "open-instruct": GroupMean(std="population", std_eps=1e-8, std_floor=0.0),
    "no-eps": GroupMean(std="sample", std_eps=0.0, std_floor=0.0),
    "floor": GroupMean(std="sample", std_eps=0.0, std_floor=0.05),
    "dr_grpo": GroupMean(std="none", std_eps=0.0, std_floor=0.0),
    "rloo": Rloo(),
}
everyone = pytest.mark.parametrize("baseline", list(BASELINES.values()), ids=list(BASELINES))
groups = st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4).map(lambda r: torch.tensor([r]).double())


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
    ],
)
def test_golden_advantages(name, expected):
    advantages = BASELINES[name](R)
    assert advantages[0].tolist() == pytest.approx(expected, abs=1e-10)
    assert clip_advantages(advantages, 2.0).equal(advantages)


def test_the_floor_holds_where_rewards_hardly_differ():
    advantages = BASELINES["floor"](R / 100)
    assert advantages[0].tolist() == pytest.approx([0.125, -0.075, 0.025, -0.075])


def test_clipped_advantages():
    assert clip_advantages(torch.tensor([-3.0, -2.0, 0.5, 9.0]), 2.0).tolist() == [-2, -2, 0.5, 2]


def test_rloo_is_the_reward_minus_the_mean_of_the_others():
    rewards = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.0, 6.0]])
    assert Rloo()(rewards).tolist() == [[1.5, -1.5, 0], [-3, -3, 6]]


@everyone
@given(reward=st.floats(-1e4, 1e4, width=32), group_size=st.integers(2, 9))
def test_equal_rewards_give_exactly_zero(baseline, reward, group_size):
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([[reward] * group_size, range(group_size)], dtype=dtype)
        advantages = baseline(rewards)
        assert (advantages[0] == 0).all()
        assert torch.isfinite(advantages).all()
        assert (advantages[1] != 0).any()


@everyone
@given(rewards=groups, shift=st.floats(-10, 10))
def test_advantages_sum_to_zero_and_ignore_a_shift_of_all_rewards(baseline, rewards, shift):
    if rewards.std() < 1e-3 and (rewards != rewards[0, 0]).any():
        rewards = rewards * 0  # a shift may round nearly equal rewards to equal ones
    advantages = baseline(rewards)
    assert advantages.sum().item() == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(baseline(rewards + shift), advantages, rtol=1e-7, atol=1e-9)


@given(rewards=groups, scale=st.floats(0.1, 10))
def test_dividing_by_the_std_ignores_a_scale(rewards, scale):
    torch.testing.assert_close(BASELINES["no-eps"](rewards * scale), BASELINES["no-eps"](rewards), rtol=1e-6, atol=1e-9)


@everyone
def test_groups_do_not_see_each_other(baseline):
    rewards = torch.tensor([[1.0, 0.0, 0.5], [7.0, 9.0, 7.5]], dtype=torch.float64)
    assert baseline(rewards).equal(torch.cat([baseline(rewards[:1]), baseline(rewards[1:])]))


@everyone
def test_a_group_of_one_is_an_error_that_names_the_remedy(baseline):
    with pytest.raises(ConfigError, match="set group_size to 2 or more"):
        baseline(torch.ones(3, 1))
