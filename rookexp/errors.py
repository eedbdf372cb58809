"""The errors a user can meet; each message says what is wrong, where, and what to type."""


class RookexpError(Exception):
    """Anything that rookexp reports as one readable line instead of a traceback."""


class ConfigError(RookexpError):
    """A configuration key with a value that is not allowed; names the key, the value and what is allowed."""


class PartError(ConfigError):
    """A ConfigError for a key of one node, named without the node's path, which `nodes.make` prepends."""


class DataError(RookexpError):
    """A file or row that cannot be used; names the file and the row."""


class NotSaved(DataError):
    """A checkpoint that could not be written, mostly for lack of disk space; names it and the previous one."""


class EngineError(RookexpError):
    """A chess engine that is missing, hung or crashed; names binary, command and timeout."""


class TrainingDiverged(RookexpError):
    """A gradient, weights or logits that are not finite; names the step.

    For a gradient it names the loss with its terms, too, and the weights are as they were before it. Weights that an
    update has broken are not saved.
    """


class VerdictFailed(RookexpError):
    """A run that did not pass although `verdict=require`; names the criteria that failed."""


class CheckupFailed(RookexpError):
    """A self-check or dry run that found something before the first step; names the checks, whose lines say what."""


class RunStopped(RookexpError):
    """A run that a signal ended after a complete step, which is saved; `status` is the exit status for that signal."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RunPruned(RookexpError):
    """A run that its sweep pruned after a complete step, which is saved; names the pruner and its reason."""


class Reconfigured(RookexpError):
    """A key for which a run found a value before its first step; `config.door` restarts the run with that value."""

    def __init__(self, key: str, value: object) -> None:
        super().__init__(f"{key}={value}: found by the run itself")
        self.key = key
        self.value = value


class SweepFailed(RookexpError):
    """A sweep in which too many points failed; names the folders and the reasons."""


# Texts in errors of a device that is out of memory.
NO_MEMORY = ("OutOfMemoryError", "DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")


def lacks_memory(error: BaseException) -> bool:
    """Whether a device ran out of memory; for the CPU's allocator and CUDA's libraries only the message tells."""
    said = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in said for w in NO_MEMORY))


def why(error: BaseException) -> str:
    """What an error says; of a system's error only the words, as the message around them names the file."""
    return getattr(error, "strerror", None) or str(error)


def reason_of(error: BaseException) -> str:
    """An error as a one-line reason: its message, after the error's class unless it is a RookexpError."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RookexpError) else f"{type(error).__name__}: {text}".removesuffix(": ")
