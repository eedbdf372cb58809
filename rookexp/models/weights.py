"""Loads and saves GPT-2 folders in the Hugging Face layout. Nothing is guessed: what does not fit is an error."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rookexp.errors import DataError
from rookexp.files import read_object, replacing, write_atomic
from rookexp.models.gpt2 import GPT2, GPT2Config

WEIGHTS = "model.safetensors"
PICKLES = "pickles can run code when read; where you trust them, "
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
FILES = ("config.json", "generation_config.json", WEIGHTS, *TOKENIZER, "vocab.json", "merges.txt", "added_tokens.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
END_OF_TEXT = "<|endoftext|>"
PROBE_TOKENS = 8  # length of the test forward when a model is loaded

# In the file a projection is [in, out] (Conv1D), here [out, in] (Linear).
PROJECTIONS = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}

SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
# The values that a config.json may have for keys of the forward pass; an absent key means the layout's default, the
# first value here.
HONOURED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def load_model(folder: Path) -> GPT2:
    """The folder's GPT-2 with float32 weights, whatever the file's dtype; dropout in its config has no effect.

    Raises: DataError naming the file, and the key that is missing, unexpected, of a wrong shape, not finite or not
    supported; also for weights that give non-finite logits in a forward over a few tokens.
    """
    config = read_config(folder / "config.json")
    with torch.device("meta"):
        model = GPT2(config)
    model.load_state_dict(_state(_tensors(folder), model, folder / WEIGHTS), assign=True)
    tokens = torch.arange(min(PROBE_TOKENS, config.n_positions, config.vocab_size))[None]
    with torch.no_grad():
        logits = model.logits(model.hidden(tokens))
    if not bool(logits.isfinite().all()):
        raise DataError(f"{folder / WEIGHTS}: its weights are finite, but not their logits; copy it again")
    return model


def save_model(
    model: GPT2, folder: Path, *, dtype: Literal["float32", "bfloat16"], tokenizer_file: Path | None
) -> None:
    """Writes config.json, generation_config.json, model.safetensors and, if given, tokenizer.json and its config.

    Each file is written atomically, the weights last: a folder with weights is complete. The end-of-text id in the
    configs is that of the tokenizer file; null without one.

    Raises: DataError when the tokenizer file has no end-of-text token, or one outside the model's vocabulary; OSError
    where a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    eot_id = None if tokenizer_file is None else _eot_id(tokenizer_file, model.config.vocab_size)
    tokens = {"bos_token_id": eot_id, "eos_token_id": eot_id}
    if tokenizer_file is not None and tokenizer_file.parent.resolve() != folder.resolve():
        for source in (tokenizer_file.with_name(name) for name in TOKENIZER):
            if source.is_file():
                with replacing(folder / source.name) as partial:
                    shutil.copyfile(source, partial)
    write_atomic(folder / "generation_config.json", json.dumps(tokens, indent=2) + "\n")
    config = _config_json(model.config, dtype) | tokens
    write_atomic(folder / "config.json", json.dumps(config, indent=2) + "\n")
    own = model.state_dict()
    tensors = {}
    for key, name in _names(model.config).items():
        tensor = own[name].detach().to("cpu", DTYPES[dtype])
        tensors[f"transformer.{key}"] = (tensor.t() if _is_projection(key) else tensor).contiguous()
    with replacing(folder / WEIGHTS) as partial:
        save_tensors(tensors, partial)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes a safetensors file with the permissions of the umask: the library's own are private to their owner.

    Raises: OSError where it cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # what the library raises on a full disk
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)


def parameter_count(model: GPT2) -> int:
    """Number of scalar parameters; the tied head counts once. 124 439 808 for GPT-2 small."""
    return sum(parameter.numel() for parameter in model.parameters())


def read_config(path: Path) -> GPT2Config:
    """The sizes in a GPT-2 config.json.

    Raises: DataError naming key, value and what is allowed, for anything that this model does not support.
    """
    raw = _read_json(path)

    def require(ok: bool, key: str, allowed: str) -> None:
        if not ok:
            found = f"{key}={raw[key]!r}" if key in raw else f"{key} is missing"
            raise DataError(f"{path}: {found}; allowed: {allowed}")

    require(raw.get("model_type") == "gpt2", "model_type", "'gpt2'")
    for key, allowed in HONOURED.items():
        require(raw.get(key, allowed[0]) in allowed, key, " or ".join(map(repr, allowed)))
    for key in SIZES:
        require(type(raw.get(key)) is int and raw[key] > 0, key, "a whole number above 0")
    require(raw["n_embd"] % raw["n_head"] == 0, "n_head", f"a divisor of n_embd={raw['n_embd']}")
    require(raw.get("n_inner") in (None, 4 * raw["n_embd"]), "n_inner", f"null or {4 * raw['n_embd']}")
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    require(type(epsilon) is float and 0 < epsilon < math.inf, "layer_norm_epsilon", "a number above 0")
    return GPT2Config(**{key: raw[key] for key in SIZES}, layer_norm_epsilon=epsilon)


