"""The README.md of an exported model: what its run's own records say of it, and what cannot be concluded from them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rookexp import __version__, boards, checkpoint, chess_text
from rookexp.comparison import measures
from rookexp.models import hub, weights
from rookexp.models.gpt2 import GPT2
from rookexp.run_folder import report, run_info, runs

PARTS = ("task", "reward", "loss", "baseline", "kl", "reference", "optim")  # groups with a line of their own
EXAMPLE = "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"
USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("{name}"), AutoModelForCausalLM.from_pretrained("{name}")
prompt = tokenizer("{prompt}", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=160, do_sample=False)[0]))
```

`P: <FEN>` asks for an analysis: up to five moves after `M:`, their evaluations in pawns for the side to move after
`E:`, and one of the moves after `B:`. `A: <FEN>+<move>+<last moves>+` asks for the next position, a reward and two
flags. `{name}` stands for this folder, or for its id on the Hub. With rookexp:

```bash
python -m rookexp.evaluate model.path={name}{asked} "documents=[FILE]"  # figures on FILE, with intervals
python -m rookexp.uci model.path={name}{asked}                          # an engine for chess programs
```

`FILE` has documents like these with their answers, one a line."""
SIGNED = "without dropout, written by rookexp"  # stands in every card
LIMITS = (
    "It writes text: moves can be illegal, and evaluations are guesses. It sees {positions} tokens at most.",
    "Of the data that RookWorld models learn from, Black's rows name the *worst* listed move after `B:`. Unless the "
    "training has mended that, the move of the highest evaluation in `E:` is the better one for Black.",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The run whose checkpoint a model is."""

    run: runs.Run
    step: int
    info: Mapping[str, Any]  # run.json: revision, versions, seeds; empty where there is none


def origin_of(folder: Path) -> Origin | None:
    """The run and step that a model's folder comes from; None where it is no checkpoint's, or its run has been removed.

    Raises: DataError for a run folder with files that cannot be read.
    """
    folder = folder.resolve()
    step, home = checkpoint.NAME.fullmatch(folder.parent.name), folder.parent.parent.parent
    if folder.name != checkpoint.MODEL or step is None or not (home / run_info.CONFIG).is_file():
        return None
    return Origin(runs.read(home), int(step[1]), run_info.read_info(home))


def text(name: str, model: GPT2, origin: Origin | None, *, source: str, dtype: str) -> str:
    """The whole file; `source` is what was exported, named as the base model where there is no `origin`."""
    sizes = model.config
    base = source if origin is None else base_of(origin.run.config)
    about = [
        f"A GPT-2 of {weights.parameter_count(model)} parameters ({sizes.n_layer} layers, {sizes.n_head} heads, width "
        f"{sizes.n_embd}, {sizes.n_positions} positions, {sizes.vocab_size} tokens) in {dtype}, {SIGNED} "
        f"{__version__}."
    ]
    about += [f"Base model: `{base}`."]
    sections = [("", about)]
    if origin is not None:
        sections += [("Training", list(training(origin))), ("Figures", list(figures(origin)))]
    p_style = "bare" if origin is None else runs.p_style_in(origin.run.config)
    asked = "" if p_style == "bare" else f" p_style={p_style}"
    sections.append(("Use", [USE.format(name=name, prompt=chess_text.P_PROMPTS[p_style](EXAMPLE), asked=asked)]))
    sections.append(("Limits", [f"- {limit}" for limit in limits(sizes.n_positions, origin)]))
    body = "\n".join(f"\n## {title}\n\n" + "\n".join(lines) if title else "\n".join(lines) for title, lines in sections)
    return f"{front(base)}\n# {name.rpartition('/')[2]}\n\n{body}\n"


def front(base: str) -> str:
    """The YAML header that the Hub reads; it names the base model only by a Hub id, without its commit."""
    said: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    repo = base.partition("@")[0]
    said |= {"tags": ["chess", "rookexp"]} | ({"base_model": repo} if hub.is_repo(repo) else {})
    return f"---\n{yaml.safe_dump(said, sort_keys=False)}---\n"


def base_of(config: Mapping[str, Any]) -> str:
    """What the run started from: a Hub id, the end of a path, or random weights."""
    node = config.get("model") or {}
    if "path" not in node:
        return "random weights"
    path, revision = str(node["path"]), node.get("revision")
    return shown(path) + (f"@{revision}" if revision else "")


IN_BRACKETS = re.compile(
    r"""(?:(?<=[\s,:\[{'"])|(?<=file://))(?:~|[A-Za-z]:)?[/\\](?![/\\])[^\s,'"\]}]+"""
)  # an absolute path


def shown(path: str) -> str:
    """A local path without the private folders above its last part (of a checkpoint: the run); a Hub id as it is."""
    if Path(path).expanduser().is_absolute() or Path(path).exists():
        *_, run, kept, step, model = ("", "", "", *Path(path).parts)
        named = f"{run}/{kept}/{step}" if (kept, model) == (checkpoint.FOLDER, checkpoint.MODEL) else model
        return f".../{named}"
    return path


def training(origin: Origin) -> Iterator[str]:
    """Yields lines on the training: steps and command, seeds, code, parts, and the configuration."""
    run, info = origin.run, origin.info
    door = "train" if "grpo" in run.config else "pretrain"
    typed = (*flags(run.folder, door), *run.overrides) if run.overrides else tuple(info.get("argv", ())[1:])
    yield f"{origin.step} steps of `{command(door, typed)}`.\n"
    starts = [command(door, start.get("argv", ())[1:]) for start in info.get("earlier_starts", ())]
    if starts:
        yield f"- Gone on with, after {', then '.join(f'`{each}`' for each in starts)}"
    seeds = info.get("seeds") or {"seed": run.seed}
    yield f"- Seeds: {', '.join(f'{key} {value}' for key, value in seeds.items())}"
    git = info.get("git") or {}
    code = f"git {git['revision']}" if git.get("revision") else "of an installed copy"
    yield f"- Code: rookexp {info.get('packages', {}).get('rookexp', __version__)}, {code}" + (
        ", with changes that are in no commit" if git.get("dirty") else ""
    )
    for group in PARTS:
        if isinstance(run.config.get(group), Mapping):
            yield f"- {group.capitalize()}: {spelled(run.config[group])}"
    if "corpus" in run.config:
        yield f"- Corpus: {portable(run.config['corpus'])}"
    kept = {key: value for key, value in run.config.items() if runs.affects_training(key) or key == runs.SEED}
    heading = "Configuration, as far as it shapes the result"
    yield f"\n<details><summary>{heading}</summary>\n\n```yaml\n{dumped(kept)}```\n\n</details>"


def flags(folder: Path, door: str) -> Iterator[str]:
    """Yields the typed flags and search path that say where the run's options are; they go before its overrides."""
    try:
        found = run_info.whereabouts(folder)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return  # it was not recorded
    yield from () if found.config_path is None else ("--config-path", found.config_path)
    yield from () if found.config_dir is None else ("--config-dir", found.config_dir)
    yield from () if found.config_name == {"train": "config"}.get(door, door) else ("--config-name", found.config_name)
    yield from found.searchpath


def command(door: str, typed: Sequence[str]) -> str:
    """The command line as typed, without the keys that say only where the run's own files go."""
    words = [
        shlex.quote(portable(word))
        for word in typed
        if word.startswith(run_info.SEARCHPATH) or not word.lstrip("+~").startswith(("hydra.", "track"))
    ]
    return " ".join([f"python -m rookexp.{door}", *words])


def figures(origin: Origin) -> Iterator[str]:
    """Yields lines on each metric of the evaluation, before training and at the exported step, and on the verdict."""
    run = origin.run
    rows = [row for row in run.rows if row["step"] <= origin.step]
    table = report.before_after(rows)
    if not table:
        yield "The run has logged no evaluation up to this step."
        return
    asked = [row["step"] for row in rows if any(name.startswith("eval/") for name in row)]
    if asked[0] == asked[-1] < origin.step:
        yield f"The run has logged no evaluation after that of step {asked[0]} and up to this step."
        return
    count = len(measures.last_answers(run.folder))
    some = f" {count} prompts were asked." if count else ""
    yield f"{measured(run.config)}{some} One run, so no interval and no claim about other seeds.\n"
    yield f"| metric | step {asked[0]} | step {asked[-1]} |\n|---|---|---|"
    yield from (f"| {name} | {before:.4g} | {after:.4g} |" for name, before, after in table)
    verdict = run.summary.get("verdict")
    if verdict is not None and origin.step == run.rows[-1]["step"]:
        yield f"\nVerdict of the run: {'PASS' if verdict['passed'] else 'FAIL'}."
        yield from (f"- {reason}" for reason in verdict["reasons"])


def measured(config: Mapping[str, Any]) -> str:
    """A sentence on the prompts and the reward, or the documents, that the figures were measured on."""
    if "grpo" not in config:
        return "Loss in nats a token on validation documents of the corpus."
    task, other = config.get("task") or {}, (config.get("eval") or {}).get("positions")
    files = " and ".join(map(portable, boards.asked_files(config))) or "unknown"
    if other is not None:
        return f"Greedy answers on {files}, by the reward of the training."
    same = "the very prompts of the training" if task.get("order") == "fixed" else "the positions of the training"
    return f"Greedy answers on {same} ({files}), by its reward."


def limits(positions: int, origin: Origin | None) -> Iterator[str]:
    """Yields what a user should know before trusting the model."""
    for limit in LIMITS:
        yield limit.format(positions=positions)
    if origin is not None and origin.run.status != "finished":
        reason = f" ({origin.run.reason})" if origin.run.reason else ""
        yield f"Its run has not finished: {origin.run.status}{reason}."
    yield "The licence is that of the base model and its data; add it to the head of this file before you publish."


def spelled(node: Mapping[str, Any]) -> str:
    """A config node on one line: the name of its target and its values."""
    values = {key: value for key, value in runs.flat(node).items() if not key.rpartition(".")[2].startswith("_")}
    said = ", ".join(f"{key} {json.dumps(portable(value))}" for key, value in values.items())
    name = str(node.get("_target_", "")).rpartition(".")[2]
    return f"{name} ({said})" if said else name


def portable(value: Any) -> Any:
    """The value with absolute paths cut down to their last part, in a `key=path` too."""
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, str):
        key, equals, path = value.rpartition("=")
        inner = path.strip("'\"")
        if Path(inner).expanduser().is_absolute():
            return f"{key}{equals}{shown(inner)}"
        held = "[" in value or "{" in value or "file://" in value
        return IN_BRACKETS.sub(lambda found: shown(found[0]), value) if held else value
    return [portable(inner) for inner in value] if isinstance(value, Sequence) else value


def dumped(config: Mapping[str, Any]) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(portable(config), sort_keys=False)
