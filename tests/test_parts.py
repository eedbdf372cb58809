"""What the evaluation asks, and what the parts of a run are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rookexp import parts
from rookexp.errors import ConfigError, DataError
from rookexp.types import Prompt


class Positions:
    """A task that says what it was made of."""

    def __init__(self, *, positions: str, seed: int) -> None:
        self.made_of = f"asked of {positions} by a seed of {seed}"

    def prompts(self) -> tuple[Prompt, ...]:
        return (prompt(self.made_of),)


def prompt(text: str) -> Prompt:
    return Prompt(text=text, ids=(1,), answer=None, task="P")


def test_the_evaluation_asks_the_tasks_prompts_or_those_on_other_positions() -> None:
    task = SimpleNamespace(prompts=lambda: (prompt("the task's"),), select=lambda step: (prompt("a step's"),))
    own = {"_target_": "test_parts.Positions", "positions": "one"}
    for asked, config, text in (
        (None, own, "the task's"),
        (None, {"_target_": "test_parts.Positions"}, "the task's"),
        ("two", own, "asked of two by a seed of 7"),
    ):
        found = parts.evaluation_prompts({"eval": {"positions": asked}, "task": config}, task, {"seed": 7})
        assert found == (prompt(text),)


def test_of_several_tasks_each_that_is_named_is_evaluated_on_its_own_file() -> None:
    node = {"tasks": {"P": {"positions": "one", "seed": 1}, "A": {"positions": "two"}, "R": {"data": "x"}}}
    found = parts.with_positions(node, {"A": "other"})
    assert found == {"tasks": {**node["tasks"], "A": {"positions": "other"}}}
    assert node["tasks"]["A"] == {"positions": "two"}  # what trains keeps its own
    for own in (node, {"positions": "one"}, {"tasks": 3}):
        assert parts.with_positions(own, {}) == own


def of_another_kind(positions: str) -> None:
    raise DataError(f"{positions}, row 1: not an A document")


def test_a_file_of_another_kind_of_task_is_refused_with_the_remedy() -> None:
    task = SimpleNamespace(select=lambda step: (prompt("a step's"),))
    config = {"eval": {"positions": "f"}, "task": {"_target_": "test_parts.of_another_kind", "positions": "x"}}
    words = r"^eval\.positions: f, row 1: not an A document; eval\.positions=null for the task's own$"
    with pytest.raises(DataError, match=words):
        parts.evaluation_prompts(config, task, {})


@pytest.mark.parametrize(
    ("asked", "node", "words"),
    [
        (
            "f",
            {"data": "x"},
            r"eval\.positions=f: this task has several sources or its own split; eval\.positions=null",
        ),
        (
            "f",
            {"tasks": {"P": {"positions": "a"}, "A": {"positions": "b"}, "R": {}}},
            r"split; allowed: 'eval\.positions={P: FILE, A: FILE}', or eval\.positions=null for the task's own$",
        ),
        (
            {"R": "f"},
            {"tasks": {"P": {"positions": "a"}, "R": {}}},
            r"eval\.positions\.R=f: no task of that name has positions; allowed: 'eval\.positions={P: FILE}', or",
        ),
        ({"P": "f"}, {"positions": "a"}, r"no task of that name has positions; allowed: eval\.positions=FILE, or"),
        ({"P": "f"}, {"data": "a"}, r"no task of that name has positions; eval\.positions=null for the task's own$"),
    ],
)
def test_positions_that_no_task_could_ask_are_refused(asked: object, node: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parts.with_positions(node, asked)


def test_only_the_number_of_prompts_that_is_a_steps_grows_wherever_it_stands() -> None:
    node = {"prompts": 8, "seed": 8, "tasks": {"P": {"prompts": 8, "order": "fixed"}, "A": {"prompts": 3}}, "more": [8]}
    wider = {
        "prompts": 9,
        "seed": 8,
        "tasks": {"P": {"prompts": 9, "order": "fixed"}, "A": {"prompts": 3}},
        "more": [8],
    }
    assert parts.with_prompts(node, 8, 9) == wider
