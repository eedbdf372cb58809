"""Trackio: a local database of runs in W&B's terms, which `trackio show` draws; no account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookexp.errors import ConfigError
from rookexp.files import write_atomic
from rookexp.run_folder.run_info import plain, redacted
from rookexp.track import Guard, Tracker, run_id

NAME = "trackio_name.txt"  # file of a run's full name, beside that of its id


class TrackioTracker(Tracker):
    """Metrics and completions in Trackio, which has no summary; never ends a training once that has begun.

    Trackio knows a run by its name: the id in the run's `folder` is appended to `name`, and the full name is kept in
    the folder, too, because a resumed run may have another `name`.
    """

    def __init__(self, *, project: str, group: str | None, name: str | None, folder: Path) -> None:
        self.project, self.group, self.name = project, group, name
        self.folder = folder
        self._run: Any = None
        self._guard = Guard("trackio")

    def start(self, config: Mapping[str, Any]) -> None:
        try:
            import trackio
        except ImportError as error:
            raise ConfigError("track=trackio: no package; type `pip install 'rookexp[trackio]'`") from error

        def init() -> None:
            about = {"name": self._full_name(), "group": self.group, "resume": "allow", "config": redacted(config)}
            self._run = trackio.init(self.project, embed=False, **about)

        self._guard(init)

    def _full_name(self) -> str:
        path = self.folder / NAME
        if not path.is_file():
            write_atomic(path, "-".join(filter(None, [self.name, run_id(self.folder)])) + "\n")
        return path.read_text(encoding="utf-8").removesuffix("\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None:
            self._guard(lambda: self._run.log({name: float(value) for name, value in metrics.items()}, step=step))

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._run is None:
            return
        import trackio

        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = trackio.Table(columns, [[plain(row.get(name)) for name in columns] for row in rows])
        self._guard(lambda: self._run.log({"completions": table}, step=step))

    def finish(self, status: str) -> None:
        if self._run is not None:
            self._guard(self._run.finish)
        self._run = None
