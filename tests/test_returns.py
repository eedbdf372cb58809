"""Token-level advantages and value heads against hand-computed rows, and against the sums that define them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rookexp import returns
from rookexp.returns import Gae, ReinforcePP, TokenRewards
from rookexp.types import Stages

R, V = [0.0, 0.0, 1.0], [0.5, 0.4, 0.3]
few = settings(max_examples=40)  # each of them is a batch
dtypes = st.sampled_from([torch.float32, torch.float64])
HEAD = {"value_lr": 1e-4, "value_coef": 0.1, "value_clip": 0.2, "detach": False}


pytestmark = pytest.mark.usefixtures("float64")


def gae_of(*, gamma=1.0, lam=0.95, whiten=False, bootstrap="zero") -> Gae:
    return Gae(gamma=gamma, lam=lam, whiten=whiten, bootstrap=bootstrap, **HEAD)


@st.composite
def batches(draw) -> dict:
    """Fields of TokenRewards: ragged rows, some without any completion token; noise outside the mask."""
    prompts, group_size, width = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 7))
    n = prompts * group_size
    ends = draw(st.lists(st.tuples(st.integers(0, width), st.integers(0, width)), min_size=n, max_size=n))
    first, last = torch.tensor(ends).sort(1).values.T
    column = torch.arange(width)
    noise = torch.randn(3, n, width, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    return {
        "rewards": noise[0],
        "mask": (first[:, None] <= column) & (column < last[:, None]),
        "group_size": group_size,
        "tasks": ("P",) * prompts,
        "values": noise[1],
        "truncated": torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        "final_values": noise[2, :, 0],
    }


def three_rows(**changes) -> TokenRewards:
    """The golden row between two prompt tokens and padding, a row of one token, and one without any."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0], [0] * 6]).bool()
    values = torch.tensor([[0, 0, *V, 0], [0, 0.25, 0, 0, 0, 0], [0] * 6])
    rewards = returns.at_last_token(torch.tensor([1.0, -1.0, 3.0]), mask)
    given = {"rewards": rewards, "mask": mask, "values": values, "truncated": torch.ones(3).bool()}
    return TokenRewards(**given | {"group_size": 3, "tasks": ("P",)} | changes)


def close(x: Tensor, expected, tolerance=1e-12) -> None:
    torch.testing.assert_close(x, torch.as_tensor(expected, dtype=x.dtype), rtol=0, atol=tolerance)


# ---- rewards to go and GAE -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gamma", "lam", "bootstrap", "expected"),
    [
        (1.0, 0.95, 0.0, [0.43675, 0.565, 0.7]),
        (0.99, 0.95, 0.0, [0.418306675, 0.55535, 0.7]),
        (1.0, 1.0, 0.0, [0.5, 0.6, 0.7]),
        (1.0, 0.0, 0.0, [-0.1, -0.1, 0.7]),
        (1.0, 0.95, 0.2, [0.61725, 0.755, 0.9]),
    ],
)
def test_golden_gae(gamma, lam, bootstrap, expected):
    one = torch.ones(1, 3).bool()
    got = returns.gae(torch.tensor([R]), torch.tensor([V]), one, gamma, lam, torch.tensor([bootstrap]))
    close(got, [expected])
    baseline = gae_of(gamma=gamma, lam=lam, bootstrap="value" if bootstrap else "zero")
    out = baseline.advantages(three_rows(final_values=torch.full((3,), bootstrap)))
    close(out.advantages[0], [0, 0, *expected, 0])
    close(out.returns[0, 2:5], torch.tensor(expected) + torch.tensor(V))
    close(out.advantages[1], [0, -1.25 + gamma * bootstrap, 0, 0, 0, 0])
    assert (out.advantages[2] == 0).all()
    assert (out.returns[2] == 0).all()


def test_golden_returns_of_gae():
    close(gae_of().advantages(three_rows()).returns[0], [0, 0, 0.93675, 0.965, 1, 0])


def test_golden_k1_in_the_reward():
    """R = 1 at the end less 0.1 k1 at each token, then the rewards to go."""
    mask = torch.ones(1, 3).bool()
    rewards = returns.at_last_token(torch.tensor([1.0]), mask) - 0.1 * torch.tensor([[0.2, -0.1, 0]])
    close(rewards, [[-0.02, 0.01, 1.0]])
    close(returns.reward_to_go(rewards, mask, 1.0), [[0.99, 1.01, 1.0]])
    close(returns.reward_to_go(rewards, mask, 0.5), [[0.235, 0.51, 1.0]])


