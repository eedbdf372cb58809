"""The sides of rookexp: the training that `rookexp.build` builds, one step per turn, and decoding alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rookexp import build, generate, ops, policies
from rookexp.benchmark.turns import Stopwatch, Turns, peak_bytes
from rookexp.benchmark.workload import read_prompts
from rookexp.config import nodes
from rookexp.draw import Sampling
from rookexp.hardware import Hardware
from rookexp.track import Tracker


class StepTracker(Tracker):
    """A tracker that ends a turn when a step is logged, and waits for the next."""

    def __init__(self, turns: Turns, watch: Stopwatch) -> None:
        self.turns = turns
        self.watch = watch

    def begin(self) -> None:
        """Waits for a turn."""
        self.turns.wait()
        self.watch.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Answers with the step's figures, and waits for the next turn."""
        self.turns.answer(
            **self.watch.stop(),
            tokens=round(metrics["completions/mean_length"] * metrics["completions/sampled"]),
            peak_bytes=peak_bytes(self.watch.device_type),
        )
        self.begin()


def step(spec: Mapping[str, Any], turns: Turns) -> None:
    """Runs the steps of `Trainer.fit`, one per turn, with nothing evaluated or saved between them."""
    hardware: Hardware = nodes.make(spec["config"]["hardware"])
    turns.about(imported_bytes=peak_bytes(hardware.device.type))
    trainer = build.build_training(spec["config"], Path(spec["folder"])).trainer
    objective: Any = trainer.objective
    turns.about(precision=hardware.precision, device=hardware.device.type)
    watch = Stopwatch(hardware.device.type)
    watch.wrap_learning()
    watch.wrap(objective.source, "sample", "generate")
    watch.wrap(objective.source, "score", "score")
    watch.wrap(objective, "loss", "loss")
    if objective.reference is not None:
        for name in ("hidden", "hidden_after"):
            watch.wrap(objective.reference, name, "reference")
    tracker = StepTracker(turns, watch)
    trainer.tracker, trainer.evaluate, trainer.after_step = tracker, None, None
    tracker.begin()
    trainer.fit()


def decode(spec: Mapping[str, Any], turns: Turns) -> None:
    """Samples from the workload's prompts, one batch per turn."""
    hardware: Hardware = nodes.make(spec["config"]["hardware"] | {"precision": spec["precision"]})
    turns.about(imported_bytes=peak_bytes(hardware.device.type))
    policy = policies.load(Path(spec["workload"]))
    model, tokenizer = hardware.placed(policy.model), policy.tokenizer
    prompts = [tokenizer.encode(text) for text in read_prompts(Path(spec["workload"]))]
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=spec["new_tokens"])
    watch, turn = Stopwatch(hardware.device.type), 0
    while True:
        asked = turns.wait()
        seeds = [ops.seed_of(turn, row) for row in range(asked["prompts"] * asked["group"])]
        watch.start()
        with torch.no_grad(), hardware.autocast():
            samples = generate.sample(model, prompts[: asked["prompts"]], seeds, sampling, tokenizer.eot_id)
        turns.answer(**watch.stop(), tokens=int(samples.mask.sum()), peak_bytes=peak_bytes(watch.device_type))
        turn += 1
