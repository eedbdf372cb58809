"""The keys of conf/hydra/sweeper/rookexp.yaml, checked, and what they say of trials and their jobs."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen
from optuna.exceptions import ExperimentalWarning

from rookexp.comparison import measures
from rookexp.config import check, nodes
from rookexp.errors import ConfigError
from rookexp.run_folder import runs

PREFIX = "hydra.sweeper"
CONSTRAINT = re.compile(r"\s*(\S+?)\s*(<=|>=)\s*(\S+)\s*")
OPTUNA = "optuna."
NODES = ("sampler", "pruner")
EXTRA = "pip install 'rookexp[sweep]'"

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How points are chosen, run and compared."""

    study_name: Annotated[str, MinLen(1)]  # also the name of the folder in multirun/
    storage: str | None  # a database; None = a journal file in the sweep's folder
    n_trials: Annotated[int, Ge(1)] | None  # points in all; None = the whole grid
    n_jobs: Annotated[int, Ge(1)]  # jobs that the launcher gets at a time
    seeds: Annotated[int, Ge(1)] | Annotated[list[Annotated[int, Ge(0)]], MinLen(1)]
    objective: str | Annotated[list[str], MinLen(1)]
    direction: Direction | list[Direction]
    constraints: list[str]
    baseline: dict[str, Any] | None  # None = the first point
    max_failure_rate: Annotated[float, Ge(0), Le(1)]
    params: dict[str, Any]
    sampler: dict[str, Any]
    new_seed: bool  # whether the sampler's seed is another one for each trial
    pruner: dict[str, Any]
    prune_on: Literal["step", "seed"]  # whether a pruner gets a value after each evaluation or each seed's run

    @property
    def objectives(self) -> dict[str, Direction]:
        """Figure -> direction.

        Raises: ConfigError where there are not as many directions as names.
        """
        names = [self.objective] if isinstance(self.objective, str) else self.objective
        directions = [self.direction] * len(names) if isinstance(self.direction, str) else self.direction
        if len(names) != len(directions):
            raise check.refusal(f"{PREFIX}.direction", directions, f"allowed: one for each of {', '.join(names)}")
        return dict(zip(names, directions, strict=True))

    @property
    def signs(self) -> list[int]:
        """What each objective is multiplied by, so that less is better."""
        return [-1 if direction == "maximize" else 1 for direction in self.objectives.values()]

    @property
    def bounds(self) -> list[tuple[str, Literal["<=", ">="], float]]:
        """The constraints as figure, relation and number.

        Raises: ConfigError for a text that is no constraint.
        """
        found = []
        for text in self.constraints:
            match = CONSTRAINT.fullmatch(text)
            try:
                name, relation, number = match.groups()  # type: ignore[union-attr]
                found.append((name, relation, float(number)))
            except (AttributeError, ValueError) as error:
                allowed = "allowed: a figure, <= or >=, and a number, as in 'kl <= 0.5'"
                raise check.refusal(f"{PREFIX}.constraints", text, allowed) from error
        return found  # type: ignore[return-value]

    @property
    def figures(self) -> list[str]:
        """The figures of the objectives and of the constraints; one may come twice."""
        return [*self.objectives, *(name for name, _, _ in self.bounds)]

    @property
    def prunes(self) -> bool:
        """Whether runs may be ended early."""
        return not str(self.pruner.get("_target_", "")).endswith(".NopPruner")

    def never_prunes(self, points: float, seeds: int, lengths: Collection[tuple[int, int]]) -> str | None:
        """Why the pruner can end nothing early, as far as the keys that Optuna's have say; None where it can.

        `points`: how many there will be; `seeds`: of each; `lengths`: steps and eval.every of some of their runs.
        """
        own = {key: value for key, value in self.pruner.items() if isinstance(value, int | float)}
        startup = own.get("n_startup_trials", 0)
        if points <= startup:
            return f"{startup} points must finish before one is ended, and there are {points}"
        if self.prune_on == "seed":
            needed = max(1, own.get("n_warmup_steps", 0) + 1, own.get("n_startup_steps", 0))
            if 0 < (p := own.get("p_threshold", 1)) < 1:
                needed = max(needed, math.floor(-math.log2(p)) + 1)  # n signed ranks have a p-value of 0.5^n or more
            return f"it needs {needed} seeds and one more to save, and a point has {seeds}" if seeds <= needed else None
        # The last evaluation that leaves something to save, as a step of its seed and as one of the whole point.
        inside = [(steps - 1) // every * every for steps, every in lengths]
        of_seed = max(inside) if seeds == 1 else max(steps for steps, _ in lengths)
        of_point = max((seeds - 1) * steps + last for (steps, _), last in zip(lengths, inside, strict=True))
        for key, last in (("n_warmup_steps", of_seed), ("min_resource", of_point)):
            if last < (first := max(1, own.get(key, 0))):
                lower = f"{PREFIX}.pruner.{key}" if first > 1 else "eval.every"
                return f"it looks from step {first} on, but the last evaluation in time is at {last}; lower {lower}"
        return None

    def seeds_of(self, typed: int | None) -> list[int]:
        """The seeds of every point; `typed`: the command line's own `seed=`, None where there is none.

        Raises: ConfigError when both it and `seeds` are given, and for a seed that comes twice.
        """
        if typed is not None and self.seeds != 1:
            raise check.refusal(
                runs.SEED, typed, f"sweep.seeds={check.spell(self.seeds)} says which; leave one of them out"
            )
        seeds = [typed] if typed is not None else self.seeds
        if isinstance(seeds, list) and len(set(seeds)) < len(seeds):
            raise check.refusal(f"{PREFIX}.seeds", seeds, "allowed: each seed once")
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    def make_sampler(self, count: int) -> Any:
        """Optuna's sampler for the trial after `count` others.

        Raises: ConfigError where it cannot be imported or would not take its keys.
        """
        node = self.sampler
        if self.new_seed and isinstance(node.get("seed"), int):
            # Else a resumed sweep, or a second process, would draw the known points again.
            node = {**node, "seed": node["seed"] + count}
        return make(node, f"{PREFIX}.sampler")

    def make_pruner(self) -> Any:
        """Optuna's pruner.

        Raises: ConfigError as `make_sampler` does.
        """
        return make(self.pruner, f"{PREFIX}.pruner")


def settings(values: Mapping[str, Any]) -> Settings:
    """The settings of a sweeper's node.

    Raises: ConfigError naming the key, the value, what is allowed and the nearest spelling.
    """
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    check.check_call(Settings, values, PREFIX, runtime=False, given=(), also={})
    for key, value in values.items():
        if key not in NODES and isinstance(value, Mapping) and "_target_" in value:
            raise check.refusal(f"{PREFIX}.{key}", value, "allowed: a value; only the sampler and the pruner are built")
    found = Settings(**values)
    if ".." in Path(found.study_name).parts:
        raise check.refusal(f"{PREFIX}.study_name", found.study_name, "allowed: a name of a folder inside multirun")
    if found.prunes and len(found.objectives) > 1:
        names = ", ".join(found.objectives)
        raise ConfigError(f"pruner: one objective can be pruned on, not {names}; type pruner=none")
    known = (*measures.FIGURES, *measures.PLAIN)
    for name in found.figures:  # any name may be that of a metric of one's own; only what resembles ours is a typo
        if name not in known and "/" not in name and (near := check.nearest(name, known)):
            key = "objective" if name in found.objectives else "constraints"
            raise check.refusal(f"{PREFIX}.{key}", name, f"no figure or metric of that name{near}")
    for part in (found.sampler, found.pruner):
        if not str(part.get("_target_", "")).startswith((OPTUNA, "rookexp.")):
            raise check.refusal(f"{PREFIX}: _target_", part.get("_target_"), "allowed: a class of optuna's")
    return found


def make(node: Mapping[str, Any], path: str) -> Any:
    """Builds what a node of Optuna's names.

    Raises: ConfigError, also where a package that it needs is missing.
    """
    name = str(node["_target_"]).rpartition(".")[2]
    try:
        check.check_node(node, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # Optuna gives it for much that is years old
            return nodes.make(node)
    except ImportError as error:
        raise ConfigError(f"{path}: {name} needs a package that is not here; type {EXTRA}") from error
    except (TypeError, ValueError) as error:  # Optuna refuses a value itself; its annotations cannot be read
        given = ", ".join(f"{path}.{key}={check.spell(value)}" for key, value in node.items() if key != "_target_")
        raise ConfigError(f"{name} does not take {given or 'nothing'}: {' '.join(str(error).split())}") from error
