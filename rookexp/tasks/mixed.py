"""Several tasks in one run: mixed in every step by quota, or one after another in phases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from annotated_types import Ge, Gt, MinLen

from rookexp.errors import ConfigError
from rookexp.tasks.reading import Malformed, Reading
from rookexp.types import Prompt


@runtime_checkable
class Task(Protocol):
    """A source of prompts and of the right answers to them."""

    @property
    def kinds(self) -> Sequence[str]:
        """The values that `Prompt.task` may have."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step."""

    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts on which the policy is evaluated, once each."""

    def gold(self, prompt: Prompt) -> str:
        """The completion that earns the most."""


@runtime_checkable
class Noted(Protocol):
    """A task that reports on the data it has read."""

    def notes(self) -> list[str]:
        """Lines for the user."""


@runtime_checkable
class Sequenced(Task, Protocol):
    """A task whose prompts form one endless sequence."""

    def take(self, start: int, count: int) -> tuple[Prompt, ...]:
        """The prompts at indices start, ..., start + count - 1."""


# By kind of prompt: the sampling settings that are other than the common ones.
SamplingOverrides = Mapping[str, Mapping[str, float | None]]


class Several:
    """Several tasks by name; subclasses say which of them a step uses."""

    tasks: Mapping[str, Task]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The values that `Prompt.task` may have."""
        return tuple(dict.fromkeys(kind for task in self.tasks.values() for kind in task.kinds))

    def gold(self, prompt: Prompt) -> str:
        """The completion that earns the most, according to the first task with prompts of this kind."""
        return next(task for task in self.tasks.values() if prompt.task in task.kinds).gold(prompt)

    def notes(self) -> list[str]:
        """The notes of all tasks on the data that they have read."""
        return notes_of(self.tasks.values())

    def named(self, name: str, prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
        """The prompts of the task `name`; with several tasks their `source`, if empty, is set to that name."""
        source = name if len(self.tasks) > 1 else ""
        return tuple(replace(prompt, source=prompt.source or source) for prompt in prompts)


class Mixed(Several):
    """Tasks that share every step by quota, not by chance.

    `shares`: each task's share of a step's `prompts`. With two tasks, the counts over any consecutive steps are within
    one of the exact shares; with K tasks, the counts since the start are within K - 1. Each task continues its own
    sequence, so that what it guarantees about that stays true. `fixed`: every step repeats the first one's prompts.
    """

    tasks: Mapping[str, Sequenced]

    def __init__(
        self,
        *,
        tasks: Mapping[str, Sequenced],
        shares: Mapping[str, Annotated[float, Gt(0)]],
        prompts: Annotated[int, Gt(0)],
        order: Literal["fixed", "epochs"],
        sampling: SamplingOverrides,
    ) -> None:
        if set(tasks) != set(shares):
            given = ", ".join(sorted(shares)) or "none"
            raise ConfigError(f"task.shares={given}: allowed: a number > 0 for each of {', '.join(sorted(tasks))}")
        total = sum(shares.values())
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"task.shares={dict(shares)}: sums to {total:g}; allowed: shares that sum to 1")
        for name, task in tasks.items():
            if not callable(getattr(task, "take", None)):
                raise ConfigError(
                    f"task.tasks.{name}: {type(task).__name__} cannot be mixed, as it has no method take; allowed: a "
                    "task of one sequence of prompts, such as rookworld_p or a_games"
                )
        self.tasks = tasks
        self.prompts_per_step = prompts
        self.order = order
        self.sampling = sampling
        exact = {name: Fraction(str(shares[name])) for name in tasks}
        rest = accumulate(reversed(exact.values()))  # total share of each task and those after it
        self._of_rest = dict(
            reversed([(name, exact[name] / some) for name, some in zip(reversed(exact), rest, strict=True)])
        )
        if order == "fixed" and 0 in (counts := self.counts(0)).values():
            name = min(counts, key=counts.__getitem__)
            raise ConfigError(f"task.prompts={prompts}: leaves none for {name}; allowed: more, or order=epochs")

    def counts(self, step: int) -> dict[str, int]:
        """How many prompts each task has in a step."""
        return {name: end - start for name, (start, end) in self._places(step).items()}

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step, task by task."""
        places = self._places(0 if self.order == "fixed" else step)
        return tuple(
            prompt
            for name, (start, end) in places.items()
            for prompt in self.named(name, self.tasks[name].take(start, end - start))
        )

    def prompts(self) -> tuple[Prompt, ...]:
        """The fixed batch; else the evaluation prompts of each task."""
        if self.order == "fixed":
            return self.select(0)
        return tuple(prompt for name, task in self.tasks.items() for prompt in self.named(name, task.prompts()))

    def _places(self, step: int) -> dict[str, tuple[int, int]]:
        """The index of each task in its own sequence before and after a step."""
        before, after = (self._used(steps * self.prompts_per_step) for steps in (step, step + 1))
        return {name: (before[name], after[name]) for name in self.tasks}

    def _used(self, prompts: int) -> dict[str, int]:
        """How many of the first `prompts` prompts each task has: its share, rounded down, of what earlier ones left."""
        used, left = {}, prompts
        for name, share in self._of_rest.items():
            used[name] = int(left * share)
            left -= used[name]
        return used


class Phases(Several):
    """Tasks one after another: each entry of `schedule` is a task and its steps; null, in the last: all that remain.

    A task that comes again continues where it stopped. Evaluation uses the prompts of all tasks, whatever the phase.
    """

    def __init__(
        self,
        *,
        tasks: Mapping[str, Task],
        schedule: Annotated[Sequence[tuple[str, Annotated[int, Ge(1)] | None]], MinLen(1)],
        total_steps: Annotated[int, Ge(1)],
        sampling: SamplingOverrides,
    ) -> None:
        said = f"task.schedule={[list(phase) for phase in schedule]}"
        if {name for name, _ in schedule} != set(tasks):
            raise ConfigError(f"{said}: allowed: each of {', '.join(tasks)}, once or more")
        if any(count is None for _, count in schedule[:-1]):
            raise ConfigError(f"{said}: allowed: a number of steps for each phase, or null for the last")
        self.phases = [(name, total_steps if count is None else count) for name, count in schedule]
        if sum(count for _, count in self.phases) < total_steps:
            raise ConfigError(f"{said}: ends before the run's {total_steps} steps; let null be last")
        self.tasks = tasks
        self.total_steps = total_steps
        self.sampling = sampling

    def table(self) -> list[tuple[str, int, int]]:
        """Each phase that the run reaches: task, first step, and the step after its last; counted from 0."""
        rows, start = [], 0
        for name, count in self.phases:
            if start < self.total_steps:
                rows.append((name, start, min(start + count, self.total_steps)))
            start += count
        return rows

    def select(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of a step; steps after the run's last belong to the last phase."""
        done = dict.fromkeys(self.tasks, 0)
        rows = self.table()
        for name, start, end in rows:
            if step < end or (name, start, end) == rows[-1]:
                return self.named(name, self.tasks[name].select(done[name] + step - start))
            done[name] += end - start
        raise AssertionError("the last phase has no end")

    def prompts(self) -> tuple[Prompt, ...]:
        """The evaluation prompts of all tasks, each text once."""
        asked = {p.text: p for name, task in self.tasks.items() for p in self.named(name, task.prompts())}
        return tuple(asked.values())


def subtasks(task: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The nodes of a task's subtasks, by name; {} for a task without any, even if its `tasks` is something else."""
    inner = task.get("tasks")
    return {
        name: node for name, node in (inner if isinstance(inner, Mapping) else {}).items() if isinstance(node, Mapping)
    }


def notes_of(tasks: Iterable[Any]) -> list[str]:
    """The notes of all tasks that have some."""
    return [note for task in tasks if isinstance(task, Noted) for note in task.notes()]


def malformed_of(tasks: Iterable[Any]) -> list[Malformed]:
    """The malformed rows in the data of all tasks, and of the tasks that these are made of."""
    found: list[Malformed] = []
    for task in tasks:
        if isinstance(task, Several):
            found += malformed_of(task.tasks.values())
        elif isinstance(reading := getattr(task, "reading", None), Reading):
            found += reading.malformed
    return found
