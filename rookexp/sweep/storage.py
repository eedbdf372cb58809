"""Where a sweep's study is kept: a journal file in its folder, or a database."""

from __future__ import annotations

import fcntl
import os
import warnings
from pathlib import Path

import optuna
from omegaconf import OmegaConf
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from rookexp.errors import ConfigError

JOURNAL = "study.journal"
SQLITE = "sqlite:///"


class Lock:
    """A journal's lock that a killed process does not leave held; taking it also cuts off a half-written last line."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._handle = -1

    def acquire(self) -> bool:
        handle = os.open(f"{self.journal}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._handle = handle
        with self.journal.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
                text = self.journal.read_bytes()
                file.truncate(text.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._handle)


def storage_of(url: str | None, folder: Path) -> BaseStorage:
    """The storage of a sweep: a database by its URL, which may name environment variables, or its folder's journal.

    Raises: ConfigError for a database that cannot be opened; the URL, which may hold a password, is not repeated.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # stable since Optuna 4
            return JournalStorage(JournalFileBackend(str(folder / JOURNAL), lock_obj=Lock(folder / JOURNAL)))
    try:
        url = str(OmegaConf.create({"url": placed(url, folder)}).url)
        # A file is opened for each use, so that none is left open at the end; a server's connections are kept.
        return RDBStorage(url, {"poolclass": NullPool} if url.startswith(SQLITE) else None)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        reason = str(error.__cause__ or error).split("\n")[0]
        raise ConfigError(
            f"sweep.storage: no database that can be opened ({reason}); allowed: a URL such as sqlite:///study.db, "
            "or null for a file in the sweep's folder"
        ) from error


def placed(url: str, folder: Path) -> str:
    """The URL, in which a file of SQLite with a relative path is placed in the sweep's folder."""
    if url.startswith(SQLITE) and not url.startswith(SQLITE + "/"):
        return SQLITE + str((folder / url.removeprefix(SQLITE)).resolve())
    return url
