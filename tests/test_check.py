"""The checker of config nodes: what it takes, what it refuses, and in which words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MinLen
from hypothesis import given
from hypothesis import strategies as st

from rookexp.config import check
from rookexp.errors import ConfigError

HERE = __name__


class Part:
    """A leaf."""

    def __init__(self, *, weight: Annotated[float, Gt(0), Lt(1)], shape: Literal["switch", "linear"]) -> None:
        self.weight = weight


class Whole:
    """Every kind of key."""

    def __init__(
        self,
        model: Part,
        *,
        count: Annotated[int, Ge(1)],
        rate: Annotated[float, Ge(0), Le(1)] | None,
        flag: bool,
        name: str,
        betas: Annotated[list[Annotated[float, Ge(0), Lt(1)]], Len(2, 2)],
        table: Mapping[str, int],
        part: Part,
        callback: Callable[[int], float],
        seed: int,
    ) -> None:
        self.count = count


@dataclass(frozen=True)
class Record:
    """A dataclass under a _target_."""

    lr: Annotated[float, Gt(0)]
    words: Sequence[str] = ()


class Maker(Record):
    """Of a dataclass an heir with a constructor of its own, as a user's may be."""

    def __init__(self, *, lr: str, size: Annotated[int, Ge(1)]) -> None:
        super().__init__(lr=float(lr), words=(lr,) * size)


def function(*, side: Annotated[int, Interval(ge=1, le=8)]) -> int:
    return side


def switched(*, doctor: Literal["quick", "off"]) -> str:
    return doctor


def open_ended(first: int, **rest: Any) -> None: ...


class Library:
    """A library's class that takes whatever there is, as torch.nn.Module does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class Silent(Library):
    """Ours, without a key."""


class Heir(Part):
    """Ours, with the keys of another one of ours."""


PART = {"_target_": f"{HERE}.Part", "weight": 0.5, "shape": "linear"}
WHOLE = {
    "_target_": f"{HERE}.Whole",
    "_partial_": True,
    "count": 3,
    "rate": None,
    "flag": True,
    "name": "x",
    "betas": [0.9, 0],
    "table": {"a": 1},
    "part": PART,
}


def refused(node: dict[str, Any], path: str = "group", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check.check_node(node, path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_right_node_is_taken() -> None:
    check.check_node(WHOLE, "group", given=("seed",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "group.count=0: allowed: an integer >= 1"),
        ({"count": 2.0}, "group.count=2.0: allowed: an integer >= 1"),
        ({"count": True}, "group.count=true: allowed: an integer >= 1"),
        ({"count": "3"}, "group.count=3: allowed: an integer >= 1; this is text, the number is typed group.count=3"),
        ({"count": "05"}, "; this is text, the number is typed group.count=5"),
        ({"rate": "1e-4"}, "or null; this is text, the number is typed group.rate=0.0001"),
        ({"count": None}, "group.count=null: allowed: an integer >= 1"),
        ({"rate": 1.5}, "group.rate=1.5: allowed: a number >= 0 and <= 1, or null"),
        ({"rate": float("nan")}, "group.rate=nan: allowed: a number >= 0 and <= 1, or null"),
        ({"rate": "abc"}, "group.rate=abc: allowed: a number >= 0 and <= 1, or null"),
        ({"flag": 1}, "group.flag=1: allowed: true or false"),
        (
            {"name": 3},
            "group.name=3: allowed: text; text that YAML reads as another type is quoted twice: \"group.name='TEXT'\"",
        ),
        ({"betas": [0.9]}, "group.betas=[0.9]: allowed: a list of length 2, each a number >= 0 and < 1"),
        ({"betas": [0.9, 1.0]}, "group.betas=[0.9, 1.0]"),
        ({"betas": 0.9}, "group.betas=0.9"),
        ({"table": {"a": 1, "b": "c"}}, "group.table.b=c: allowed: an integer"),
        ({"table": 3}, "group.table=3: allowed: a mapping"),
        ({"part": 3}, "group.part=3: allowed: a node whose _target_ builds a Part"),
        ({"part": PART | {"weight": 1}}, "group.part.weight=1: allowed: a number > 0 and < 1"),
        (
            {"part": PART | {"shape": "lineal"}},
            "group.part.shape=lineal: allowed: switch, linear; did you mean linear?",
        ),
        ({"part": PART | {"wieght": 1}}, "did you mean group.part.weight?"),
        (
            {"cuont": 1},
            "group.cuont=1: no such key; allowed in group: count, rate, flag, name, betas, table; did you mean",
        ),
        ({"seed": 1}, "group.seed=1: no such key"),
        ({"_partial_": 1}, "group._partial_=1: allowed: true or false"),
        ({"_target_": f"{HERE}.Whoel"}, f"group._target_={HERE}.Whoel: no 'Whoel' in {HERE}; did you mean "),
        ({"_target_": "no.such.thing"}, "group._target_=no.such.thing: no such module"),
        ({"_target_": "plain"}, "group._target_=plain: allowed: an import path"),
        ({"_target_": f"{HERE}.HERE"}, "not a class or a function"),
    ],
)
def test_refusals_name_key_value_allowed_and_nearest(changes: dict[str, Any], words: str) -> None:
    assert words in refused(WHOLE | changes, given=("seed",))


def names(*, files: Annotated[Sequence[str], MinLen(1)]) -> Sequence[str]:
    return files


def test_one_value_where_a_list_is_wanted_is_written_as_a_list() -> None:
    node = {"_target_": f"{HERE}.names", "files": "a.txt"}
    assert refused(node).endswith(
        "group.files=a.txt: allowed: a list of length >= 1, each text; type group.files=[a.txt]"
    )
    assert refused(node | {"files": []}).endswith("allowed: a list of length >= 1, each text")
    assert refused(node | {"files": 3}).endswith("allowed: a list of length >= 1, each text")


def turns(*, schedule: Sequence[tuple[str, Annotated[int, Ge(1)] | None]]) -> Any:
    return schedule


def test_a_list_whose_places_have_types_of_their_own() -> None:
    node = {"_target_": f"{HERE}.turns", "schedule": [["P", 25], ["A", None]]}
    check.check_node(node, "task")
    for wrong in (["P", 0], ["P"], ["P", 1, 2], [1, "P"], "P"):
        assert refused(node | {"schedule": [["P", 25], wrong]}).endswith(
            "allowed: a list, each a list of text, then an integer >= 1, or null"
        )


@pytest.mark.parametrize("key", ["count", "rate", "flag", "betas"])
def test_a_missing_key_is_named(key: str) -> None:
    node = {k: v for k, v in WHOLE.items() if k != key}
    assert refused(node, given=("seed",)).startswith(f"group.{key}: missing; allowed: ")


def paid(prompts, texts):  # type: ignore[no-untyped-def]
    """A reward where what makes one is wanted."""


def test_a_function_in_place_of_a_class_is_told() -> None:
    said = "paid is called once, with the keys of its file: name a class; see docs/own.md"
    assert refused({"_target_": f"{HERE}.paid"}) == f"group.prompts: missing; allowed: anything; {said}"


class Asked:
    """A task, which is given the run's tokenizer."""

    def __init__(self, tokenizer) -> None:  # type: ignore[no-untyped-def]
        self.tokenizer = tokenizer


