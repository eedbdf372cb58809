"""Checks before a sweep's first job that each value it is going to try is part of some valid configuration."""

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

MOST = 20  # points tried for a value, and points tried in all while none is valid


def job_overrides(overrides: Sequence[str], config: DictConfig) -> list[str]:
    """The overrides that a job of the sweep composes, such that an option beside a recipe stands as in its file."""
    places = composing.searchpath(OmegaConf.select(config, "hydra.overrides.hydra") or ())
    overrides = recipes.without_null(overrides)
    try:
        return [*recipes.taken_out(overrides, str(config.hydra.job.config_name), places), *overrides]
    except (HydraException, OmegaConfBaseException):
        return overrides  # composing them will raise and report the same


def valid_jobs(
    space: Space, config: DictConfig, context: HydraContext, check: door.Check | None
) -> list[dict[str, Any]]:
    """The configurations of points that together have each value; refuses a value with which none is valid.

    Points may still fail, where values do not go together. Of an interval its ends are tried. `check` raises for a
    configuration that the task would refuse. A parameter that has no effect in any point tried is printed.
    Raises: what the value raises in an otherwise valid point, or, where there is none, raised in the first point with
    it.
    """

    varied = [f"{param.key}={param.declared}" for param in space.params]
    jobs: list[dict[str, Any]] = []
    known: dict[tuple[Scalar, ...], Exception | None] = {}

    def error_of(point: Point) -> Exception | None:
        values = tuple(point.values())
        if values in known:
            return known[values]
        known[values] = None
        try:
            composed = context.config_loader.load_sweep_config(config, job_overrides(space.job(point), config))
            if check is not None:
                job = resolved(composed)
                check(job)
                jobs.append(job)
        except (HydraException, OmegaConfBaseException, ConfigError) as error:
            known[values] = error
        return known[values]

    lists = {p.key: p.values if isinstance(p, Listed) else (p.low, p.high) for p in space.params}
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
    for key, value in left:
        error = error_of({**good, key: value}) if good else errors[key, value]
        if error is not None:
            raise error
    idle = [dict(across.idle(job, varied)) for job in jobs]
    for text, why in idle[0].items() if idle else ():
        if all(each.get(text, "").startswith("changes ") for each in idle):  # other notes are of values that act
            print(f"note: {text} {why}; points that differ in it alone are the same but for rounding", flush=True)
    return jobs


def candidates(
    lists: Mapping[str, Sequence[Scalar]], left: Mapping[tuple[str, Scalar], None]
) -> Iterator[dict[str, Scalar]]:
    """Yields as few points as have each value once, then more with each value in `left`, which the caller shrinks."""
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
