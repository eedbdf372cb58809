"""What GRPO cannot be: parts and settings that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookexp.errors import ConfigError

if TYPE_CHECKING:
    from rookexp.objectives.grpo import GRPO


def refuse_contradictions(grpo: GRPO) -> None:
    """Checks the parts and settings. Raises: ConfigError for those that contradict each other, with the reason."""
    if grpo.group_size == 1 and grpo.baseline.needs_groups:
        raise ConfigError(
            "grpo.group_size=1: a lone completion has no others to be compared with; allowed: 2 or more, "
            "or a baseline that does not compare (baseline=ema, none, reinforce_pp or gae)"
        )
    if grpo.reference_sync.needed and not grpo.coefficient.can_be_nonzero:
        raise ConfigError(
            f"reference={type(grpo.reference_sync).__name__} with kl={type(grpo.coefficient).__name__}: there is "
            "no reference to go back to; choose reference=never, or a kl that needs one"
        )
    if grpo.policy_loss.whole_rows and not grpo.baseline.whole_rows:
        raise ConfigError(
            f"loss={type(grpo.policy_loss).__name__} with baseline={type(grpo.baseline).__name__}: the loss has "
            "one ratio a completion and needs one advantage a completion, the baseline gives one a token; "
            "choose loss=gspo_token or clip, or a baseline other than gae, process and reinforce_pp"
        )
    keys = {"grpo": grpo.sampling, **{f"task.sampling.{kind}": each for kind, each in grpo.own_sampling.items()}}
    limit, key = min((each.max_new_tokens, f"{key}.max_new_tokens") for key, each in keys.items())
    if grpo.overlong_buffer is not None and grpo.overlong_buffer > limit:
        raise ConfigError(f"grpo.overlong_buffer={grpo.overlong_buffer}: allowed: null, or at most {key}={limit}")
    if grpo.dead_groups != "kept" and not grpo.baseline.needs_groups:
        raise ConfigError(
            f"grpo.dead_groups={grpo.dead_groups} with baseline={type(grpo.baseline).__name__}: it does "
            "not compare within the group, equal rewards teach, too; allowed: kept, or a baseline that compares"
        )