def test_an_outcome_sits_on_the_last_completion_token():
    assert three_rows().rewards.tolist() == [[0, 0, 0, 0, 1, 0], [0, -1, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]]


@few
@given(batch=batches(), gamma=st.floats(0.1, 1), lam=st.floats(0, 1))
def test_gae_is_the_sum_that_defines_it(batch, gamma, lam):
    batch = TokenRewards(**batch)
    got = returns.gae(batch.rewards, batch.values, batch.mask, gamma, lam, batch.final_values)
    for i, kept in enumerate(batch.mask):
        r, v = batch.rewards[i, kept], batch.values[i, kept]
        delta = r + gamma * torch.cat([v, batch.final_values[i, None]])[1:] - v
        k = torch.arange(len(r))
        sums = [(delta[t:] * (gamma * lam) ** k[: len(r) - t]).sum() for t in range(len(r))]
        close(got[i, kept], torch.stack(sums) if sums else r, 1e-10)
        assert (got[i, ~kept] == 0).all()


@few
@given(batch=batches(), gamma=st.floats(0.1, 1))
def test_lam_one_is_rewards_to_go_less_values(batch, gamma):
    batch = TokenRewards(**batch)
    out = gae_of(gamma=gamma, lam=1.0).advantages(batch)
    close(out.returns, returns.reward_to_go(batch.rewards, batch.mask, gamma), 1e-10)
    close(out.advantages, torch.where(batch.mask, out.returns - batch.values, 0), 1e-10)


@few
@given(batch=batches())
def test_only_truncated_rows_are_bootstrapped(batch):
    batch = TokenRewards(**batch)
    ended = gae_of().advantages(batch).advantages
    out = gae_of(bootstrap="value").advantages(batch).advantages
    moved = (out != ended).any(1)
    assert moved.equal(batch.truncated & batch.mask.any(1))


@pytest.mark.parametrize("baseline", [gae_of(), gae_of(whiten=True, bootstrap="value"), ReinforcePP(gamma=0.9)])
@few
@given(batch=batches(), nothing=st.sampled_from([7.0, float("nan")]), dtype=dtypes)
def test_finite_detached_and_blind_outside_the_mask(baseline, batch, nothing, dtype):
    batch |= {name: batch[name].to(dtype) for name in ("rewards", "values", "final_values")}
    live = {name: batch[name].clone().requires_grad_() for name in ("rewards", "values", "final_values")}
    noisy = {name: torch.where(batch["mask"], batch[name], nothing) for name in ("rewards", "values")}
    out = baseline.advantages(TokenRewards(**batch | live))
    other = baseline.advantages(TokenRewards(**batch | noisy))
    assert (out.returns is not None) == baseline.needs_values
    for x, y in ((out.advantages, other.advantages), (out.returns, other.returns)):
        if x is not None:
            assert x.equal(y)
            assert torch.isfinite(x).all()
            assert not x.requires_grad
            assert (x[~batch["mask"]] == 0).all()


def test_gae_without_the_predictions_it_needs_is_an_error():
    for baseline, given_ in ((gae_of(), three_rows(values=None)), (gae_of(bootstrap="value"), three_rows())):
        with pytest.raises(ValueError, match="predictions"):
            baseline.advantages(given_)
    assert gae_of().needs_values


# ---- whitening -----------------------------------------------------------------------------------------------------


@few
@given(batch=batches())
def test_whitened_tokens_have_mean_zero_and_sd_one(batch):
    batch = TokenRewards(**batch)
    tokens = returns.whiten(batch.rewards, batch.mask)[batch.mask]
    if len(tokens) > 1:
        var = batch.rewards[batch.mask].var()
        assert tokens.mean().item() == pytest.approx(0, abs=1e-9)
        assert tokens.std().item() == pytest.approx((var / (var + 1e-8)).sqrt().item(), abs=1e-9)  # 1 but for the eps
    else:
        assert (tokens == 0).all()


