"""Models from the Hugging Face Hub, and to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rookexp.errors import DataError
from rookexp.models import weights

REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # a Hub id: owner/name
# Model files that `push` removes from a repository unless it sends them: loaders would read them beside the new ones,
# or instead. No pattern matches files in folders of other names.
SUPERSEDED = (
    "model*.safetensors*", "pytorch_model*.bin*", "tf_model*.h5*", "flax_model*.msgpack*", "adapter_config.json",
    "adapter_model.*", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip


def fetch(repo_or_folder: str, revision: str | None) -> Path:
    """The folder itself if there is one of that name, else the local snapshot of that Hugging Face Hub repository.

    `revision` is a branch, tag or commit of the repository; None is its main branch. What is in the Hub's cache is not
    downloaded again; with HF_HUB_OFFLINE=1 nothing is. A download shows its progress on stderr.

    Raises: DataError when there is neither, when the Hub cannot be reached, for a repository without safetensors, or
    when a local folder is asked for with a revision.
    """
    folder = Path(repo_or_folder).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise DataError(f"{folder} is a local folder and has no revision {revision!r}; leave the revision empty")
        return folder
    if not is_repo(repo_or_folder) or folder.parent.is_dir():  # where the "owner" is a folder: a misspelt path
        raise DataError(f"{repo_or_folder}: no such folder, and not a Hub id of the form owner/name")
    import huggingface_hub  # here, because a local folder does not need its import time
    from huggingface_hub import constants

    pinned = "" if revision is None else f" --revision {revision}"
    command = f"hf download {repo_or_folder}{pinned} --local-dir FOLDER"
    remedy = f"on a connected machine type `{command}` and give FOLDER instead"
    try:
        snapshot = huggingface_hub.snapshot_download(
            repo_or_folder, revision=revision, allow_patterns=list(weights.FILES)
        )
    except Exception as error:  # several libraries raise, for refusals, lost connections and odd names
        if constants.HF_HUB_OFFLINE:
            asked = "the Hub's cache has no such snapshot and HF_HUB_OFFLINE is set; unset it, or"
            raise DataError(f"{repo_or_folder}: not a folder here, {asked} {remedy}") from error
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"{repo_or_folder}: not a folder here, and no download ({reason}); {remedy}") from error
    if not (Path(snapshot) / weights.WEIGHTS).is_file():
        if constants.HF_HUB_OFFLINE:
            raise DataError(f"{repo_or_folder}: no {weights.WEIGHTS} in the Hub cache, a broken download?; {remedy}")
        converted = weights.PICKLES + weights.conversion(repo_or_folder)
        raise DataError(f"{repo_or_folder}: no {weights.WEIGHTS} in its snapshot; {converted}")
    return Path(snapshot)


def is_repo(text: str) -> bool:
    """Whether the text has the form of a Hub id, owner/name."""
    return REPO.fullmatch(text) is not None


def push(folder: Path, repo: str, *, names: Sequence[str], private: bool, overwrite: bool) -> str:
    """Sends the files `names` of the folder to the Hub repository `repo`, creating it, and returns its address.

    The token is that of `hf auth login` or HF_TOKEN; it is passed on to nobody. With `overwrite` the repository may
    exist, but not as a public one if `private`. Its files that match SUPERSEDED and are not sent are removed; its
    other files stay.

    Raises: DataError when the Hub refuses, cannot be reached, or has a repository that these options do not allow.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        address = str(api.create_repo(repo, private=private, exist_ok=overwrite))
        if private and not api.model_info(repo).private:
            raise DataError(f"{repo}: is there and public; push with private=false, or to another name")
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=list(names),
            delete_patterns=list(SUPERSEDED),
            commit_message="rookexp.export",
        )
    except DataError:
        raise
    except Exception as error:  # as in `fetch`
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"{repo}: not pushed ({reason}); {folder} is written. Type `hf auth login` with a token that may "
            "write, and add overwrite=true where the repository is there already"
        ) from error
    return address
