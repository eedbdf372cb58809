"""The composed configuration: every option is taken, and every key does something."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from rookexp import build, check, data, door, nodes
from rookexp.corpus import Corpus
from rookexp.errors import ConfigError

CONF = door.conf_dir()
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name not in ("hydra", "local"))
OPTIONS = [f"{group}={path.stem}" for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


NAMES = ("config", "pretrain", "data", "evaluate")  # of the doors' configurations


def composed(name: str, *overrides: str) -> DictConfig:
    door.register_resolvers()
    with hydra.initialize_config_dir(str(CONF), **door.version_base()):
        return hydra.compose(name, list(overrides))


def compose(*overrides: str) -> dict[str, Any]:
    return door.plain(composed("config", *overrides))


def check_door(name: str, config: Mapping[str, Any]) -> None:
    """What the door does before it builds."""
    if name == "config":
        build.check_config(config)
    elif name == "pretrain":
        build.check_groups(config, build.PRETRAIN_GROUPS, build.Pretraining)
    elif name == "evaluate":
        build.check_groups(config, build.EVALUATE_GROUPS, build.HeldOut, build.HELD_OUT_GIVEN)
    else:
        Corpus(**data.check_config(config))  # it knows the names of its shares


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_is_taken(option: str) -> None:
    build.check_config(compose(option))


@pytest.mark.parametrize("experiment", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_can_be_tried_fast(experiment: str) -> None:
    config = compose(f"experiment={experiment}", "debug=fast")
    build.check_config(config)
    assert config["steps"] == 2


def test_all_groups_are_known_to_build() -> None:
    assert {*build.GROUPS, "experiment", "debug"} == set(GROUPS)


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda p: str(p.relative_to(CONF)))
def test_every_field_has_a_comment(path: Path) -> None:
    assert path.suffix == ".yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#"), "a file says what it is for"
    inherits = path.parent != CONF and "defaults:" in lines  # what it changes has its comment where it comes from
    if inherits or path.parent.name in ("hydra", "debug", "experiment"):
        return
    said = False  # one comment may speak of the keys that follow it
    for line in lines:
        key = re.match(r"\s*([a-z]\w*):\s*\S", line)
        assert said or not key or " # " in line, f"{path.name}: {key[1]} has no comment"
        said = line.strip().startswith("#") or (said and re.match(r"\s*[a-z]\w*:", line) is not None)


def test_values_come_from_one_place() -> None:
    config = compose("grpo.prompts_per_step=5", "seed=3", "grpo.max_new_tokens=7", "optim=adamw_cosine", "steps=9")
    assert config["task"]["prompts"] == 5
    assert config["task"]["seed"] == 0  # the same prompts whatever the run's seed
    assert config["eval"]["max_new_tokens"] == 7
    assert config["optim"]["schedule"]["total_steps"] == 9


def test_words_that_yaml_might_take_for_something_else() -> None:
    assert compose("verdict=off")["verdict"] == "off"
    assert compose("debug=fast")["verdict"] == "off"


def test_make_passes_objects_by_name_and_keys_by_value() -> None:
    rate = nodes.make(compose("optim=adamw_linear", "optim.schedule.floor_ratio=0")["optim"]).schedule
    assert rate.factor(0) == 1
    assert rate.factor(100) == 0
    node = {"_target_": f"{__name__}.pair", "_partial_": True, "b": 2}
    assert nodes.make(node, a=1, b=3, c=4) == (1, 2)
    assert nodes.make(node)(a=5) == (5, 2)


def pair(*, a: int, b: int) -> tuple[int, int]:
    return a, b


# ---- golden configurations, and no key without a consumer -----------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_golden_composed_default(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.yaml", OmegaConf.to_yaml(composed(name)))


def nodes_of(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all mappings inside, the whole included."""
    yield path
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from nodes_of(value, (*path, key))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_nobody_takes_is_refused_wherever_it_stands(name: str) -> None:
    places = list(nodes_of(door.plain(composed(name))))
    assert len(places) > 1
    for place in places:
        config = door.plain(composed(name))
        node = config
        for key in place:
            node = node[key]
        node["ignored"] = 1
        with pytest.raises(ConfigError, match="ignored"):
            check_door(name, config)


SOURCES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in (CONF.parent / "rookexp").rglob("*.py")}
READ = {
    node.attr
    for tree in SOURCES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
}
TARGETS = sorted(
    {
        match[1]
        for path in CONF.rglob("*.yaml")
        for match in re.finditer(r"_target_: (\S+)", path.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_of_a_target_is_used(target: str) -> None:
    """A key that its constructor takes and forgets would be a knob that does nothing."""
    found = check.locate(target, "_target_")
    function = found.__init__ if inspect.isclass(found) else found
    names = set(inspect.signature(found).parameters)
    if dataclasses.is_dataclass(found):
        assert names <= READ
        return
    if function is object.__init__:
        assert not names
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert names <= loaded
    for node in ast.walk(tree):  # self.x = x alone is a use only if somebody reads .x
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            assert node.targets[0].attr in READ, node.targets[0].attr


def test_every_key_that_belongs_to_no_constructor_is_used() -> None:
    asked = {
        node.slice.value
        for name in ("build", "session")
        for node in ast.walk(SOURCES[name])
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    texts = [path.read_text(encoding="utf-8") for path in CONF.rglob("*.yaml")]
    interpolated = {match.split(".")[-1] for text in texts for match in re.findall(r"\$\{([a-z_.]+)\}", text)}
    for record in (build.Run, build.Pretraining):
        assert {field.name for field in dataclasses.fields(record)} <= READ | asked | interpolated
    for keys in build.ALSO.values():
        assert set(keys) <= READ | asked | interpolated
