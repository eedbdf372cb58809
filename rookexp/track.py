"""Where metrics go: files in the run folder, the terminal, Weights & Biases. Nothing here draws a random number."""

from __future__ import annotations

import json
import netrc
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from annotated_types import Ge, Gt

from rookexp.errors import ConfigError, DataError
from rookexp.run_info import is_secret, plain, redacted, write_atomic

METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
SUMMARY = "summary.json"
WANDB_ID = "wandb_id.txt"
WANDB_FINISH_TIMEOUT_S = 60.0


class Tracker(Protocol):
    """A place for a run's numbers; step s carries the state after s updates."""

    def start(self, config: Mapping[str, Any]) -> None:
        """Opens the run; `config` is the resolved configuration."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's metrics; a second call for the same step adds to it, an earlier step is an error."""

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Completions worth reading, one mapping a completion: prompt, completion, reward and what else is known."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Figures of the whole run; later values replace earlier ones of the same name."""

    def finish(self, status: str) -> None:
        """Closes the run as `finished`, `failed` or `interrupted`; harmless when not started or closed already."""


class FanOut:
    """Several trackers as one; each is closed even if another fails to."""

    def __init__(self, *, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def start(self, config: Mapping[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.start(config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            tracker.log(step, metrics)

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for tracker in self.trackers:
            tracker.log_completions(step, rows)

    def summary(self, values: Mapping[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.summary(values)

    def finish(self, status: str) -> None:
        with ExitStack() as stack:
            for tracker in reversed(self.trackers):
                stack.callback(tracker.finish, status)


class JsonlTracker:
    """metrics.jsonl (one object a step), completions.jsonl and summary.json in the run folder; the reference record.

    `first_step` is the first step that this process logs: 0 for a new run, s + 1 after the checkpoint of step s. Lines
    from there on, left by a process that went further than its last checkpoint, are dropped at the start.
    """

    def __init__(self, *, folder: Path, first_step: Annotated[int, Ge(0)]) -> None:
        self.folder = folder
        self.first_step = first_step
        self._files: dict[str, IO[str]] = {}
        self._last: dict[str, Any] = {"step": -1}
        self._last_at = 0  # byte offset of the last line of metrics.jsonl
        self._summary: dict[str, Any] = {}

    def start(self, config: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, COMPLETIONS):
            path = self.folder / name
            kept = [row for row in read_jsonl(path) if row["step"] < self.first_step] if path.exists() else []
            write_atomic(path, "".join(_line(row) for row in kept))
            self._files[name] = path.open("a", encoding="utf-8", newline="\n")
        self._summary = {"status": "running"}
        self._write_summary()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        file = self._files[METRICS]
        if step < max(self._last["step"], self.first_step):
            raise ValueError(f"step {step} logged after step {max(self._last['step'], self.first_step - 1)}")
        if step == self._last["step"]:
            file.truncate(self._last_at)
        else:
            self._last, self._last_at = {"step": step}, os.fstat(file.fileno()).st_size
        self._last |= metrics
        file.write(_line(self._last))
        file.flush()

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        file = self._files[COMPLETIONS]
        file.writelines(_line({"step": step, **row}) for row in rows)
        file.flush()

    def summary(self, values: Mapping[str, Any]) -> None:
        self._summary |= values
        self._write_summary()

    def finish(self, status: str) -> None:
        if self._files:
            self.summary({"status": status})
        for file in self._files.values():
            file.close()
        self._files = {}

    def _write_summary(self) -> None:
        write_atomic(self.folder / SUMMARY, json.dumps(plain(self._summary), indent=2, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that JsonlTracker wrote, null for what was not finite; a torn last line is left out.

    Raises: DataError naming file and row when another line is no JSON object with a `step`.
    """
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline was never finished
        try:
            row = json.loads(line)
            row["step"] += 0
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: row {number} is no metrics object ({error}); delete that line") from error
        rows.append(row)
    return rows


class WandbTracker:
    """Weights & Biases that never prompts, never blocks for long and never ends a training.

    `mode`: `auto` is online when a key is at hand (environment or netrc), else offline, and offline too when the
    service does not answer within `init_timeout_s`. Offline rather than disabled, because a run that was not recorded
    cannot be looked at later: it costs half a second and some files that `wandb leet` shows and `wandb sync` uploads.
    Without the package, `auto` says so in one line and tracks nothing. WANDB_MODE in the environment overrides `auto`.

    `runs_folder` is the folder that holds the runs of all trainings (`wandb` is created in it); `folder` is this run's,
    where the id is kept, so that a resumed run continues the same one. `name` and `group` may be None: W&B's own.
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
        self._about: dict[str, Any] = {"project": project, "entity": entity, "group": group, "job_type": job_type}
        self._about |= {"name": name, "tags": tuple(tags)}
        self._run: Any = None
        self._complained = False

    def start(self, config: Mapping[str, Any]) -> None:
        mode = (os.environ.get("WANDB_MODE") or "auto") if self.mode == "auto" else self.mode
        if mode == "disabled":
            return
        try:
            import wandb
        except ImportError as error:
            if mode != "auto":
                raise ConfigError(f"wandb mode={mode}, but no package; type `pip install wandb`") from error
            print("wandb: not installed (`pip install wandb`); metrics are in the run folder", flush=True)
            return
        key = _wandb_key_at_hand(os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url)
        if mode == "online" and not key:
            raise ConfigError("wandb mode=online without a key; type `wandb login`, or use mode=auto or mode=offline")
        if mode == "online" or (mode == "auto" and key):
            try:
                self._run = self._init(wandb, "online", config)
            except Exception as error:  # W&B raises many kinds; the service or the network said no
                wandb.teardown()  # else the id of the failed attempt stays in use
                if mode == "online":
                    raise ConfigError(f"wandb mode=online: {_first_line(error)}; mode=auto goes offline") from error
                print(f"wandb: offline, for there is no connection ({_first_line(error)})", flush=True)
        try:
            self._run = self._run or self._init(wandb, "offline", config)
        except Exception as error:  # a full disk, a killed service: tracking never ends a training
            self._complain(error)
            return
        url = None if self._run.offline else self._run.url
        print(f"wandb: {url}" if url else f"wandb: offline run in {Path(self._run.dir).parent}", flush=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._guarded(lambda run: run.log({"step": step, **{k: float(v) for k, v in metrics.items()}}, step=step))

    def log_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._run is None or not rows:
            return
        import wandb

        columns = list(dict.fromkeys(name for row in rows for name in row))
        data = [[plain(row.get(name)) for name in columns] for row in rows]
        self._guarded(lambda run: run.log({"step": step, "completions": wandb.Table(columns, data)}, step=step))

    def summary(self, values: Mapping[str, Any]) -> None:
        self._guarded(lambda run: run.summary.update(plain(values)))

    def finish(self, status: str) -> None:
        self.summary({"status": status})
        self._guarded(lambda run: run.finish(exit_code=0 if status == "finished" else 1))
        self._run = None

    def _init(self, wandb: Any, mode: str, config: Mapping[str, Any]) -> Any:
        settings = wandb.Settings(
            init_timeout=self.init_timeout_s,
            login_timeout=self.init_timeout_s,
            finish_timeout=WANDB_FINISH_TIMEOUT_S,
            console="off",  # the terminal is ours
            silent=True,
            x_disable_meta=any(is_secret(argument) for argument in sys.argv),  # it would hold the command line
        )
        Path(self.runs_folder).mkdir(parents=True, exist_ok=True)
        about = {**self._about, "dir": self.runs_folder, "id": self._id(), "resume": "allow", "mode": mode}
        run = wandb.init(**about, config=redacted(config), settings=settings)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def _id(self) -> str:
        """The run's id: that of the run folder, made on its first start."""
        path = self.folder / WANDB_ID
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, secrets.token_hex(4) + "\n")
        return path.read_text(encoding="utf-8").strip()

    def _guarded(self, act: Callable[[Any], object]) -> None:
        if self._run is None:
            return
        try:
            act(self._run)
        except Exception as error:  # tracking never ends a training
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            print(f"wandb: {_first_line(error)}; the training goes on, metrics are in the run folder", flush=True)
        self._complained = True


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(plain(row), separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def _wandb_key_at_hand(base_url: str) -> bool:
    """Whether the environment or the user's netrc file holds a key; the key itself is not kept."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            hosts = netrc.netrc(path).hosts
        except (OSError, netrc.NetrcParseError):
            continue
        if any(host == urlsplit(base_url).netloc or "wandb" in host for host in hosts):
            return True
    return False
