"""What runs on a GPU, on one that is none: every tensor where it belongs, the CPU's numbers, and few waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_gpu import NAME, OnDevice, pretended_gpu, registered
from test_config import TINY, compose
from test_replays import rerun

from rookexp import build, generate, hardware, ops, session, track
from rookexp.models.packed import CopiedLinear
from rookexp.models.replays import Replays

RUNS = {
    "as it ships": (),
    "a critic, cut draws, several passes": (
        "grpo=ppo", "baseline=gae", "kl=adaptive", "grpo.top_p=0.9", "grpo.top_k=200", "grpo.inner_epochs=2",
        "grpo.minibatches=2", "optim=adamw_advanced",
    ),
    "minibatches without a weight": ("grpo.minibatches=4", "grpo.dead_groups=dropped"),
    "guesses, a moving reference, resampled groups": (
        "grpo.lookup=3", "reference=ema", "grpo.dead_groups=resampled", "grpo.max_resamples=1",
        "loss=gspo", "optim=muon_pretrain",
    ),
}  # fmt: skip
RECORDED = "steps that know nothing of the host"
WAITS = "waits"
UPDATE = {  # waits of an update with one micro-batch, and of what it shares with sampling
    "trainer.update": 1,
    "types.predicting": 1,
    "completion_positions.completions_of": 2,
    "shared_prefix.__init__": 2 + 2,  # the policy's and the reference's; the prompts of two batches
    "trainer._optimizer_step": 1,
    "trainer._means": 1,
}


def refuses_and_counts() -> None:
    """What the device does itself."""
    with pretended_gpu() as waits:
        x = torch.arange(6.0, device=NAME).view(2, 3)
        assert isinstance(x, OnDevice)
        assert x.device.type == NAME
        for mixed in (lambda: x + torch.ones(3), lambda: x.gather(1, torch.zeros(2, 1, dtype=torch.long))):
            with pytest.raises(RuntimeError, match="pretended and on the CPU"):
                mixed()
        assert not waits
        assert (x * 2 + 1).sum(1)[torch.tensor([1])].item() == 27
        assert x[x > 2].cpu().tolist() == [3, 4, 5]
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert waits.total() == 4
        x.add_(1)[0] = 7
        assert x.numbers.tolist() == [[7, 7, 7], [4, 5, 6]]


def pads_what_it_multiplies() -> None:
    """In bf16 with an odd vocabulary: the head with its gradients, and a decoding layer whose copies are refreshed."""
    draw = torch.Generator().manual_seed(0)
    hidden, head, ref = (torch.randn(n, 8, generator=draw).bfloat16() for n in (5, 97, 97))
    targets, temperature = torch.randint(97, (5,), generator=draw), torch.linspace(0.5, 1.5, 5)
    layer = torch.nn.Linear(8, 13)
    found: dict[str, list[torch.Tensor]] = {}
    for device in ("cpu", NAME):
        with pretended_gpu():
            h, w = (x.to(device).requires_grad_() for x in (hidden, head))
            others = {"ref_hidden": hidden.to(device), "ref_head_weight": ref.to(device), "divergence": (0.5, 0.5)}
            stats = ops.token_stats(h, w, targets.to(device), temperature.to(device), chunk=3, **others)
            assert stats.ref is not None
            gradients = torch.autograd.grad((stats.logprobs + stats.entropy + stats.ref.kl).sum(), (h, w))
            copied = CopiedLinear(layer.weight.to(device), layer.bias.to(device), torch.bfloat16)
            assert [len(x) for x in copied.operands] == [13 if device == "cpu" else 64] * 2
            for copy in copied.copies:
                copy += 1
            results = (stats.logprobs, stats.entropy, stats.ref.kl, *gradients, copied(hidden.to(device)))
            found[device] = [x.detach().cpu() for x in results]
    for here, there in zip(found["cpu"], found[NAME], strict=True):
        torch.testing.assert_close(there, here, rtol=2e-2, atol=2e-2)


def trained(folder: Path, device: str, words: Sequence[str], *, recorded: bool = False) -> dict[str, Any]:
    """What a run of two steps logs, the second from the checkpoint of the first, and what each step waited for."""
    context: AbstractContextManager[Counter[str]] = pretended_gpu() if device == NAME else nullcontext(Counter())
    waited: list[dict[str, int]] = []
    with pytest.MonkeyPatch.context() as patch, context as waits:
        patch.setattr(hardware, "find_device", lambda _: device)
        patch.setitem(generate.LOOK_EVERY, NAME, 2)
        for steps, resume in ((1, None), (2, str(folder))):
            config = {**compose(*TINY, *words, "grpo.max_new_tokens=6"), "steps": steps, "resume": resume}
            training = build.build_training(config, folder)
            policy: Any = training.trainer.policy
            assert next(policy.parameters()).device.type == device
            if recorded:
                policy.replays = Replays(rerun)
            with session.tracked(training, config, folder, "train"):
                before = Counter(waits)
                session.fit(training, folder)
                waited.append(dict(waits - before))
    return {"rows": track.read_jsonl(folder / track.METRICS), WAITS: waited}


def main(folder: Path) -> None:
    registered()  # the autograd engine has no queue for a device that comes after its first backward
    refuses_and_counts()
    pads_what_it_multiplies()
    runs = {name: {d: trained(folder / name / d, d, words) for d in ("cpu", NAME)} for name, words in RUNS.items()}
    runs[RECORDED] = {d: trained(folder / RECORDED / d, d, (), recorded=True) for d in ("cpu", NAME)}
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """RUNS on both devices, by a process of their own: a device that is registered stays."""
    folder = tmp_path_factory.mktemp("runs")
    done = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", [*RUNS, RECORDED])
def test_a_run_logs_what_it_logs_on_a_cpu(name: str, runs: dict[str, Any]) -> None:
    here, there = runs[name]["cpu"]["rows"], runs[name][NAME]["rows"]
    assert [row["step"] for row in there] == [0, 1, 2]
    for a, b in zip(here, there, strict=True):
        timed = {key for key in a if key.endswith("_s")}
        assert {key: b[key] for key in b if key not in timed} == pytest.approx(
            {key: a[key] for key in a if key not in timed}, rel=1e-3, abs=1e-5
        )


def test_the_host_waits_seldom(runs: dict[str, Any]) -> None:
    """While it decodes at its looks alone; in an update five times a micro-batch and three times more."""
    once, passes = (runs[name][NAME][WAITS][1] for name in list(RUNS)[:2])
    for waits in (once, passes):
        assert waits["generate._one_by_one"] == 2 * 2  # two batches, sampled and greedy, of 6 tokens
    assert {name: once[name] for name in UPDATE} == UPDATE
    assert passes["trainer._optimizer_step"] == 4  # one a minibatch and pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
