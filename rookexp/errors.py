"""The errors a user can meet; each message says what is wrong, where, and what to type."""


class RookexpError(Exception):
    """Anything that rookexp reports as one readable line instead of a traceback."""


class ConfigError(RookexpError):
    """A configuration key with a value that is not allowed; names key, value and what is."""


class PartError(ConfigError):
    """A key of one node, named without the node's path, which `nodes.make` puts before it."""


class DataError(RookexpError):
    """A file or row that cannot be used; names the file and the row."""


class NotSaved(DataError):
    """A checkpoint that could not be written, mostly for want of space; names it, and the one before it."""


class EngineError(RookexpError):
    """A chess engine that is missing, hung or crashed; names binary, command and timeout."""


class TrainingDiverged(RookexpError):
    """A non-finite loss or gradient; names step, term and value. The weights are untouched."""


class VerdictFailed(RookexpError):
    """A run that `verdict=require` asked to pass and that did not; names the criteria that failed."""


class CheckupFailed(RookexpError):
    """A self-check that found something before the first step; names the checks, whose lines say what."""


class RunStopped(RookexpError):
    """A run that a signal ended after a whole step, which is saved; `status` is the exit status that says so."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RunPruned(RookexpError):
    """A run that its sweep has given up after a whole step, which is saved; says by which pruner and why."""


class Reconfigured(RookexpError):
    """A key of which the run found a value before its first step; the door composes again and starts it with that."""

    def __init__(self, key: str, value: object) -> None:
        super().__init__(f"{key}={value}: found by the run itself")
        self.key = key
        self.value = value


class SweepFailed(RookexpError):
    """A sweep of which too many points failed; names the folders and the reasons."""


# What says that a device has no more.
NO_MEMORY = ("OutOfMemoryError", "DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")


def lacks_memory(error: BaseException) -> bool:
    """Whether a device had no more memory; of a CPU's allocator, and of CUDA's libraries, only the message says so."""
    said = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in said for w in NO_MEMORY))


def reason_of(error: BaseException) -> str:
    """An error as a reason: the message, behind its kind where that is not one of ours."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RookexpError) else f"{type(error).__name__}: {text}".removesuffix(": ")
