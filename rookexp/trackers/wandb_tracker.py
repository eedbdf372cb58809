"""Weights & Biases as its users expect it, without ever holding up a training."""

from __future__ import annotations

import logging
import netrc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from annotated_types import Gt

from rookexp.errors import ConfigError
from rookexp.run_folder.run_info import git_state, is_secret, plain, redacted
from rookexp.track import CURVES, Guard, Tracker, first_line, run_id

FINISH_TIMEOUT_S = 60.0
ENDED_WELL = ("finished", "pruned")
TABLE = "completions"  # the one key of all tables
SILENT: set[str] = set()  # services that did not answer this process; its later jobs do not wait for them again
COLUMNS = ("step", "kind", "prompt", "completion", "reward", "advantage", "truncated")  # the reward's parts follow


class WandbTracker(Tracker):
    """Weights & Biases that never prompts, never blocks for long and never ends a training.

    `mode`: `auto` is online when a key is at hand (environment or netrc), else offline; it is offline, too, when the
    service does not answer within `init_timeout_s`, for which the jobs of one process wait only once. Offline rather
    than disabled, because a run that was not recorded cannot be looked at later: it costs half a second and some files
    that `wandb leet` shows and `wandb sync` uploads.
    Without the package, `auto` says so in one line and tracks nothing.

    `runs_folder` is the folder that holds the runs of all trainings (`wandb` is created in it); `folder` is this run's,
    where the id is kept, so that a resumed run continues the same one. With None for `name` or `group`, W&B chooses.
    """

    def __init__(
        self,
        *,
        mode: Literal["auto", "online", "offline", "disabled"],
        project: str,
        entity: str | None,
        group: str | None,
        job_type: str,
        name: str | None,
        tags: Sequence[str],
        init_timeout_s: Annotated[float, Gt(0)],
        runs_folder: str,
        folder: Path,
    ) -> None:
        self.mode = mode
        self.init_timeout_s = init_timeout_s
        self.runs_folder = runs_folder
        self.folder = folder
        also = [tag.strip() for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag.strip()]
        self._about: dict[str, Any] = {"project": project, "entity": entity, "group": group, "job_type": job_type}
        self._about |= {"name": name, "tags": tuple(dict.fromkeys([*tags, *also]))}
        self._run: Any = None
        self._guard = Guard("wandb")
        self._step = -1
        self._completions: list[dict[str, Any]] = []  # of step `_step`, not sent yet

    def start(self, config: Mapping[str, Any]) -> None:
        if self.mode == "disabled":
            return
        try:
            import wandb
        except Exception as error:  # not installed, or beside packages that it cannot be imported with
            why = "not installed" if isinstance(error, ModuleNotFoundError) else f"not usable, {first_line(error)}"
            if self.mode != "auto":
                raise ConfigError(f"wandb mode={self.mode}, but no package: {why}; type `pip install wandb`") from error
            print(f"wandb: {why} (`pip install wandb`); metrics are in the run folder", flush=True)
            return
        if os.environ.get("WANDB_MODE") == "auto":  # a word of ours, which W&B refuses wherever it reads it
            del os.environ["WANDB_MODE"]
        logging.raiseExceptions = False  # on a full disk W&B's log file would print 60 lines at every line of it
        service = os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url
        key = key_at_hand(service)
        if self.mode == "offline" or not key:  # W&B's own telemetry would go out all the same
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        if self.mode == "online" and not key:
            raise ConfigError("wandb mode=online without a key; type `wandb login`, or use mode=auto or mode=offline")
        if self.mode == "online" or (self.mode == "auto" and key and service not in SILENT):
            try:
                self._init(wandb, "online", config)
            except Exception as error:  # W&B raises many kinds; the service or the network said no
                self._end_service()  # else the id of the failed attempt stays in use
                if self.mode == "online":
                    raise ConfigError(f"wandb mode=online: {first_line(error)}; mode=auto goes offline") from error
                SILENT.add(service)
                why = (
                    "the key was refused" if type(error).__name__ == "AuthenticationError" else "there is no connection"
                )
                print(f"wandb: offline, for {why} ({first_line(error)})", flush=True)
        if self._run is None and not self._guard(lambda: self._init(wandb, "offline", config)):
            self._end_service()
            return  # a full disk, a killed service
        where = Path(self._run.dir).parent
        offline = f"offline run in {where}; to upload it: wandb sync {where}"
        print(f"wandb: {offline if self._run.offline else self._run.url}", flush=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send_completions(before=step)
        self._guarded(lambda run: run.log({"step": step, **{k: float(v) for k, v in metrics.items()}}, step=step))

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the rows until the step is over: sampled and greedy ones come in two calls and go into one table."""
        self._send_completions(before=step)
        self._step = step
        self._completions += [{**row, "step": step} for row in rows]

    def summary(self, values: Mapping[str, Any]) -> None:
        self._guarded(lambda run: run.summary.update(plain(values)))

    def finish(self, status: str) -> None:
        self._send_completions(before=self._step + 1)
        if status == "finished" and (self.folder / CURVES).is_file():
            self._guarded(self._send_curves)
        self.summary({"status": status})
        if not self._guarded(lambda run: run.finish(exit_code=0 if status in ENDED_WELL else 1)):
            self._end_service()
        self._run = None

    def _init(self, wandb: Any, mode: str, config: Mapping[str, Any]) -> None:
        settings = wandb.Settings(
            init_timeout=self.init_timeout_s,
            login_timeout=self.init_timeout_s,
            finish_timeout=FINISH_TIMEOUT_S,
            reinit="finish_previous",  # a run that another job of this process left open must not get this one's data
            console="off",  # the terminal is ours
            silent=True,
            # W&B's own look at git keeps uncommitted changes and the remote's address, and either may hold a key.
            disable_git=True,
            git_commit=(git_state() or {}).get("revision"),
            x_disable_meta=any(is_secret(argument) for argument in sys.argv),  # it would hold the command line
        )
        Path(self.runs_folder).mkdir(parents=True, exist_ok=True)
        about = {**self._about, "dir": self.runs_folder, "id": run_id(self.folder), "resume": "allow", "mode": mode}
        run = wandb.init(**about, config=redacted(config), settings=settings)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        self._run = run

    def _send_completions(self, *, before: int) -> None:
        """Sends what was kept of a step that is over."""
        rows, step = self._completions, self._step
        if rows and step < before:
            self._completions = []
            self._guarded(lambda run: run.log({"step": step, TABLE: _table(rows)}, step=step))

    def _send_curves(self, run: Any) -> None:
        import wandb

        run.log({"curves": wandb.Image(str(self.folder / CURVES))})  # at the last step

    def _guarded(self, act: Callable[[Any], object]) -> bool:
        """Whether `act` raised no error, or there is no run to do it with."""
        return self._run is None or self._guard(lambda: act(self._run))

    def _end_service(self) -> None:
        """Ends W&B's background process, so that the next run of this process starts another.

        One that has died would fail every later run, and print a traceback when this process ends.
        """
        import wandb

        self._guard(lambda: wandb.teardown())


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import wandb

    parts = sorted({name for row in rows for name in row} - set(COLUMNS))
    columns = [*COLUMNS, *parts]
    return wandb.Table(columns, [[plain(row.get(name)) for name in columns] for row in rows], allow_mixed_types=True)


def key_at_hand(base_url: str) -> bool:
    """Whether the environment or the user's netrc file holds a key; the key itself is not kept."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    named = os.environ.get("NETRC")
    for path in [named] if named else ["~/.netrc", "~/_netrc"]:
        try:
            hosts = netrc.netrc(Path(path).expanduser()).hosts
        except (OSError, RuntimeError, ValueError, netrc.NetrcParseError):  # no file, no home, no text
            continue
        if any(host == urlsplit(base_url).netloc or "wandb" in host for host in hosts):
            return True
    return False
