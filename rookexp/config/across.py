"""Checks across the keys of one configuration: values that cannot go together, and values that have no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rookexp.config import check
from rookexp.config.nodes import Config
from rookexp.draw import Sampling
from rookexp.run_folder import runs

Flat = Mapping[str, Any]  # a configuration by dotted keys
BY_ROW = [f"rookexp.losses.{name}" for name in ("Gspo", "GspoToken", "Luspo", "Gmpo", "Sapo")]  # means over each row


def check_rows(grpo: Config) -> None:
    """Raises: ConfigError for more minibatches than a step has rows."""
    rows = grpo["prompts_per_step"] * grpo["group_size"]
    if grpo["minibatches"] > rows:
        raise check.refusal("grpo.minibatches", grpo["minibatches"], f"allowed: at most the {rows} rows of a step")


def check_moment(reference: Config, steps: int) -> None:
    """Raises: ConfigError where `reference.at` is after the last step, so that nothing would ever move then."""
    if reference.get("at", 0) > steps:
        why = f"it would never come: the run ends with steps={steps}; allowed: 1 to {steps}"
        raise check.refusal("reference.at", reference["at"], why)


def check_lengths(config: Config, own: Mapping[str, Sampling], n_positions: int) -> None:
    """Raises: ConfigError for a `max_new_tokens`, by which a loss may be divided, that leaves no room for a prompt."""
    lengths = {f"{key}.max_new_tokens": config[key].get("max_new_tokens", 1) for key in ("grpo", "eval")}
    lengths |= {f"task.sampling.{kind}.max_new_tokens": each.max_new_tokens for kind, each in own.items()}
    refuse_longer(lengths, n_positions)


def refuse_longer(lengths: Mapping[str, int], n_positions: int) -> None:
    """Raises: ConfigError naming the key of a completion's length that the model's positions do not hold."""
    for key, length in lengths.items():
        if length >= n_positions:
            why = f"the model has {n_positions} positions; allowed: at most {n_positions - 1}"
            raise check.refusal(key, length, why)


def tell(config: Config, typed: Sequence[str]) -> None:
    """Prints a note for each of the `typed` values that has no effect in this configuration."""
    for note in notes(config, typed):
        print(note, flush=True)


def notes(config: Config, typed: Sequence[str]) -> list[str]:
    """What `idle` finds, a line for each reason."""
    said: dict[str, list[str]] = {}
    for text, why in idle(config, typed):
        said.setdefault(why, []).append(text)
    return [f"note: {', '.join(texts)} {why}" for why, texts in said.items()]


def idle(config: Config, typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each `KEY=VALUE` of `typed` that has no effect in this configuration, or not the one it names; and why."""
    flat = runs.flat(config)
    for text in typed:
        for prefixes, why in IDLE.items():
            if text.lstrip("+").startswith(prefixes) and (said := why(flat)):
                yield text, said


def _one_update(flat: Flat) -> str | None:
    module, _, loss = str(flat.get("loss._target_")).rpartition(".")
    alike = module == "rookexp.losses" and loss != "Luspo"  # Luspo weights rows by their lengths
    return _first_update(flat, "ratio is 1") if alike else None


def _old_values(flat: Flat) -> str | None:
    return _first_update(flat, "value is the old one")


def _first_update(flat: Flat, every: str) -> str | None:
    if (flat.get("grpo.inner_epochs"), flat.get("grpo.minibatches")) != (1, 1):
        return None
    return f"changes no gradient: each batch has one update, where every {every}; grpo.minibatches=2 makes two"


def _unlike_its_paper(flat: Flat) -> str | None:
    loss, aggregation = str(flat.get("loss._target_")), flat.get("grpo.aggregation")
    if loss not in BY_ROW or aggregation == "sequence_mean" or _one_update(flat):
        return None
    return f"is published for grpo.aggregation=sequence_mean; with {aggregation} long rows weigh more"


def _divided_penalty(flat: Flat) -> str | None:
    alone = flat.get("baseline._target_") == "rookexp.baselines.LeaveOneOut"
    divided = alone or (flat.get("baseline.std", "none") != "none" and not flat.get("baseline.std_floor"))
    if flat.get("grpo.kl_placement") != "reward" or not divided or _no_reference(flat):
        return None
    return (
        "divides the penalty by the rewards' spread, too: where the outcomes are equal it has full strength, whatever "
        f"kl.coef is; {'baseline=rloo does not divide' if alone else 'baseline.std_floor=0.05 bounds that'}"
    )


