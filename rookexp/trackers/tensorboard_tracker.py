"""TensorBoard: event files in the run folder, which `tensorboard --logdir outputs` compares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from rookexp.errors import ConfigError
from rookexp.run_folder.run_info import plain, redacted
from rookexp.track import Guard, Tracker


class TensorBoardTracker(Tracker):
    """Scalars, and configuration, completions and summary as text; never ends a training once that has begun.

    `folder` is the run's; what an earlier process logged from `first_step` on is no longer shown.
    """

    def __init__(self, *, folder: Path, first_step: Annotated[int, Ge(0)]) -> None:
        self.folder = folder
        self.first_step = first_step
        self._writer: Any = None
        self._guard = Guard("tensorboard")

    def start(self, config: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("track=tensorboard: no package; type `pip install 'rookexp[tensorboard]'`") from error
        purge_step = self.first_step or None
        self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=purge_step)
        self._text("config", redacted(config), self.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is not None:
            self._guard(lambda: [self._writer.add_scalar(name, float(v), step) for name, v in metrics.items()])

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for kind in dict.fromkeys(row.get("kind", "all") for row in rows):
            self._text(f"completions/{kind}", [row for row in rows if row.get("kind", "all") == kind], step)

    def summary(self, values: Mapping[str, Any]) -> None:
        self._text("summary", values, None)

    def finish(self, status: str) -> None:
        if self._writer is not None:
            self.summary({"status": status})
            self._guard(self._writer.close)
        self._writer = None

    def _text(self, name: str, value: Any, step: int | None) -> None:
        if self._writer is not None:  # as JSON in a block of Markdown, which TensorBoard leaves as it is
            text = json.dumps(plain(value), indent=1, ensure_ascii=False)
            self._guard(lambda: self._writer.add_text(name, f"```\n{text}\n```", step))
