"""Several tasks in one run: quotas in every step, each task's own passes kept, phases that go on where they were."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookexp.errors import ConfigError
from rookexp.tasks.mixed import Mixed, Phases
from rookexp.tasks.passes import Passes
from rookexp.types import Prompt


class Numbers:
    """A task that asks its letter and a number."""

    def __init__(self, letter: str, count: int, prompts: int = 3) -> None:
        self.kinds = (letter,)
        self.prompts_per_step = prompts
        self.passes = Passes([range(count)], order="epochs", seed=4)

    def prompt(self, number: int) -> Prompt:
        return Prompt(f"{self.kinds[0]}{number}", (number,), number, self.kinds[0])

    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(map(self.prompt, self.passes.rows()))

    def select(self, step: int) -> tuple[Prompt, ...]:
        return self.take(step * self.prompts_per_step, self.prompts_per_step)

    def take(self, start: int, count: int) -> tuple[Prompt, ...]:
        return tuple(map(self.prompt, self.passes.take(start, count)))

    def gold(self, prompt: Prompt) -> str:
        return f"{self.kinds[0]} is right"


def mixed(shares: dict[str, float], prompts: int, order: Any = "epochs", count: int = 7) -> Mixed:
    tasks = {name: Numbers(name, count) for name in shares}
    return Mixed(tasks=tasks, shares=shares, prompts=prompts, order=order, sampling={})


def test_prompts_say_which_of_several_tasks_asks_them() -> None:
    """By its name, for two may ask prompts of one kind."""
    tasks = {"first": Numbers("A", 5), "other": Numbers("A", 9)}
    both = Mixed(tasks=tasks, shares={"first": 0.5, "other": 0.5}, prompts=4, order="epochs", sampling={})
    in_turn = Phases(tasks=tasks, schedule=[("first", 2), ("other", None)], total_steps=4, sampling={})
    assert Counter(prompt.source for prompt in both.select(3)) == {"first": 2, "other": 2}
    assert [{prompt.source for prompt in in_turn.select(step)} for step in (1, 2)] == [{"first"}, {"other"}]
    assert Counter(prompt.source for prompt in both.prompts()) == {"first": 5, "other": 9}
    within = Phases(tasks={"mix": both}, schedule=[("mix", None)], total_steps=4, sampling={})
    assert Counter(prompt.source for prompt in within.select(3)) == {"first": 2, "other": 2}
    assert {prompt.source for prompt in mixed({"P": 1.0}, 2).select(0)} == {""}, "there is one alone"


def test_a_mix_in_a_mix_is_refused() -> None:
    inner: Any = mixed({"P": 1.0}, 2)
    with pytest.raises(ConfigError, match=r"task\.tasks\.R: Mixed cannot be mixed, as it has no method take; "):
        Mixed(tasks={"R": inner}, shares={"R": 1.0}, prompts=2, order="epochs", sampling={})


@settings(max_examples=60, deadline=None)
@given(share=st.integers(1, 99), prompts=st.integers(1, 20), first=st.integers(0, 40), steps=st.integers(1, 30))
def test_in_any_window_of_steps_the_counts_are_within_one_of_the_share(
    share: int, prompts: int, first: int, steps: int
) -> None:
    task = mixed({"P": share / 100, "A": 1 - share / 100}, prompts)
    selected = [task.select(step) for step in range(first, first + steps)]
    assert {len(step) for step in selected} == {prompts}
    count = sum(prompt.task == "P" for step in selected for prompt in step)
    assert abs(count - steps * prompts * share / 100) < 1 + 1e-9


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), prompts=st.integers(1, 9))
def test_every_task_keeps_its_share_and_its_passes(weights: list[int], prompts: int) -> None:
    shares = {name: weight / sum(weights) for name, weight in zip("PABC", weights, strict=False)}
    task = mixed(shares, prompts)
    asked: Counter[str] = Counter()
    for step in range(20):
        selected = task.select(step)
        assert dict(Counter(p.task for p in selected)) == {k: v for k, v in task.counts(step).items() if v}
        asked.update(prompt.text for prompt in selected)
        for name, share in shares.items():
            of = [asked[f"{name}{number}"] for number in range(7)]
            assert max(of) - min(of) <= 1  # no problem twice more than another
            assert abs(sum(of) - (step + 1) * prompts * share) < len(shares) - 1 + 1e-9


def test_eighty_to_twenty_is_exact_where_it_can_be() -> None:
    task = mixed({"P": 0.8, "A": 0.2}, prompts=5)
    assert [task.counts(step) for step in range(50)] == [{"P": 4, "A": 1}] * 50
    assert [mixed({"P": 0.8, "A": 0.2}, 8).counts(step)["A"] for step in range(5)] == [2, 2, 1, 2, 1]


def test_a_fixed_batch_stays_and_is_what_is_evaluated() -> None:
    task = mixed({"P": 0.75, "A": 0.25}, prompts=4, order="fixed")
    assert task.select(0) == task.select(9) == task.prompts()
    assert "".join(prompt.task for prompt in task.prompts()) == "PPPA"
    assert len(mixed({"P": 0.75, "A": 0.25}, prompts=4).prompts()) == 14
    with pytest.raises(ConfigError, match=r"task\.prompts=1: leaves none for P"):
        mixed({"P": 0.8, "A": 0.2}, prompts=1, order="fixed")


def test_the_right_answer_is_the_owners() -> None:
    task = mixed({"P": 0.5, "A": 0.5}, prompts=4)
    assert task.kinds == ("P", "A")
    assert {task.gold(prompt) for prompt in task.select(0)} == {"P is right", "A is right"}
    nested = Phases(
        tasks={"both": task, "B": Numbers("B", 3)}, schedule=[("B", 1), ("both", None)], total_steps=4, sampling={}
    )
    assert [nested.gold(prompt) for prompt in nested.select(0)] == ["B is right"] * 3
    assert nested.gold(nested.select(1)[-1]) == "A is right"


@pytest.mark.parametrize(
    ("shares", "words"),
    [({"P": 1.0}, "a number > 0 for each of A, P"), ({"P": 0.5, "A": 0.4}, r"sums to 0\.9; allowed")],
)
def test_wrong_shares_are_refused(shares: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Mixed(tasks={"P": Numbers("P", 3), "A": Numbers("A", 3)}, shares=shares, prompts=2, order="epochs", sampling={})


# ---- phases ---------------------------------------------------------------------------------------------------------


def phased(schedule: list[tuple[str, int | None]], total: int) -> Phases:
    tasks = {"P": Numbers("P", 100), "A": Numbers("A", 100)}
    return Phases(tasks=tasks, schedule=schedule, total_steps=total, sampling={})


def test_phases_follow_each_other_and_a_task_that_comes_again_goes_on() -> None:
    task = phased([("P", 2), ("A", 3), ("P", None)], 8)
    assert task.table() == [("P", 0, 2), ("A", 2, 5), ("P", 5, 8)]
    letters = ["".join(sorted({prompt.task for prompt in task.select(step)})) for step in range(9)]
    assert letters == list("PPAAAPPPP")  # the last one is after the run, as a doctor of a finished run may ask
    alone = Numbers("P", 100)
    assert [task.select(step) for step in (0, 1, 5, 6, 7)] == [alone.select(step) for step in range(5)]
    assert {prompt.task for prompt in task.prompts()} == {"P", "A"}


def test_a_task_goes_on_whatever_came_before_its_first_phase() -> None:
    task, alone = phased([("P", 2), ("A", 3), ("P", 1), ("A", None)], 9), Numbers("A", 100)
    assert [task.select(step) for step in (2, 3, 4, 6, 7, 8)] == [alone.select(step) for step in range(6)]


def test_phases_that_the_run_cuts_off_are_not_in_the_table() -> None:
    assert phased([("P", 5), ("A", None)], 3).table() == [("P", 0, 3)]
    assert phased([("P", 5), ("A", 9)], 7).table() == [("P", 0, 5), ("A", 5, 7)]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([("P", None)], "each of P, A"),
        ([("P", 1), ("A", 1), ("C", None)], "each of P, A"),
        ([("P", None), ("A", 3)], "a number of steps for each phase, or null for the last"),
        ([("P", 3), ("A", 3)], "ends before the run's 10 steps"),
    ],
)
def test_phases_that_do_not_fit_are_refused(schedule: list[tuple[str, int | None]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        phased(schedule, 10)
