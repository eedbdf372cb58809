"""Whether a process notices that other work has its core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rookexp import core_wait


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_what_linux_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_threads: None) -> None:
    monkeypatch.setattr(core_wait, "OWN", tmp_path / "schedstat")
    assert core_wait.CoreWait().share() is None, "no such file"
    core_wait.OWN.write_text("5000000000 1000000000 42\n")
    wait = core_wait.CoreWait()
    assert wait.share() is None, "no time has passed"
    for ran, waited, share in ((8, 2, 1 / 4), (9, 2, 0), (9, 4, 1)):
        core_wait.OWN.write_text(f"{ran}000000000 {waited}000000000 43\n")
        assert wait.share() == pytest.approx(share)


def test_one_thread_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_wait, "OWN", tmp_path / "schedstat")
    assert torch.get_num_threads() == 1
    core_wait.OWN.write_text("1 1 1")
    wait = core_wait.CoreWait()
    core_wait.OWN.write_text("9 9 9")
    assert wait.share() is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or not core_wait.OWN.is_file(), reason="Linux tells")
def test_beside_another_process_on_the_same_core_it_waits_half_the_time() -> None:
    busy = "import time; end = time.time() + {}\nwhile time.time() < end: pass"
    looks = "import os, torch; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); torch.set_num_threads(2)\n"
    looks += "from rookexp.core_wait import CoreWait; print('ready', flush=True); input(); wait = CoreWait()\n"
    looks += busy.format(1.0) + "\nprint(wait.share())"
    core = [min(os.sched_getaffinity(0))]
    with subprocess.Popen([sys.executable, "-c", looks], stdin=-1, stdout=-1, text=True) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        with subprocess.Popen([sys.executable, "-c", busy.format(30)]) as other:
            os.sched_setaffinity(other.pid, core)
            time.sleep(0.5)
            shares = one.communicate("\n")[0]
            other.kill()
    assert float(shares) > 0.2
