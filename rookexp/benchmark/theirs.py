"""The other sides: TRL's GRPOTrainer, one step per turn, and `transformers.generate` alone; imported only here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rookexp import hardware
from rookexp.benchmark.turns import Stopwatch, Turns, peak_bytes
from rookexp.benchmark.workload import read_prompts, worth

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def step(spec: Mapping[str, Any], turns: Turns) -> None:
    """Runs the steps of `GRPOTrainer.train`, one per turn, with nothing logged or saved between them."""
    warnings.simplefilter("ignore")  # from TRL's own imports
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config, workload = spec["config"], spec["workload"]
    grpo, optim = config["grpo"], config["optim"]
    device = hardware.find_device(config["hardware"]["device"])
    bf16 = hardware.fastest_precision(device) == "bf16"
    fastest: dict[str, Any] = {
        "gradient_checkpointing": False,
        "bf16": bf16,
        "optim": "adamw_torch_fused",
        "model_init_kwargs": NO_DROPOUT,
    }
    settings = GRPOConfig(
        output_dir=spec["folder"],
        num_generations=grpo["group_size"],
        per_device_train_batch_size=grpo["prompts_per_step"] * grpo["group_size"],
        gradient_accumulation_steps=1,
        max_completion_length=grpo["max_new_tokens"],
        max_steps=config["steps"],
        temperature=grpo["temperature"],
        beta=config["kl"].get("coef", 0.0),
        epsilon=config["loss"]["clip_low"],
        epsilon_high=config["loss"]["clip_high"],
        learning_rate=optim["lr"],
        adam_beta1=optim["betas"][0],
        adam_beta2=optim["betas"][1],
        adam_epsilon=optim["eps"],
        weight_decay=optim["weight_decay"],
        max_grad_norm=optim["grad_clip"],
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        seed=config["seed"],
        use_cpu=device == "cpu",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **(fastest if spec["setting"] == "trl_fastest" else {}),
    )
    lengths: list[int] = []

    def even_share(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        lengths.append(sum(map(len, completion_ids)))
        return [worth(text) for text in completions]

    watch = Stopwatch(device)

    class StepCallback(TrainerCallback):
        """Waits for a turn before a step, answers after it."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.wait()
            watch.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.answer(**watch.stop(), tokens=lengths[-1], peak_bytes=peak_bytes(device))

    turns.about(
        precision="bf16" if settings.bf16 else "fp32",
        device=device,
        imported_bytes=peak_bytes(device),
        gradient_checkpointing=settings.gradient_checkpointing,
    )
    trainer = GRPOTrainer(
        model=workload,
        args=settings,
        reward_funcs=even_share,
        train_dataset=Dataset.from_dict({"prompt": read_prompts(Path(workload))}),
        processing_class=AutoTokenizer.from_pretrained(workload),
        callbacks=[StepCallback()],
    )
    watch.wrap_learning()
    watch.wrap(trainer, "_generate", "generate")
    watch.wrap(trainer, "_calculate_rewards", "score")
    watch.wrap(trainer, "compute_loss", "loss")
    if trainer.ref_model is not None:
        watch.wrap(trainer.ref_model, "forward", "reference")
    trainer.train()


def decode(spec: Mapping[str, Any], turns: Turns) -> None:
    """Runs `generate` from the workload's prompts, one batch per turn."""
    warnings.simplefilter("ignore")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = hardware.find_device(spec["config"]["hardware"]["device"])
    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    turns.about(imported_bytes=peak_bytes(device))
    model = AutoModelForCausalLM.from_pretrained(spec["workload"], dtype=dtype).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec["workload"], padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    texts = read_prompts(Path(spec["workload"]))
    watch, turn = Stopwatch(device), 0
    while True:
        asked = turns.wait()
        torch.manual_seed(turn)
        rows = [text for text in texts[: asked["prompts"]] for _ in range(asked["group"])]
        inputs = tokenizer(rows, return_tensors="pt", padding=True)  # not timed: our side starts from tokens, too
        watch.start()
        with torch.inference_mode():
            found = model.generate(
                **inputs.to(device),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=spec["new_tokens"],
                pad_token_id=tokenizer.pad_token_id,
            )
        figures = watch.stop()
        drawn = found[:, inputs["input_ids"].shape[1] :]
        ended = (drawn == tokenizer.eos_token_id).cumsum(1)
        tokens = int((ended - (drawn == tokenizer.eos_token_id).long() == 0).sum())  # up to the first end, with it
        turns.answer(**figures, tokens=tokens, peak_bytes=peak_bytes(device))
        turn += 1
