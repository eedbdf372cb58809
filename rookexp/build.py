"""The only module that builds the object graph: from a plain config, checked before a model loads, to what is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from rookexp import aggregation, fitting, kl, parts, session
from rookexp.config import across, nodes
from rookexp.config.nodes import Config, make, without
from rookexp.errors import ConfigError, DataError
from rookexp.examination.exam import Exam
from rookexp.examination.heldout import read_documents, token_documents
from rookexp.hardware import Hardware
from rookexp.models import weights
from rookexp.objectives.likelihood import NextToken
from rookexp.per_task_sampling import ALLOWED, changed, own_lengths, own_sampling, shared_sampling
from rookexp.policies import Pretrained, sanity_warnings
from rookexp.run_folder import run_info, runs
from rookexp.run_folder.resume_checks import (
    Start,
    find_start,
    resolved_hardware,
    tell_other_engines,
    tell_other_hardware,
)
from rookexp.self_check.rehearsal import Subject
from rookexp.tasks.mixed import malformed_of, notes_of
from rookexp.track import FanOut, JsonlTracker, Tracker

GROUPS = (  # in the order in which they are checked: grpo first, whose values others take over
    "grpo", "model", "task", "reward", "loss", "baseline", "kl", "reference", "optim", "hardware", "eval", "track",
)  # fmt: skip
PRETRAIN_GROUPS = ("model", "optim", "hardware", "track")
EVALUATE_GROUPS = ("model", "hardware")
# Parameters passed by name below although YAML could express them; a config key of that name would be a second source.
GIVEN = {
    "grpo": ("single_update", "exact_sampler", "seed", "head_chunk"),
    "eval": ("own_lengths",),
    "track": ("folder", "first_step", "total_steps"),
}
EXAM_GIVEN = ("policy", "autocast", "head_chunk", "name", "folder", "record")
# Keys that belong to a group by their meaning but are not parameters of the group's target.
ALSO: dict[str, dict[str, Any]] = {
    "grpo": {
        "kl_type": Literal[tuple(kl.TYPES)],
        "aggregation": Literal[tuple(aggregation.BY_NAME)],
        "prompts_per_step": Annotated[int, Ge(1)],
        "inner_epochs": Annotated[int, Ge(1)],
        "minibatches": Annotated[int, Ge(1)],
        **ALLOWED,
    },
    "eval": {
        "every": Annotated[int, Ge(1)],
        "positions": str | Mapping[str, str] | None,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(session.Settings):
    """The settings of conf/config.yaml; each step collects rollouts and updates the policy."""

    diagnose_every: Annotated[int, Ge(1)] | None  # steps between measurements of each loss term's share of the gradient
    verdict: Literal["report", "require", "off"]  # whether the run is judged at its end, and must pass
    doctor: Literal["quick", "off"]  # whether the self-check runs before the first step
    dry_run: bool  # only checks, without weights, that the run fits together


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining(session.Settings):
    """The settings of conf/pretrain.yaml; each step is one optimizer step."""

    corpus: str  # folder of train.txt and validation.txt
    batch_documents: Annotated[int, Ge(1)]  # documents in a step
    prompt_weight: Annotated[float, Ge(0)]  # weight of a prompt token relative to a completion token
    validation_documents: Annotated[int, Ge(1)]  # held-out documents whose loss is measured
    eval_every: Annotated[int, Ge(1)]  # steps between two measurements


def check_config(config: Config) -> Run:
    """The top-level keys of conf/config.yaml, once every key, type and value of the whole config has been checked.

    Raises: ConfigError naming the full key, the value, what is allowed and the nearest spelling.
    """
    run = Run(**check_groups(config, GROUPS, Run))
    across.check_rows(config["grpo"])
    across.check_moment(config["reference"], run.steps)
    for kind, changes in config["task"].get("sampling", {}).items():
        changed(shared_sampling(config["grpo"]), f"task.sampling.{kind}", changes)
    return run


def check_groups(
    config: Config, groups: Sequence[str], target: Callable[..., Any], given: Collection[str] = ()
) -> dict[str, Any]:
    """The top-level keys that are parameters of `target`: `nodes.check_groups` with this module's GIVEN and ALSO."""
    return nodes.check_groups(config, groups, target, given=given, group_given=GIVEN, group_also=ALSO)


