"""What GRPO cannot be: parts and settings that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

from rookexp.coefficients import Coefficient
from rookexp.draw import Sampling
from rookexp.errors import ConfigError
from rookexp.losses import PolicyLoss
from rookexp.reference import Sync
from rookexp.returns import Baseline


def refuse_contradictions(
    *,
    baseline: Baseline,
    coefficient: Coefficient,
    policy_loss: PolicyLoss,
    reference_sync: Sync,
    sampling: Sampling,
    own_sampling: Mapping[str, Sampling],
    group_size: int,
    dead_groups: str,
    overlong_buffer: int | None,
) -> None:
    """Checks the parts and settings. Raises: ConfigError for those that contradict each other, with the reason."""
    if group_size == 1 and baseline.needs_groups:
        raise ConfigError(
            "grpo.group_size=1: a lone completion has no others to be compared with; allowed: 2 or more, "
            "or a baseline that does not compare (baseline=ema, none, reinforce_pp or gae)"
        )
    if reference_sync.needed and not coefficient.can_be_nonzero:
        raise ConfigError(
            f"reference={type(reference_sync).__name__} with kl={type(coefficient).__name__}: there is "
            "no reference to go back to; choose reference=never, or a kl that needs one"
        )
    if policy_loss.whole_rows and not baseline.whole_rows:
        raise ConfigError(
            f"loss={type(policy_loss).__name__} with baseline={type(baseline).__name__}: the loss has "
            "one ratio a completion and needs one advantage a completion, the baseline gives one a token; "
            "choose loss=gspo_token or clip, or a baseline other than gae, process and reinforce_pp"
        )
    keys = {"grpo": sampling, **{f"task.sampling.{kind}": each for kind, each in own_sampling.items()}}
    limit, key = min((each.max_new_tokens, f"{key}.max_new_tokens") for key, each in keys.items())
    if overlong_buffer is not None and overlong_buffer > limit:
        raise ConfigError(f"grpo.overlong_buffer={overlong_buffer}: allowed: null, or at most {key}={limit}")
    if dead_groups != "kept" and not baseline.needs_groups:
        raise ConfigError(
            f"grpo.dead_groups={dead_groups} with baseline={type(baseline).__name__}: it does "
            "not compare within the group, equal rewards teach, too; allowed: kept, or a baseline that compares"
        )
