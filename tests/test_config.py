"""The composed configuration: every option is taken, and every key does something."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest
import tiny
import torch
from omegaconf import DictConfig, OmegaConf

from rookexp import aggregation, build, data, kl, session, uci, uci_protocol
from rookexp.benchmark import settings
from rookexp.config import check, composing, door, nodes
from rookexp.corpora.corpus import Corpus
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, EngineError
from rookexp.rewards.engine import find_stockfish

CONF = composing.conf_dir()
SWEEPING = ("sweep", "sampler", "pruner")  # about many runs: tests/test_sweep.py
APART = ("hydra", "local", *SWEEPING)
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name not in APART)
OPTIONS = [f"{group}={path.stem}" for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


NAMES = ("config", "pretrain", "data", "evaluate", "uci", "bench")  # of the doors' configurations


def composed(name: str, *overrides: str) -> DictConfig:
    door.register_resolvers()
    with hydra.initialize_config_dir(str(CONF), **composing.version_base()):
        return hydra.compose(name, list(overrides))


@functools.cache
def composed_once(*overrides: str) -> dict[str, Any]:
    return door.plain(composed("config", *overrides))


def compose(*overrides: str) -> dict[str, Any]:
    return copy.deepcopy(composed_once(*overrides))


def check_door(name: str, config: Mapping[str, Any]) -> None:
    """What the door does before it builds."""
    if name == "config":
        build.check_config(config)
    elif name == "pretrain":
        build.check_groups(config, build.PRETRAIN_GROUPS, build.Pretraining)
    elif name == "evaluate":
        build.check_groups(config, build.EVALUATE_GROUPS, build.Exam, build.EXAM_GIVEN)
    elif name == "uci":
        build.check_groups(config, uci.GROUPS, uci_protocol.Settings)
    elif name == "bench":
        settings.checked(config)
    else:
        Corpus(**data.check_config(config))  # it knows the names of its shares, as the other does
        nodes.make(config["mix"])
        nodes.make(config["transitions"])


# ---- options --------------------------------------------------------------------------------------------------------


TINY = (
    "debug=fast", "model=fresh_nano", "model.n_layer=1", "model.n_head=1", "model.n_embd=8", "hardware.precision=fp32",
)  # fmt: skip
NOT_BUILT = ("model", "hardware", "track", "experiment", "debug")  # too large, not here, or no part of an objective
TO_BE_FELT = {  # what lets a choice be felt in two steps
    "kl=warmup": ("kl.warmup=1",),
    "task=rookworld": (f"task.data={Path(__file__).parent}/released.txt",),
    "reference=hard": ("reference.every=1",),
    "reference=interpolate": ("reference.at=1",),
    "loss=dual_clip": ("loss.dual_clip=1.3",),
    "loss=two_sided": ("loss.delta=1.4",),
    "loss=cispo": ("loss.clip_high=0.3",),
    "baseline=maxrl": ("baseline.min_mean=0.2",),
    "reward=engine": ("reward.engine.nodes=200", "reward.engine.depth=null", "reward.engine.cache=null"),
}


# The name under which an objective has a group's object.
PARTS = {"loss": "policy_loss", "baseline": "baseline", "kl": "coefficient", "reference": "reference_sync"}


def with_option(option: str) -> dict[str, Any]:
    return compose(*TINY, option, *TO_BE_FELT.get(option, ()))


def no_stockfish() -> bool:
    """Whether this machine has none."""
    try:
        return not find_stockfish(None)
    except EngineError:
        return True


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_builds_and_takes_no_other_key(option: str, tmp_path: Path) -> None:
    group = option.partition("=")[0]
    config = compose(option) if group in NOT_BUILT else with_option(option)
    build.check_config(config)
    if group not in NOT_BUILT and not (option == "reward=engine" and no_stockfish()):
        assert isinstance(build.build_training(config, tmp_path), session.Training)
    if group in build.GROUPS and group != "track":
        config[group]["ignored"] = 1
        with pytest.raises(ConfigError, match=rf"{group}\.ignored=1: no such key"):
            build.check_config(config)


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
    if inherits or path.parent.name in ("hydra", "debug", "experiment", "sweep"):
        return
    said = False  # one comment may speak of the keys that follow it
    for line in lines:
        key = re.match(r"\s*([a-z]\w*):\s*\S", line)
        assert said or not key or " # " in line, f"{path.name}: {key[1]} has no comment"
        said = line.strip().startswith("#") or (said and re.match(r"\s*[a-z]\w*:", line) is not None)


MIXES = ("rookworld_mix", "rookworld_phases", "rookworld")


@pytest.mark.parametrize("name", MIXES)
def test_each_kind_of_prompt_may_be_sampled_in_its_own_way(name: str) -> None:
    task = types.SimpleNamespace(kinds=("P", "A"))

    def found(*words: str) -> tuple[Any, Any]:
        config = compose(f"task={name}", "grpo.temperature=0.9", *words)
        build.check_config(config)
        task.sampling = config["task"]["sampling"]
        shared = build.shared_sampling(config["grpo"])
        own = build.own_sampling(task, shared)
        return own, build.own_lengths(own, shared)

    shared = Sampling(temperature=0.9, top_k=None, top_p=None, max_new_tokens=80)
    assert found() == ({}, {})
    assert found("task.sampling.A.temperature=0.9", "~task.sampling.P.temperature") == ({}, {}), "absent: as all"
    hot = dataclasses.replace(shared, temperature=1.2, top_p=0.9)
    assert found("task.sampling.A.temperature=1.2", "task.sampling.A.top_p=0.9") == ({"A": hot}, {})
    longer = dataclasses.replace(shared, max_new_tokens=144)
    assert found("task.sampling.P.max_new_tokens=144") == ({"P": longer}, {"P": 144})


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("task.sampling.A.temperature=0", r"task\.sampling\.A\.temperature=0: allowed: a number > 0"),
        ("task.sampling.P.max_new_tokens=0", r"task\.sampling\.P\.max_new_tokens=0: allowed: an integer >= 1"),
        ("+task.sampling.P.top_q=1", r"task\.sampling\.P\.top_q=1: no such key; .*did you mean task.sampling.P.top_"),
        ("eval.max_new_tokens=0", r"eval\.max_new_tokens=0: allowed: an integer >= 1"),
        ("task.sampling.P=3", r"task\.sampling\.P=3: allowed: a mapping"),
        ("+task.sampling.B.temperature=1", r"task\.sampling\.B: no such prompts in this task; allowed .*: P, A"),
    ],
)
def test_a_way_to_sample_that_there_is_not_is_one_line(word: str, line: str) -> None:
    config = compose(*TINY, "task=rookworld_mix", word)
    with pytest.raises(ConfigError, match=line) as found:
        build.build_training(config, Path("nowhere"))
    assert "\n" not in str(found.value)


def test_a_way_to_sample_inside_a_mix_is_refused_and_not_ignored(tmp_path: Path) -> None:
    config = compose(
        *TINY, "task=rookworld_phases", "task.schedule=[[P,1],[A,null]]", "task.sampling.A.temperature=0.7"
    )
    inner = config["task"]["tasks"]["P"] = compose(*TINY, "task=rookworld_mix")["task"]
    build.build_training(config, tmp_path)
    inner["sampling"]["A"]["temperature"] = 0.7
    line = r"task\.tasks\.P\.sampling\.A: not read inside a mix; set task\.sampling\.A$"
    with pytest.raises(ConfigError, match=line):
        build.build_training(config, tmp_path)


def test_values_come_from_one_place() -> None:
    config = compose("grpo.prompts_per_step=5", "seed=3", "grpo.max_new_tokens=7", "optim=adamw_cosine", "steps=9")
    assert config["task"]["prompts"] == 5
    assert config["task"]["seed"] == composed("config").task.seed  # the same prompts whatever the run's seed
    assert config["eval"]["max_new_tokens"] == 7
    assert config["optim"]["schedule"]["total_steps"] == 9


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "loss=sapo",
            "baseline=rloo",
            "grpo.dead_groups=resampled",
            "kl=adaptive",
            "reference=ema",
            "grpo.kl_type=ratio_k3",
        ),
        ("loss=gspo_token", "baseline=gae", "kl=anneal", "reference=hard", "grpo.kl_type=k1", "grpo=ppo"),
    ],
)
def test_what_is_chosen_is_what_is_built(overrides: tuple[str, ...], tmp_path: Path) -> None:
    words = ("aggregation=sequence_sum", "kl_placement=reward", "max_resamples=5")
    words += ("truncated=masked", "overlong_buffer=3", "entropy_coef=0.5", "advantage_clip=0.7", "inner_epochs=3")
    config = compose(*TINY, *overrides, *(f"grpo.{word}" for word in words), "diagnose_every=7")
    training = build.build_training(config, tmp_path)
    objective: Any = training.trainer.objective
    for group, name in PARTS.items():
        assert type(getattr(objective, name)) is check.locate(config[group]["_target_"], "")
    assert objective.divergence is kl.TYPES[config["grpo"]["kl_type"]]
    assert objective.aggregation is aggregation.sequence_sum
    assert (objective.kl_placement, objective.truncated) == ("reward", "masked")
    assert (objective.entropy_coef, objective.advantage_clip) == (0.5, 0.7)
    resamples = 5 if objective.dead_groups == "resampled" else 0
    assert (objective.source.resamples, objective.source.overlong_buffer) == (resamples, 3)
    assert objective.dead_groups == config["grpo"]["dead_groups"]
    assert (training.trainer.inner_epochs, training.trainer.diagnose_every) == (3, 7)
    assert not objective.single_update
    assert objective.modules.keys() >= {"baseline", "coefficient", "reference"}
    rates = [group["lr"] for group in training.trainer.optimizer.param_groups]
    assert rates[2:] == ([config["baseline"]["value_lr"]] if "baseline=gae" in overrides else [])
    assert rates[:2] == [config["optim"]["lr"]] * 2


# ---- every choice takes part ----------------------------------------------------------------------------------------


def trained(**changes: Any) -> str:
    """What two steps with several updates come to, in the tiny world: all metrics and weights."""
    model, record = tiny.policy(), tiny.Record()
    objective = tiny.grpo(model, **{"group_size": 5, "single_update": False, "overlong_buffer": None} | changes)
    groups: list[dict[str, Any]] = [{"params": model.parameters()}]
    groups += [{"params": head.parameters(), "lr": rate} for head, rate in objective.heads.items()]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    tiny.trainer(model, objective, optimizer, lr=None, steps=2, inner_epochs=2, tracker=record).fit()
    return repr((record.timeless(), tiny.flat(model).sum().item()))


@pytest.mark.parametrize("group", PARTS)
def test_no_two_options_of_a_group_do_the_same(group: str) -> None:
    options = [option for option in OPTIONS if option.startswith(f"{group}=")]
    found = {}
    for option in options:
        reward = {"reward": tiny.InTwo()} if group == "baseline" else {}  # one of them asks for stages
        found[option] = trained(**{PARTS[group]: nodes.make(with_option(option)[group])}, **reward)
    assert len(options) >= 3
    twins = {(a, b) for a in found for b in found if a < b and found[a] == found[b]}
    assert not twins


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("divergence", list(kl.TYPES.values())),
        ("aggregation", list(aggregation.BY_NAME.values())),
        ("kl_placement", ["loss", "reward"]),
        ("dead_groups", ["kept", "dropped", "resampled"]),
        ("max_resamples", [1, 3]),
        ("truncated", ["kept", "masked"]),
        ("overlong_buffer", [None, 2, 4]),
        ("advantage_clip", [None, 0.1]),
        ("entropy_coef", [0.0, 0.1]),
    ],
)
def test_no_two_words_of_a_key_do_the_same(name: str, values: list[Any]) -> None:
    class Rounded(tiny.Vowels):  # so that some groups are dead
        def score(self, prompts: Any, texts: Any) -> Any:
            scores = super().score(prompts, texts)
            return dataclasses.replace(scores, rewards=(scores.rewards > 0.3).float())

    fixed: dict[str, Any] = {"reward": Rounded(), "group_size": 2}
    fixed |= {"dead_groups": "resampled"} if name == "max_resamples" else {}
    found = [trained(**fixed | {name: value}) for value in values]
    assert len(set(found)) == len(values)


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
        for match in re.finditer(r"_target_: (rookexp\.\S+)", path.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_of_a_target_is_used(target: str) -> None:
    """A key that its constructor takes and forgets would be a knob that does nothing."""
    found = check.locate(target, "_target_")
    function = found.__init__ if inspect.isclass(found) else found
    names = {name for name, p in inspect.signature(found).parameters.items() if p.kind in check.NAMED}
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
