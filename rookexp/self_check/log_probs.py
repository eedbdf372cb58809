"""Checks that log-probs agree: of sampler, training forward and reference, and of rows in a batch and alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor

from rookexp.self_check.rehearsal import Finding, Rehearsal, Skipped, altered, gap

EXACT_NATS = 1e-4  # two ways to compute a log-prob in fp32 differ by less
ROUNDED_NATS = 0.05  # and by less than this under bf16 autocast, on average over tokens
KL_NATS = 1e-6  # a divergence of a policy from itself is below this in fp32
EXPLAINED_SHARE = 0.5  # a mistake that explains more of the wrong log-probs is the cause
PADDED = (
    "positions that count the padding (left padding), attended padding, or a cache that drops the wrong rows",
    "pad on the right, number positions from each row's own first token, and keep the rows that go on.",
)


def log_probs(case: Rehearsal) -> str | Finding:
    """Sampler, training forward and a plain forward of one row at a time agree on every completion token."""
    plain = case.plain()
    sources = {
        "the sampler": case.sampled.logprobs[case.sampled.weights != 0],
        "the training forward": case.trained_on,
    }
    errors = {name: gap(values, plain) for name, values in sources.items()}
    for name, error in errors.items():
        if not error <= _exact(case):
            cause, fix = _explained(case, sources[name], plain, name)
            return Finding(f"{name} is up to {error:.2g} nats off a plain forward of the row alone", cause, fix)
    return f"sampler, training forward and plain forward agree at {len(plain)} tokens: {_most(errors)}"


def padding(case: Rehearsal) -> str | Finding:
    """Sampler and training forward give the same log-probs for rows together and alone, with padding and without."""
    errors = case.apart
    for name, error in errors.items():
        if not error <= _exact(case):
            return Finding(f"{name} gives rows together up to {error:.2g} nats more or less than alone", *PADDED)
    return f"{len(case.prompts) + 1} ragged prompts and {len(case.hidden)} rows, together and alone: {_most(errors)}"


def rounding(case: Rehearsal) -> str | Finding | Skipped:
    """Under autocast the sampler and the training forward stay near each other."""
    if case.own.exact_sampler:
        return Skipped("the run computes in fp32")
    objective = case.objective(case.own.autocast)
    experience, _ = objective.collect(case.subject.step)
    sampled, trained = experience.logprobs[experience.weights != 0], case.trained(objective, experience)
    error = float((sampled - trained).abs().mean())
    if not error <= ROUNDED_NATS:
        seen = f"sampler and training forward differ by {error:.2g} nats a token in bf16; allowed: {ROUNDED_NATS:g}"
        return Finding(seen, "one of the two rounding where the other does not", "type hardware.precision=fp32.")
    return f"sampler and training forward differ by {error:.2g} nats a token in bf16; allowed: {ROUNDED_NATS:g}"


def reference(case: Rehearsal) -> str | Finding | Skipped:
    """The reference has weights of its own, and before the first step the divergence from it is 0."""
    if case.own.reference is None:
        return Skipped("the coefficient is always 0")
    weights = {parameter.data_ptr() for parameter in case.policy.parameters()}
    shared = sum(parameter.data_ptr() in weights for parameter in case.own.reference.parameters())
    if shared:
        cause = "a reference that is the policy, or a shallow copy of it: the divergence stays 0 for ever"
        return Finding(f"the reference shares {shared} tensors with the policy", cause, "make a deep copy.")
    if case.subject.step:
        return Skipped("the run has moved on from its reference")
    with torch.no_grad():
        terms = case.objective().loss(case.sampled)
    error = max(_largest(values) for name, values in terms.per_token.items() if name in ("kl", "kl/k2", "kl/k3"))
    if not error <= KL_NATS:
        cause = "a reference that is no copy of the policy: other weights, another dtype, or dropout in one of them"
        return Finding(
            f"KL(policy, reference) is {error:.2g} nats", cause, "copy the policy when nothing has moved yet."
        )
    return f"KL(policy, reference) is at most {error:.2g} nats"


def ratio(case: Rehearsal) -> str | Finding:
    """At the first update every ratio is 1 and nothing is clipped, at the configured temperature and precision."""
    objective = altered(case.objective(case.own.autocast), exact_sampler=case.own.exact_sampler)
    experience, _ = objective.collect(case.subject.step)
    with torch.no_grad():
        per_token = objective.loss(experience).per_token
    rounded = not case.own.exact_sampler and not case.own.single_update  # old and new are two forwards in bf16
    off = (per_token["ratio/max"] - 1).abs()
    error = float(off.mean() if rounded else off.max())
    clipped = max((float(v.mean()) for name, v in per_token.items() if name.startswith("clip_frac")), default=0.0)
    seen = f"ratio - 1 is {'on average' if rounded else 'at most'} {error:.2g}, {clipped:.2g} of the tokens are clipped"
    if not error <= (ROUNDED_NATS if rounded else _exact(case)) or (clipped and not rounded):
        cause = "old log-probs of another policy, temperature or precision than the new ones"
        return Finding(seen, cause, "take both from the same weights at grpo.temperature.")
    return f"{seen}, at temperature {case.temperature}"


def _exact(case: Rehearsal) -> float:
    """How far two ways to compute a log-prob in fp32 may differ: a low temperature magnifies errors as much."""
    return EXACT_NATS / min(1.0, float(case.temperatures.min()))


def _explained(case: Rehearsal, values: Tensor, plain: Tensor, whose: str) -> tuple[str, str]:
    """Cause and fix: the mistake that makes a plain forward reproduce most of the wrong log-probs, if one does."""
    if len(values) != len(plain):
        return f"an off-by-one in {whose}: other tokens than those with a weight", "score the tokens with a weight."
    mistakes = {
        (
            f"temperature {temperature:.3g} in {whose} where grpo.temperature is {case.temperature}",
            "divide the logits by grpo.temperature wherever log-probs are made.",
        ): case.plain(temperature=temperature)
        for temperature in (0.05 * i for i in range(1, 61))
    } | {
        (
            f"an off-by-one in {whose}: position {position:+d} and token {token:+d} of the right ones",
            "read the log-prob of token j from the hidden state at column j - 1.",
        ): case.plain(position=position, token=token)
        for position, token in product((-1, 0, 1), repeat=2)
    }
    wrong = (values - plain).abs() > EXACT_NATS
    shares = {
        said: float(((values - made).abs() < 10 * EXACT_NATS)[wrong].float().mean())
        for said, made in mistakes.items()
        if not gap(made[wrong], plain[wrong]) <= 10 * EXACT_NATS  # else it changes nothing here
    }
    best = max(shares, key=lambda said: shares[said])
    if shares[best] > EXPLAINED_SHARE:
        return best
    if case.filtered and bool((values > plain - EXACT_NATS).all()):
        return f"log-probs of {whose} renormalised over top_k or top_p", "take them over the whole vocabulary."
    if not case.apart[whose] <= EXACT_NATS:
        return PADDED
    return f"positions, mask or cache of {whose}", "compare it with policy.hidden on one row without padding."


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _most(errors: Mapping[str, float]) -> str:
    return f"they differ by at most {max(errors.values()):.0e} nats"
