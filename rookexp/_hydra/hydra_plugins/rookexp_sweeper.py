"""The plugin that Hydra finds: a name for rookexp.sweep, which is imported only when a sweep runs.

Hydra executes this file at every start, and twice if it was imported before, so it must not keep any state.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RookexpSweeper(Sweeper):
    """Points by Optuna or by the grid, each run under several seeds; see docs/sweeps.md."""

    # The name by which Hydra 1.4 knows the class, also where the package's entry point has loaded it.
    __module__ = "hydra_plugins.rookexp_sweeper"

    def __init__(self, **node: Any) -> None:
        """Takes and ignores the keys of conf/hydra/sweeper/rookexp.yaml; they are read from the config, unresolved."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config
        self.launcher = None

    def sweep(self, arguments: list[str]) -> None:
        from rookexp.sweep import sweeper

        assert self.config is not None
        assert self.hydra_context is not None
        sweeper.sweep(arguments, self.config, self.hydra_context, self.task_function)


# Where the official sweeper is installed, the name `optuna` is its own. Hydra 1.4 refuses to store a name twice, but
# loads this file twice: by the package's entry point and by the folder on the path.
stored = ConfigStore.instance().repo.get("hydra", {}).get("sweeper", {})
if importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None and "optuna.yaml" not in stored:
    ConfigStore.instance().store(
        group="hydra/sweeper", name="optuna", node={"defaults": ["rookexp"]}, provider="rookexp"
    )