def test_a_task_whose_file_does_not_wait_for_the_tokenizer_is_told() -> None:
    said = "the run gives it once the model is there: write _partial_: true beside _target_"
    assert refused({"_target_": f"{HERE}.Asked"}) == f"group.tokenizer: missing; allowed: anything; {said}"


def test_objects_may_be_absent_only_from_a_partial_node() -> None:
    node = {k: v for k, v in WHOLE.items() if k != "part"}
    check.check_node(node, "group", given=("seed",))
    assert refused(node | {"_partial_": False}, given=("seed",)) == (
        "group.model: missing; allowed: a node whose _target_ builds a Part"
    )


def test_keys_that_are_for_somebody_else() -> None:
    also = {"every": Annotated[int, Ge(1)]}
    check.check_node(PART | {"every": 2}, "eval", also=also)
    assert refused(PART | {"every": 0}, "eval", also=also) == "eval.every=0: allowed: an integer >= 1"
    assert refused(PART, "eval", also=also) == "eval.every: missing; allowed: an integer >= 1"


def test_dataclasses_functions_lists_and_open_ends() -> None:
    check.check_node({"_target_": f"{HERE}.Record", "lr": 1}, "optim")
    check.check_node({"_target_": f"{HERE}.open_ended", "first": 1, "anything": None}, "group")
    check.check_node({"parts": [PART, PART], "n": 3}, "group")
    assert "group.parts[1].weight=2" in refused({"parts": [PART, PART | {"weight": 2}]})
    assert refused({"_target_": f"{HERE}.function", "side": 9}).endswith("an integer >= 1 and <= 8")


def test_an_heir_of_a_dataclass_with_a_constructor_of_its_own_is_asked_for_what_that_takes() -> None:
    node = {"_target_": f"{HERE}.Maker", "lr": "1e-3", "size": 2}
    check.check_node(node, "group")
    assert refused(node | {"lr": 1}).startswith("group.lr=1: allowed: text; ")
    assert refused(node | {"size": "two"}) == "group.size=two: allowed: an integer >= 1"


def test_a_class_without_a_constructor_takes_no_key_that_its_library_would_swallow() -> None:
    check.check_node({"_target_": f"{HERE}.Silent"}, "group")
    assert refused({"_target_": f"{HERE}.Silent", "x": 1}) == "group.x=1: no such key; group has none"
    check.check_node({"_target_": f"{HERE}.Library", "x": 1}, "group")  # which says itself that it takes it
    check.check_node(PART | {"_target_": f"{HERE}.Heir"}, "group")
    assert "group.weight=2: allowed: a number > 0 and < 1" in refused(PART | {"_target_": f"{HERE}.Heir", "weight": 2})
    assert "did you mean group.shape?" in refused(PART | {"_target_": f"{HERE}.Heir", "shap": 1})
    assert refused({"_target_": f"{HERE}.Heir"}) == "group.weight: missing; allowed: a number > 0 and < 1"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.dictionaries(st.sampled_from([k for k in WHOLE if k != "_target_"]) | st.text(), values))
def test_any_plain_node_is_taken_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        check.check_node(WHOLE | changes, "group", given=("seed",))


@given(st.text(), values)
def test_a_refusal_is_one_line(key: str, value: Any) -> None:
    assert "\n" not in str(check.refusal(key, value, "allowed: anything else"))


def test_a_word_that_yaml_reads_as_no_word_is_told_with_its_quotes() -> None:
    node = {"_target_": f"{HERE}.switched", "doctor": yaml.safe_load("off")}
    with pytest.raises(ConfigError) as caught:
        check.check_node(node, "group")
    assert str(caught.value) == (
        'group.doctor=false: allowed: quick, off; in a YAML file it is written "off", for off without quotes means '
        "false there"
    )
