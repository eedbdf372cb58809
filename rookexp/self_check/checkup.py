"""The self-check of a run before its first step: each check measures one thing and names the bug that it finds.

A check returns what it measured, or a Finding with its likely cause and the fix. It looks at the run's own model,
tokenizer, task, reward and optimizer through a `Rehearsal`, and changes none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rookexp.self_check.answers import evaluation, gold_answers, max_new_tokens, reward_rows
from rookexp.self_check.log_probs import log_probs, padding, ratio, reference, rounding
from rookexp.self_check.records import (
    advantages,
    baseline,
    end_of_text,
    prompt_prefix,
    scored_text,
    selection,
    shared_prompt,
    trained_ids,
)
from rookexp.self_check.rehearsal import Finding, Rehearsal, Size, Skipped, Subject
from rookexp.self_check.weights import dropout, master_weights, policy_loss, update

Check = Callable[[Rehearsal], str | Finding | Skipped]

QUICK = Size(prompts=2, rows=2, tokens=12, golds=16)
WHOLE = Size(prompts=6, rows=3, tokens=32, golds=512)

RECORDS: tuple[Check, ...] = (selection, shared_prompt, prompt_prefix, trained_ids, end_of_text)
# The checks in their order, each with those that it presupposes: after a finding in one of them it is skipped.
CHECKS: dict[Check, tuple[Check, ...]] = {
    dropout: (),
    master_weights: (),
    max_new_tokens: (),
    gold_answers: (),
    reward_rows: (gold_answers,),
    evaluation: (max_new_tokens, reward_rows),
    selection: (),
    shared_prompt: (selection,),
    prompt_prefix: (selection, shared_prompt),
    trained_ids: (selection, shared_prompt, prompt_prefix),
    end_of_text: (selection, shared_prompt, prompt_prefix, trained_ids),
    scored_text: (selection, shared_prompt),
    baseline: (),
    advantages: (gold_answers, reward_rows, scored_text, baseline, *RECORDS),
    log_probs: (dropout, master_weights, *RECORDS),
    padding: (log_probs,),
    rounding: (log_probs,),
    reference: (dropout, master_weights, *RECORDS),
    policy_loss: (dropout, log_probs, *RECORDS),
    ratio: (log_probs, policy_loss),
    update: (master_weights, policy_loss, reference, *RECORDS),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A check's name and its result."""

    name: str
    result: str | Finding | Skipped

    def __str__(self) -> str:
        match self.result:
            case Finding(seen, cause, fix):
                return f"FINDING {self.name}: {seen}; likely {cause}; {fix}"
            case Skipped(why):
                return f"SKIP {self.name}: {why}"
            case seen:
                return f"OK  {self.name}: {seen}"


def examine(subject: Subject, size: Size) -> Iterator[Line]:
    """Runs all checks in their order and yields their lines; one that presupposes a check with a finding is skipped."""
    rehearsal, doubtful = Rehearsal(subject, size), set[Check]()
    for check, presupposed in CHECKS.items():
        broken = [name_of(other) for other in presupposed if other in doubtful]
        result = Skipped(f"says nothing new beside {broken[0]}") if broken else check(rehearsal)
        if broken or isinstance(result, Finding):
            doubtful.add(check)
        yield Line(name_of(check), result)


def name_of(check: Check) -> str:
    """The check's name as its line shows it."""
    return check.__name__.replace("_", " ")
