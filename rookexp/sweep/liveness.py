"""Which processes work on a sweep: file locks, which the system releases however a process ends, and a heartbeat.

On one machine a file lock says whether a process lives, so that neither a clock nor a reused process number can
deceive. Between machines locks may not work; there a file's time stamp says so, by the file server's clock.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

from rookexp.errors import ConfigError

try:
    import fcntl
except ImportError as error:
    raise ConfigError(
        "-m sweep: needs the file locks of POSIX, which this system has not; Hydra's own -m key=a,b does without"
    ) from error

BEAT_S = 10.0
SILENT_S = 120.0  # after so long without a sign a process on another machine counts as dead
FOLDER = "workers"
GATE = "gate"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, which one process at a time can hold; waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def held(path: Path) -> bool:
    """Whether some process on this machine has locked the file."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


class Worker:
    """A process that works on the sweep in a folder; inside `with` it counts as alive."""

    def __init__(self, sweep: Path) -> None:
        self.folder = sweep / FOLDER
        self.name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"
        self._path = self.folder / self.name
        self._done = threading.Event()
        self._handle = -1

    def __enter__(self) -> Worker:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._path.unlink(missing_ok=True)
        os.close(self._handle)

    def gate(self) -> AbstractContextManager[None]:
        """The lock that one process of the sweep can hold at a time."""
        return locked(self.folder / GATE)

    def alive(self, name: str) -> bool:
        """Whether the process of that name is at work."""
        path = self.folder / name
        if name.rsplit(".", 2)[0] == socket.gethostname():
            return held(path)
        try:
            os.utime(self._path)  # so that both stamps are of the file server's clock
            return self._path.stat().st_mtime - path.stat().st_mtime < SILENT_S
        except FileNotFoundError:
            return False

    def others(self) -> list[str]:
        """The names of the other processes that are at work on the sweep."""
        names = (path.name for path in self.folder.iterdir() if path.name != GATE and path.suffix)
        return [name for name in names if name != self.name and self.alive(name)]

    def bury(self, name: str) -> None:
        """Removes the file that a dead process has left."""
        (self.folder / name).unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._done.wait(BEAT_S):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                return