def _config_json(config: GPT2Config, dtype: str) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        **asdict(config),
        "n_inner": None,
        **{key: allowed[0] for key, allowed in HONOURED.items()},
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "torch_dtype": dtype,
    }


def _names(config: GPT2Config) -> dict[str, str]:
    """Maps the file's key, without the prefix 'transformer.', to the name of the model's parameter."""
    names = {"wte.weight": "wte.weight", "wpe.weight": "wpe.weight"}
    for i in range(config.n_layer):
        for theirs, ours in {"ln_1": "ln_1", "ln_2": "ln_2", **PROJECTIONS}.items():
            for kind in ("weight", "bias"):
                names[f"h.{i}.{theirs}.{kind}"] = f"blocks.{i}.{ours}.{kind}"
    return names | {"ln_f.weight": "ln_f.weight", "ln_f.bias": "ln_f.bias"}


def _is_projection(key: str) -> bool:
    return key.endswith(tuple(f".{name}.weight" for name in PROJECTIONS))


def _state(tensors: Mapping[str, Tensor], model: GPT2, path: Path) -> dict[str, Tensor]:
    """The model's state dict, float32 and contiguous, from the file's tensors; DataError for any that does not fit."""
    found: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        key = full.removeprefix("transformer.")
        if key in found:
            raise DataError(f"{path}: {key!r} is there twice, with and without the prefix 'transformer.'")
        found[key] = tensor
    if "lm_head.weight" in found:  # tied: of the two names, safetensors' own save_model keeps this one
        found.setdefault("wte.weight", found["lm_head.weight"])
    state = {}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for key, name in _names(model.config).items():
        if key not in found:
            raise DataError(f"{path}: missing key 'transformer.{key}'; the file is no complete GPT-2 of that config")
        tensor, shape = found.pop(key), shapes[name][::-1] if _is_projection(key) else shapes[name]
        if tuple(tensor.shape) != shape:
            raise DataError(f"{path}: {key!r} has shape {list(tensor.shape)}; config.json says {list(shape)}")
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise DataError(f"{path}: {key!r} is {tensor.dtype}; allowed: float32, bfloat16, float16, float64")
        tensor = tensor.to(torch.float32)
        if not all(math.isfinite(bound) for bound in tensor.aminmax()):  # NaN if any is; isfinite() is far slower
            raise DataError(f"{path}: {key!r} has values that are not finite")
        state[name] = (tensor.t() if _is_projection(key) else tensor).clone(memory_format=torch.contiguous_format)
    head = found.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head.to(torch.float32), state["wte.weight"]):
        raise DataError(f"{path}: 'lm_head.weight' differs from 'wte.weight'; this model's head is its token embedding")
    for i in range(model.config.n_layer):  # causal masks that older files carry: constants, not weights
        found.pop(f"h.{i}.attn.bias", None)
        found.pop(f"h.{i}.attn.masked_bias", None)
    if found:
        raise DataError(f"{path}: unexpected key {min(found)!r} ({len(found)} in all); the file is no plain GPT-2")
    return state


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors in the folder's safetensors file."""
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / f"{WEIGHTS}.index.json").is_file():
            raise DataError(f"{folder}: weights in several files; {conversion(folder)}")
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            raise DataError(f"{folder}: pickled weights only; {PICKLES}{conversion(folder)}")
        raise DataError(f"{path}: no such file; copy the model's {WEIGHTS} there")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise DataError(f"{path}: truncated or not safetensors ({error}; {size} bytes); copy it again") from error


def conversion(source: str | Path) -> str:
    """The command to type where a model is not one safetensors file."""
    code = (
        "from transformers import AutoTokenizer as T, GPT2LMHeadModel as M; "
        f"M.from_pretrained('{source}').save_pretrained('NEW', max_shard_size='1TB'); "
        f"T.from_pretrained('{source}').save_pretrained('NEW')"
    )
    return f'type `python -c "{code}"` and give NEW'


def _eot_id(path: Path, vocab_size: int) -> int:
    """Id of the end-of-text token in a tokenizer.json."""
    added = {token["content"]: token["id"] for token in _read_json(path).get("added_tokens", ())}
    if END_OF_TEXT not in added:
        raise DataError(f"{path}: no {END_OF_TEXT} among its added_tokens; write the file with Tokenizer.save")
    if added[END_OF_TEXT] >= vocab_size:
        raise DataError(f"{path}: {END_OF_TEXT} has id {added[END_OF_TEXT]}, but the model has {vocab_size} tokens")
    return added[END_OF_TEXT]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; copy the model's {path.name} there")
    return read_object(path, "copy it again")