def _below_zero(flat: Flat) -> str | None:
    if flat.get("baseline._target_") != "rookexp.baselines.MaxRL":
        return None
    if flat.get("reward.normalise") == "normalise_then_sum":
        return (
            "learns nothing: rewards that are normalised first have the mean 0 in every group, and it divides by the "
            "mean; reward.normalise=sum_then_normalise leaves them as they are"
        )
    if flat.get("grpo.kl_placement") != "reward" or _no_reference(flat):
        return None
    return (
        "makes returns negative by the penalty, and baseline=maxrl learns nothing from a group whose mean is not above "
        "baseline.min_mean; grpo.kl_placement=loss leaves the rewards as they are"
    )


def _cut(flat: Flat) -> str | None:
    clip, most = flat.get("grpo.advantage_clip"), flat.get("grpo.group_size", 1) - 1  # the only success of a group
    if flat.get("baseline._target_") != "rookexp.baselines.MaxRL" or clip is None or clip >= most:
        return None
    return (
        f"is cut by grpo.advantage_clip={clip:g}, where one success in {most + 1} would earn {most}: prompts with few "
        "successes pull alike; null cuts nothing"
    )


def _no_reference(flat: Flat) -> str | None:
    coefs = {f"kl.{name}": flat.get(f"kl.{name}") for name in ("coef", "start_coef", "end_coef")}
    if any(coefs.values()) or not str(flat.get("kl._target_")).startswith("rookexp.coefficients."):
        return None
    zero = next((key for key, coef in coefs.items() if coef is not None), None)
    return f"changes nothing: the KL coefficient stays 0; {f'give {zero} more' if zero else 'kl=fixed has one'}"


def _late_penalty(flat: Flat) -> str | None:
    warmup, steps = flat.get("kl.warmup"), flat.get("steps")
    if (flat.get("kl.shape"), flat.get("kl.unit")) != ("switch", "steps") or not warmup or warmup < steps:
        return None
    return f"changes no gradient: the KL coefficient stays 0 for kl.warmup={warmup} steps, and the run has {steps}"


def _no_penalty(flat: Flat) -> str | None:
    return _no_reference(flat) or _late_penalty(flat)


def _fixed_reference(flat: Flat) -> str | None:
    every, steps = flat.get("reference.every"), flat.get("steps", 0)
    if every is None:  # what moves the policy acts without a penalty, too
        return None
    if every < steps:
        return _no_penalty(flat)
    return f"changes no gradient: the reference first moves after step {every}, and the run has {steps}"


def _late_rate(flat: Flat) -> str | None:
    warmup, steps = flat.get("optim.schedule.warmup_steps", 0), flat.get("steps", 0)
    if warmup <= steps:
        return None
    return f"warms up over {warmup} steps, and the run has {steps}: the rate ends at {steps / warmup:.0%} of optim.lr"


def _not_resampled(flat: Flat) -> str | None:
    mode = flat.get("grpo.dead_groups", "resampled")
    return None if mode == "resampled" else f"changes nothing with grpo.dead_groups={mode}; resampled asks again"


def _undivided(flat: Flat) -> str | None:
    return "changes nothing with baseline.std=none: nothing is divided" if flat.get("baseline.std") == "none" else None


def _no_list(flat: Flat) -> str | None:
    shares = [flat.get(key, 0) for key in ("task.analysed", "task.tasks.P.analysed")]
    return None if any(shares) else "changes nothing: no prompt holds a list, as the task's share `analysed` is 0"


def _of_the_mix(flat: Flat) -> str | None:
    if flat.get("task._target_") != "rookexp.tasks.mixed.Mixed":
        return None
    return "changes nothing: a step has task.prompts prompts, of which each task gets its part of task.shares"


# Prefixes of a typed override -> why it has no effect, or not the one it names; None where it acts as it says.
IDLE: dict[tuple[str, ...], Callable[[Flat], str | None]] = {
    ("loss",): _one_update,
    ("loss=", "grpo.aggregation="): _unlike_its_paper,
    ("grpo.kl_placement=",): _divided_penalty,
    ("baseline=maxrl",): _below_zero,
    ("baseline=maxrl", "grpo.advantage_clip="): _cut,
    ("grpo.kl_type", "grpo.kl_placement"): _no_penalty,
    ("reference=ema", "reference=hard", "reference."): _fixed_reference,
    ("kl=warmup", "kl.coef", "kl.warmup"): _late_penalty,
    ("optim=", "optim.schedule.warmup_steps"): _late_rate,
    ("grpo.max_resamples",): _not_resampled,
    ("baseline.std_eps", "baseline.std_floor"): _undivided,
    ("baseline.value_clip",): _old_values,
    ("task.list_order", "task.tasks.P.list_order"): _no_list,
    ("task.tasks.P.prompts", "task.tasks.A.prompts"): _of_the_mix,
}
