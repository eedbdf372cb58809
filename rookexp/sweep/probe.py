"""Whether the values that a sweep is going to try make configurations at all, found out before the first job runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rookexp.config import across, composing, door, recipes
from rookexp.errors import ConfigError
from rookexp.sweep.space import Listed, Point, Scalar, Space

MOST = 20  # points that a value is tried in, and that are tried where none is right


def settled(overrides: Sequence[str], config: DictConfig) -> list[str]:
    """What a job of the sweep that `config` is composes; an option beside a recipe stands as its file has it."""
    places = composing.searchpath(OmegaConf.select(config, "hydra.overrides.hydra") or ())
    try:
        return [*recipes.taken_out(overrides, str(config.hydra.job.config_name), places), *overrides]
    except (HydraException, OmegaConfBaseException):
        return [*overrides]  # composing them will fail of it, and say so


def refuse_wrong_values(space: Space, config: DictConfig, context: HydraContext, check: door.Check | None) -> None:
    """Refuses a space with a value that no point makes a configuration of, as one that is misspelt.

    Points may still fail, where values do not go together. Of an interval its ends are tried. `check`: what the task
    refuses a configuration by. What varies and can act in none of the points tried is said.
    Raises: what the value raised in the first point with it.
    """

    varied = [f"{param.key}={param.declared}" for param in space.params]
    idle: list[dict[str, str]] = []

    def error_of(point: Point) -> Exception | None:
        try:
            composed = context.config_loader.load_sweep_config(config, settled(space.job(point), config))
            if check is not None:
                job = resolved(composed)
                check(job)
                idle.append(dict(across.idle(job, varied)))
        except (HydraException, OmegaConfBaseException, ConfigError) as error:
            return error
        return None

    lists = {param.key: param.values if isinstance(param, Listed) else param.edges for param in space.params}
    left = {(key, value): None for key, values in lists.items() for value in values}
    errors: dict[tuple[str, Scalar], Exception] = {}
    good: Point = {}
    for tried, point in enumerate(candidates(lists, left)):
        if tried == MOST and not good:
            break
        if (error := error_of(point)) is None:
            good = good or point
            for pair in point.items():
                left.pop(pair, None)
        else:
            for pair in point.items():
                errors.setdefault(pair, error)
    if left:
        key, value = next(iter(left))
        raise (error_of({**good, key: value}) if good else None) or errors[key, value]
    for text, why in idle[0].items() if idle else ():
        if all(text in each for each in idle):
            print(f"note: {text} {why}; points that differ in it alone are the same but for rounding", flush=True)


def candidates(
    lists: Mapping[str, Sequence[Scalar]], left: Mapping[tuple[str, Scalar], None]
) -> Iterator[dict[str, Scalar]]:
    """Points with values that are `left`, which shrinks meanwhile: as few as have each once, then more with each."""
    for i in range(max(map(len, lists.values()))):
        yield {key: values[i % len(values)] for key, values in lists.items()}
    for key, value in list(left):
        others = itertools.product(*((value,) if own == key else values for own, values in lists.items()))
        for values in itertools.islice(others, MOST):
            if (key, value) not in left:
                break
            yield dict(zip(lists, values, strict=True))


def resolved(composed: DictConfig) -> dict[str, Any]:
    """A composed job's configuration as its task would get it.

    Raises: ConfigError for an interpolation that leads nowhere.
    """
    before = HydraConfig.instance().cfg
    try:
        HydraConfig.instance().set_config(composed)
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        return door.plain(own)
    finally:
        HydraConfig.instance().cfg = before