def test_golden_whitening():
    """x = 1, 2, 6 has mean 3 and variance 7."""
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]]).bool()
    got = returns.whiten(torch.tensor([[1.0, 2, 9], [9, 6, 9]]), mask)
    close(got * (7 + 1e-8) ** 0.5, [[-2, -1, 0], [0, 3, 0]])


def test_gae_whitens_advantages_and_not_the_returns():
    plain, white = gae_of().advantages(three_rows()), gae_of(whiten=True).advantages(three_rows())
    assert white.returns.equal(plain.returns)
    assert white.advantages.equal(returns.whiten(plain.advantages, three_rows().mask))


@few
@given(batch=batches(), shift=st.floats(-5, 5), scale=st.floats(0.5, 5))
def test_reinforce_pp_ignores_shift_and_scale_of_the_outcomes(batch, shift, scale):
    """With gamma 1: every token of a row has the row's outcome to go."""
    batch = TokenRewards(**batch)
    outcome = torch.where(batch.mask.any(1), batch.final_values, 0)

    def of(outcomes: Tensor) -> Tensor:
        rewards = returns.at_last_token(outcomes, batch.mask)
        fixed = {"mask": batch.mask, "group_size": batch.group_size, "tasks": batch.tasks, "values": None}
        return (
            ReinforcePP(gamma=1.0)
            .advantages(TokenRewards(rewards=rewards, truncated=batch.truncated, **fixed))
            .advantages
        )

    if of(outcome).any() and outcome[batch.mask.any(1)].var() > 0.01:
        close(of(outcome * scale + shift), of(outcome), 1e-3)
    assert (of(torch.full_like(outcome, shift)) == 0).all()


# ---- value heads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (0.5, 0.5, 1.0, None, 0.125, -0.5),
        (0.5, 0.5, 1.0, 0.2, 0.125, -0.5),  # nothing has moved: as without a clip
        (0.9, 0.5, 1.0, None, 0.005, -0.1),
        (0.9, 0.5, 1.0, 0.2, 0.045, 0.0),  # nearer to the target than 0.7, as far as it may go
        (0.1, 0.5, 1.0, 0.2, 0.405, -0.9),  # away from the target: pulled back
        (1.5, 0.5, 1.0, 0.2, 0.125, 0.5),  # beyond the target and farther from it than 0.7
        (0.6, 0.5, 1.0, 0.2, 0.08, -0.4),  # within the clip
    ],
)
def test_golden_value_loss(value, old, target, clip, loss, gradient):
    v, o, r = (torch.tensor([x], requires_grad=True) for x in (value, old, target))
    got = returns.value_loss(v, o, r, clip)
    got.backward()
    close(got.detach(), [loss])
    close(v.grad, [gradient])
    assert o.grad is None
    assert r.grad is None


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.5, -0.3])
def test_nothing_is_explained_where_returns_differ_by_rounding(reward):
    values = 0.3 * torch.randn(8, 200, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(8, 200, dtype=torch.bool)
    paid = returns.at_last_token(torch.full((8,), reward), mask)
    found = returns.gae(paid, values, mask, 1.0, 1.0, torch.zeros(8)) + values
    assert returns.explained_variance(values, found, mask) == 0


def test_explained_variance():
    target = torch.tensor([[1.0, 2, 3, 99], [4, 99, 99, 99], [99, 99, 99, 99]])
    mask = target < 99
    nan = torch.where(mask, 0, torch.nan)
    for values, expected in ((target, 1), (target - 5, 1), (nan, 0), (target / 2 + nan, 0.75), (-target + nan, -3)):
        assert returns.explained_variance(values, target, mask).item() == pytest.approx(expected)
    for degenerate in (mask & (target == 1), torch.zeros_like(mask)):
        assert returns.explained_variance(target, target, degenerate) == 0


def test_a_stage_is_paid_with_its_last_token_and_one_without_tokens_with_the_rows_last():
    mask = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [0] * 6]).bool()
    stage = torch.tensor([[0, 0, 0, 1, 2, 0], [0, 0, 1, 0, 0, 0], [0] * 6])
    stages = Stages(torch.tensor([[5, 9, 12]] * 3), torch.tensor([[1.0, 2, 4]] * 3))
    assert returns.at_stages(stages, stage, mask).tolist() == [
        [0, 0, 1, 2, 4, 0],
        [0, 1, 6, 0, 0, 0],
        [7, 0, 0, 0, 0, 0],
    ]