def build_training(config: Config, run_folder: Path) -> session.Training:
    """The trainer of conf/config.yaml, checked, then built part by part, each passed to the next by name.

    Raises: ConfigError, DataError or EngineError for what cannot be built.
    """
    run = check_config(config)
    start = find_start(run.resume, run.steps, run_folder)
    grpo, hardware = config["grpo"], make(config["hardware"])
    if start.checkpoint is not None:
        fitting.refuse_another_batch(hardware, grpo["prompts_per_step"], run_folder)
    tell_other_hardware(run_folder, config["hardware"].get("precision"), resolved_hardware(hardware))
    reward, baseline = parts.build_group(config, "reward"), parts.build_group(config, "baseline")
    tell_other_engines(run_folder, engines := parts.engines_of(reward))
    parts.refuse_without_stages(baseline, reward)
    policy = load_policy(config, hardware)
    print(introduced(policy, hardware), flush=True)
    vocab, n_positions = policy.model.config.vocab_size, policy.model.config.n_positions
    if grpo["top_k"] is not None and grpo["top_k"] >= vocab:
        print(f"note: grpo.top_k={grpo['top_k']} changes nothing: the model has {vocab} tokens", flush=True)
    objects = {
        "policy": policy.model,
        "tokenizer": policy.tokenizer,
        "reward": reward,
        "baseline": baseline,
        "coefficient": parts.build_group(config, "kl"),
        "sampling": shared_sampling(grpo),
        "divergence": kl.TYPES[grpo["kl_type"]],
        "policy_loss": parts.build_group(config, "loss"),
        "aggregation": aggregation.BY_NAME[grpo["aggregation"]],
        "reference_sync": parts.build_group(config, "reference"),
        "single_update": grpo["inner_epochs"] * grpo["minibatches"] == 1,
        "exact_sampler": hardware.precision == "fp32",
        "autocast": hardware.autocast,
        "head_chunk": hardware.head_chunk,
        "seed": run.seed,
    }
    task = parts.build_group(config, "task", **objects)
    for note in notes_of([task]):
        print(note, flush=True)
    tracker = build_tracker(config, run_folder, start, run.steps)
    every = config["eval"]["every"]

    def on_completions(step: int, rows: Sequence[dict[str, Any]]) -> None:
        if step % every == 0:
            tracker.log_completions(step, [{"kind": "sampled", **row} for row in rows])

    own = own_sampling(task, objects["sampling"])
    across.check_lengths(config, own, n_positions)
    objects |= {"own_sampling": own, "own_lengths": own_lengths(own, objects["sampling"])}
    objective = make(without(grpo, ALSO["grpo"]), task=task, on_completions=on_completions, **objects)
    prompts = parts.evaluation_prompts(config, task, objects)
    if "path" in config["model"]:  # a model made with random weights is meant to have them
        for doubt in sanity_warnings(policy, prompts, hardware.autocast):
            print(f"warning: {doubt}", file=sys.stderr, flush=True)
    greedy = make(without(config["eval"], ALSO["eval"]), prompts=prompts, **objects)

    def can_ask(count: int) -> bool:
        try:
            make(parts.with_prompts(config["task"], grpo["prompts_per_step"], count), **objects)
        except (ConfigError, DataError):
            return False
        return True

    batch = fitting.Batch(grpo["prompts_per_step"], grpo["group_size"], grpo["minibatches"], can_ask)
    finder = fitting.for_rollouts(hardware, objective.source, greedy, range(run.steps), n_positions, batch)

    def evaluate(step: int) -> dict[str, float]:
        metrics: dict[str, float] = greedy(step)
        tracker.log_completions(step, [{"kind": "greedy", **row} for row in greedy.completions])
        return metrics

    training = session.assemble(
        run,
        run_folder,
        start=start,
        policy=policy,
        objective=objective,
        optim=make(config["optim"]),
        hardware=hardware,
        tracker=tracker,
        evaluate=evaluate,
        eval_every=every,
        diagnose_every=run.diagnose_every,
        heads=objective.heads,
        inner_epochs=grpo["inner_epochs"],
        minibatches=grpo["minibatches"],
        finder=finder,
    )
    subject = Subject(objective, training.trainer, greedy, policy.tokenizer, start.step)
    return replace(training, subject=subject, engines=engines, malformed=malformed_of([task]))


