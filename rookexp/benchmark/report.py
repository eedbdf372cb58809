"""The section that a run of the bench adds to its report."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from rookexp.benchmark.roofline import Machine
from rookexp.benchmark.settings import COMPARED
from rookexp.errors import DataError
from rookexp.run_folder import run_info


def heading(machine: Machine) -> str:
    """The date, machine, versions, revision and command of a run, as Markdown; no host name."""
    state = run_info.git_state()
    revision = "not under git" if state is None else state["revision"][:12] + (", changed" if state["dirty"] else "")
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}  # with its build, such as +cu130
    for name in COMPARED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    words = shlex.join(word for word in sys.argv[1:] if not run_info.is_secret(word))
    lines = [
        f"## {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "",
        f"- machine: {machine.name}, {machine.cores} cores, {machine.threads} threads, {machine.memory_gib:.0f} GiB; "
        f"{' '.join(machine.sets)}; the faster dtype is {machine.precision}",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- revision: {revision}",
        f"- command: `{f'python -m rookexp.bench {words}'.strip()}`",
    ]
    return "\n".join(lines)


def add(report: Path, section: str) -> None:
    """Adds a section to the end of the report, which is made if it is not there.

    Raises: DataError where it cannot be written.
    """
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        new = not report.exists()
        with report.open("a", encoding="utf-8") as file:
            file.write(("# Benchmarks\n" if new else "") + f"\n{section}")
    except OSError as error:
        raise DataError(f"report={report}: cannot be written ({error}); name a file in a folder of yours") from error