def build_pretraining(config: Config, run_folder: Path) -> session.Training:
    """The trainer of conf/pretrain.yaml, checked and built.

    Raises: ConfigError or DataError for what cannot be built.
    """
    run = Pretraining(**check_groups(config, PRETRAIN_GROUPS, Pretraining))
    start = find_start(run.resume, run.steps, run_folder)
    files = [Path(run.corpus).expanduser() / name for name in ("train.txt", "validation.txt")]
    texts = [read_documents(file) for file in files]
    if len(texts[1]) < run.validation_documents:
        print(f"note: validation_documents={run.validation_documents}: {files[1]} has {len(texts[1])}", flush=True)
    texts[1] = texts[1][: run.validation_documents]
    hardware: Hardware = make(config["hardware"])
    tell_other_hardware(run_folder, config["hardware"].get("precision"), resolved_hardware(hardware))
    policy = load_policy(config, hardware)
    print(introduced(policy, hardware), flush=True)
    train, validation = (token_documents(policy, *part) for part in zip(files, texts, strict=True))
    objective = NextToken(
        policy=policy.model,
        documents=train,
        batch_documents=run.batch_documents,
        prompt_weight=run.prompt_weight,
        seed=run.seed,
        autocast=hardware.autocast,
        head_chunk=hardware.head_chunk,
        device=hardware.device,
    )
    rows = min(run.batch_documents, hardware.micro_batch)  # in memory at a time
    return session.assemble(
        run,
        run_folder,
        start=start,
        policy=policy,
        objective=objective,
        optim=make(config["optim"]),
        hardware=hardware,
        tracker=build_tracker(config, run_folder, start, run.steps),
        evaluate=lambda step: {"eval/loss": objective.validation_loss(validation, rows)},
        eval_every=run.eval_every,
        diagnose_every=None,
        heads={},
        inner_epochs=1,
        minibatches=1,
        finder=fitting.for_documents(hardware, train, run.batch_documents),
    )


def build_evaluation(config: Config, run_folder: Path) -> Exam:
    """The evaluation of conf/evaluate.yaml, checked and built.

    Raises: ConfigError or DataError for what cannot be built.
    """
    own = check_groups(config, EVALUATE_GROUPS, Exam, EXAM_GIVEN)
    if own["p_style"] is None:
        own["p_style"] = runs.p_style_of(config["model"].get("path"))
    hardware: Hardware = make(config["hardware"])
    hardware.refuse_fit()
    policy = load_policy(config, hardware)
    across.refuse_longer({"max_new_tokens": own["max_new_tokens"]}, policy.model.config.n_positions)
    return Exam(
        policy=policy,
        autocast=hardware.autocast,
        head_chunk=hardware.head_chunk,
        name=f"{config['model'].get('path', config['model']['_target_'])}, {hardware.precision}, {own['p_style']}",
        folder=run_folder,
        record=run_info.record({**config, "p_style": own["p_style"]}, sys.argv) | {"precision": hardware.precision},
        **own,
    )


def load_policy(config: Config, hardware: Hardware) -> Pretrained:
    """The model on its device, and its tokenizer; says why the device's faster kernels are not used, if so."""
    if hardware.doubt is not None:
        print(f"note: hardware.kernels=torch, the slower ones: {hardware.doubt}", file=sys.stderr, flush=True)
    policy: Pretrained = make(config["model"], "model")
    return Pretrained(hardware.placed(policy.model), policy.tokenizer)


def introduced(policy: Pretrained, hardware: Hardware) -> str:
    """One line that says what is trained and where."""
    here, count = hardware.describe(), weights.parameter_count(policy.model)
    threads = f", {here['threads']} thread{'' if here['threads'] == 1 else 's'}" if here["device"] == "cpu" else ""
    return f"{count / 1e6:.2f} M parameters in {here['precision']} on {here['device']} ({here['device_name']}{threads})"


def build_tracker(config: Config, run_folder: Path, start: Start, steps: int) -> FanOut:
    """The trackers of conf/track as one; a resumed run logs from the step after its checkpoint.

    Raises: ConfigError if none of them writes metrics.jsonl.
    """
    first_step = start.step + 1 if start.step else 0
    trackers: list[Tracker] = []  # passed, still growing, to any tracker that notifies the others
    about = {"folder": run_folder, "first_step": first_step, "total_steps": steps, "trackers": trackers}
    for node in config["track"].values():
        trackers.append(make(node, **about))
    if not any(isinstance(tracker, JsonlTracker) for tracker in trackers):
        raise ConfigError("track.jsonl: missing; allowed: a rookexp.track.JsonlTracker, whose file the report reads")
    return FanOut(trackers=trackers)
