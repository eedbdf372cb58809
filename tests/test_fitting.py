"""The micro-batch that suits the device: which sizes are tried, which is taken, and that nothing else changes."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import LONGEST, gae, grpo, policy, trainer

from rookexp import fitting, generate, parts, probes, train
from rookexp.config import door
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, DataError, Reconfigured, lacks_memory
from rookexp.evaluation import Greedy
from rookexp.fitting import Batch
from rookexp.hardware import GIB, Hardware
from rookexp.models.replays import Replays
from rookexp.objectives.likelihood import Documents
from rookexp.optim import AdamW, Muon
from rookexp.probes import Decoding, Rung, WorstCase
from rookexp.schedule import Constant
from rookexp.trainer import Trainer
from rookexp.types import Prompt

CASE = WorstCase(rows=100, prompt=6, completion=LONGEST, per_prompt=4, temperature=1.0)
HARDWARE: dict[str, Any] = {"device": "cpu", "threads": None, "precision": "fp32", "micro_batch": 3, "head_chunk": 7}
HARDWARE |= {
    "decode": "auto",
    "kernels": "auto",
    "compile": False,
    "fit": True,
    "grow": "micro_batch",
    "memory_gib": None,
}
HARDWARE["keep_freed"] = True


def any_number(prompts: int) -> bool:
    """That a task has so many prompts for a step."""
    return True


class Meter:
    """A memory of 100 GiB of which `fixed` are always taken and each row of a micro-batch takes one."""

    limit = 100 * GIB

    def __init__(self, fixed: int = 0) -> None:
        self.fixed = fixed
        self.rows = 0

    def restart(self) -> None:
        self.rows = 0

    def peak(self) -> int:
        return (self.fixed + self.rows) * GIB


class Tight:
    """An objective's loss that tells a meter the rows of each micro-batch and runs out of memory above `most`."""

    def __init__(self, loss: Any, meter: Meter, most: int) -> None:
        self.loss = loss
        self.meter = meter
        self.most = most

    def __call__(self, micro: Any) -> Any:
        rows = len(micro.tokens)
        found = self.loss(micro)
        if rows > self.most:
            found.total.backward()  # what is half done must go, too
            raise torch.OutOfMemoryError("no more")
        self.meter.rows = max(self.meter.rows, rows)
        return found


def tiny_trainer(meter: Meter, *, most: int = 1000, optim: type[AdamW] = AdamW, **changes: Any) -> Trainer:
    """A trainer of two tiny layers and a value head."""
    model = policy()
    objective = grpo(model, baseline=gae())
    objective.loss = Tight(objective.loss, meter, most)  # type: ignore[method-assign]
    kwargs: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
    kwargs |= {"momentum": 0.9} if optim is Muon else {}
    made = optim(**kwargs, schedule=Constant(warmup_steps=0)).optimizer(model, objective.heads)
    return trainer(model, objective, made, lr=None, micro_batch=5, **changes)


def everything(made: Trainer) -> list[Any]:
    """All that a probe might move: bytes of weights, optimizer state and modules, settings, and random states."""
    tensors = [*made.parameters, *(v for m in made.objective.modules.values() for v in m.state_dict().values())]
    state = made.optimizer.state_dict()
    entries = {(k, n): torch.as_tensor(v).numpy().tobytes() for k, e in state["state"].items() for n, v in e.items()}
    grads = [parameter.grad is None for parameter in made.parameters]
    scalars = [made.micro_batch, made.inner_epochs, made.minibatches, made.diagnose_every, made.schedule(0)]
    chance = torch.get_rng_state().numpy().tobytes()  # Python's own is drawn from by beartype, under pytest alone
    weights = [tensor.detach().numpy().tobytes() for tensor in tensors]
    return [weights, entries, copy.deepcopy(state["param_groups"]), grads, scalars, chance]


def climbed(meter: Meter, rows: int, monkeypatch: pytest.MonkeyPatch) -> list[Rung]:
    """The rungs for a trainer whose steps take no time."""

    def update(self: Trainer, step: int, experience: Any) -> dict[str, float]:
        meter.rows = self.micro_batch
        return {}

    monkeypatch.setattr(Trainer, "update", update)
    return probes.probe_all(tiny_trainer(meter), replace(CASE, rows=rows), meter)


def sizes(rungs: list[Rung]) -> list[int]:
    return [rung.rows for rung in rungs]


# ---- the ladder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, [1]), (2, [1, 2]), (7, [1, 2, 4, 7]), (48, [1, 2, 4, 8, 16, 32, 48]), (50, [1, 2, 4, 8, 16, 32, 48, 50])],
)
def test_sizes_rise_to_the_rows_of_a_step(rows: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = climbed(Meter(), rows, monkeypatch)
    assert sizes(rungs) == expected
    assert [rung.peak_gib for rung in rungs] == expected
    assert all(rung.fits and rung.rows_per_s for rung in rungs)


def test_the_first_size_that_is_over_the_share_is_the_last_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(fixed=40)
    rungs = climbed(meter, 100, monkeypatch)
    assert sizes(rungs) == [1, 2, 4, 8, 16, 32, 48]
    assert [rung.fits for rung in rungs] == [True] * 6 + [False]
    assert rungs[-1].utilisation == pytest.approx(0.88)
    assert probes.table(rungs, meter.limit).splitlines()[-1].split()[:3] == ["48", "88.00", "88.0%"]


@pytest.mark.parametrize(("fixed", "last"), [(51, 48), (53, 32)])  # with 48 rows 99 and 101 % of the memory
def test_a_size_that_cannot_fit_is_not_tried(fixed: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(climbed(Meter(fixed), 100, monkeypatch))[-1] == last


def test_out_of_memory_ends_the_ladder_and_the_last_good_size_is_taken() -> None:
    meter = Meter()
    made = tiny_trainer(meter, most=10)
    before = everything(made)
    rungs = probes.probe_all(made, CASE, meter)
    assert sizes(rungs) == [1, 2, 4, 8, 16]
    assert [rung.peak_gib for rung in rungs[:4]] == [1, 2, 4, 8], "micro-batches have just so many rows"
    assert rungs[-1] == Rung(16, None, None, None)
    assert "out of memory" in probes.table(rungs, meter.limit)
    assert probes.best_size(rungs, CASE, 0.0) in (1, 2, 4, 8)
    assert everything(made) == before


@pytest.mark.parametrize(
    "said", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"]
)
def test_what_the_libraries_of_a_gpu_say_of_a_full_memory_is_known(said: str) -> None:
    assert lacks_memory(RuntimeError(said))
    assert not lacks_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_another_error_is_not_taken_for_a_full_memory() -> None:
    made = tiny_trainer(Meter())
    before = everything(made)

    def loss(micro: Any) -> Any:
        raise RuntimeError("something else")

    made.objective.loss = loss  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="something else"):
        probes.probe_all(made, CASE, Meter())
    assert everything(made) == before


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [([10, 20, 30], 8), ([10, 30, 20], 4), ([10, 29, 30], 4), ([10, 28, 30], 8), ([30, 30, 30], 2)],
)
def test_the_fastest_is_taken_and_of_equals_the_smallest(speeds: list[float], expected: int) -> None:
    rungs = [Rung(2 ** (i + 1), 1.0, 0.5, speed) for i, speed in enumerate(speeds)]
    assert probes.best_size([*rungs, Rung(16, 9.0, 0.9, 99.0)], CASE, 0.0) == expected


@pytest.mark.parametrize("rung", [Rung(1, None, None, None), Rung(1, 9.0, 0.9, 1.0)])
def test_where_nothing_fits_the_line_says_what_was_taken_before_and_what_to_lower(rung: Rung) -> None:
    said = r"hardware\.fit=true: a row of 12 tokens takes .*, 7\.50 GiB of it taken before; .*at most 85%.*lower"
    with pytest.raises(ConfigError, match=said):
        probes.best_size([rung], CASE, 7.5)


def test_one_row_is_taken_where_two_do_not_fit() -> None:
    meter = Meter()
    rungs = probes.probe_all(tiny_trainer(meter, most=1), CASE, meter)
    assert probes.best_size(rungs, CASE, 0.0) == 1


# ---- nothing else changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optim", "diagnose_every", "begun"), [(AdamW, None, False), (AdamW, 5, True), (Muon, 5, True)]
)
def test_nothing_is_changed_to_the_bit(optim: type[AdamW], diagnose_every: int | None, begun: bool) -> None:
    meter = Meter()
    case = replace(CASE, rows=8)
    tried, plain = (tiny_trainer(meter, optim=optim, diagnose_every=diagnose_every) for _ in range(2))
    for made in (tried, plain) if begun else ():  # as a run that goes on, with a state in its optimizer
        made.update(0, made.objective.collect(0)[0])
    before = everything(tried)
    assert bool(before[1]) == begun
    assert len(probes.probe_all(tried, case, meter)) == 4
    assert everything(tried) == before == everything(plain)
    for made in (tried, plain):
        made.update(1, made.objective.collect(1)[0])
    assert everything(tried) == everything(plain)
    assert everything(tried) != before


def test_a_probe_is_a_whole_step_of_two_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_trainer(Meter(), inner_epochs=3, minibatches=2, diagnose_every=10)
    seen: list[tuple[int, int, int, bool]] = []
    update, stepped = Trainer.update, made.optimizer.step
    steps: list[int] = []
    monkeypatch.setattr(made.optimizer, "step", lambda: steps.append(1) or stepped())

    def spied(self: Trainer, step: int, experience: Any) -> dict[str, float]:
        metrics = update(self, step, experience)
        seen.append((self.micro_batch, len(experience.tokens), int(metrics["tokens"]), "update_ratio" in metrics))
        return metrics

    monkeypatch.setattr(Trainer, "update", spied)
    probes.probe_all(made, replace(CASE, rows=7), Meter())
    counts = [(1, 2), (2, 4), (4, 7), (7, 7)]
    assert seen == [(n, rows, rows * LONGEST, told) for n, rows in counts for told in (False, True, False)]
    assert len(steps) == len(seen), "one optimizer step each"


# ---- the longest rows -----------------------------------------------------------------------------------------------


class Asked:
    """Prompts of so many tokens at each step."""

    def __init__(self, *lengths: tuple[int, ...]) -> None:
        self.lengths = lengths

    def select(self, step: int) -> tuple[Any, ...]:
        return tuple(Prompt("b" * length, (1,) * length, None, "P") for length in self.lengths[step])


SAMPLING = Sampling(temperature=0.7, top_k=None, top_p=None, max_new_tokens=20)
LONG = Sampling(temperature=1.0, top_k=5, top_p=None, max_new_tokens=30)


def rollouts_finder(
    places: int, group_size: int = 6, minibatches: int = 1, own: dict[str, Sampling] | None = None, **hardware: Any
) -> fitting.Finder:
    """A finder for three steps of two prompts of kind P each, and an evaluation of the last."""
    task = Asked((3, 4), (9, 5), (2, 2))
    made = grpo(policy(), task=task, sampling=SAMPLING, own_sampling=own or {}, group_size=group_size)
    lengths = {kind: sampling.max_new_tokens for kind, sampling in (own or {}).items()}
    greedy = Greedy(
        policy=made.policy,
        tokenizer=made.source.tokenizer,
        prompts=task.select(2),
        reward=made.source.reward,
        max_new_tokens=7,
        own_lengths=lengths,
        autocast=nullcontext,
    )
    here = Hardware(**HARDWARE | {"memory_gib": 1.0} | hardware)
    found = fitting.for_rollouts(
        here, made.source, greedy, range(3), places, Batch(2, group_size, minibatches, any_number)
    )
    assert found is not None
    return found


def test_rows_are_as_long_as_any_of_the_run() -> None:
    def case(places: int, group_size: int, minibatches: int) -> WorstCase:
        return rollouts_finder(places, group_size, minibatches).case

    assert case(100, 6, 1) == WorstCase(rows=12, prompt=9, completion=20, per_prompt=6, temperature=0.7)
    assert case(100, 6, 5) == WorstCase(rows=3, prompt=9, completion=20, per_prompt=1, temperature=0.7)
    assert (case(24, 6, 1).prompt, case(24, 6, 1).completion) == (4, 20), "no room for both"
    assert case(12, 6, 1).completion == 10
    hardware = Hardware(**HARDWARE | {"memory_gib": 1.0})
    documents = fitting.for_documents(hardware, Documents([([1, 2], 1), ([1, 2, 3, 4], 1), ([5], 1)]), 32)
    assert documents is not None
    assert documents.case == WorstCase(rows=32, prompt=0, completion=4, per_prompt=32, temperature=1.0)
    hardware.grow = "batch"
    with pytest.raises(ConfigError, match=r"hardware\.grow=batch: of rollouts alone; .*batch_documents"):
        fitting.for_documents(hardware, Documents([([1], 1)]), 32)
    hardware.fit = False
    assert fitting.for_documents(hardware, Documents([([1], 1)]), 32) is None
    made = grpo(policy())
    assert fitting.for_rollouts(hardware, made.source, None, range(3), 24, Batch(2, 6, 1, any_number)) is None  # type: ignore[arg-type]


def test_what_is_decoded_is_the_largest_batch_of_the_run() -> None:
    greedy = replace(SAMPLING, temperature=0.0)
    sampled, evaluated = rollouts_finder(100).decodings
    assert sampled == Decoding("sampling", 2, 6, 9, SAMPLING)
    assert evaluated == Decoding("evaluation", 2, 1, 2, replace(greedy, max_new_tokens=7))
    assert rollouts_finder(24).decodings[0].work == 12 * 24, "no room for both"
    own = rollouts_finder(100, own={"P": LONG})
    assert own.case.completion == 30
    assert own.decodings == [
        Decoding("sampling", 2, 6, 9, LONG),
        replace(evaluated, sampling=replace(greedy, max_new_tokens=30)),
    ]


# ---- decoding -------------------------------------------------------------------------------------------------------


class Drawn:
    """Counts the rows that are drawn at one time in a meter, and has no memory for more than `most`."""

    def __init__(self, meter: Meter, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int, float]] = []
        sample = generate.sample

        def spied(model: Any, prompts: Any, seeds: Any, sampling: Sampling, eot_id: int) -> Any:
            found = sample(model, prompts, seeds, sampling, eot_id)
            assert int(found.mask.sum()) == len(seeds) * sampling.max_new_tokens, "no row ends before the longest"
            self.calls.append((len(prompts), len(seeds), sampling.temperature))
            meter.rows = len(seeds)
            if len(seeds) > most:
                torch.empty(1 << 60)  # which a CPU refuses with a plain RuntimeError
            return found

        monkeypatch.setattr(generate, "sample", spied)


SAMPLED = Decoding("sampling", 8, 4, 6, replace(SAMPLING, max_new_tokens=5))
EVALUATED = Decoding("evaluation", 2, 1, 4, replace(SAMPLING, temperature=0.0, max_new_tokens=6))


def test_sampling_and_evaluation_are_tried_at_the_size_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    drawn = Drawn(meter, 100, monkeypatch)
    made = tiny_trainer(meter)
    before = everything(made)
    rungs = probes.probe_all(made, replace(CASE, rows=4), meter, [SAMPLED, EVALUATED])
    assert everything(made) == before
    assert drawn.calls == [(2, 8, 0.7), (4, 16, 0.7), (8, 32, 0.7), (1, 1, 0.0), (2, 2, 0.0)]
    assert [(rung.what, rung.rows, rung.peak_gib) for rung in rungs] == [
        *(("update", n, n) for n in (1, 2, 4)),
        *(("sampling", n, n) for n in (8, 16, 32)),
        *(("evaluation", n, n) for n in (1, 2)),
    ]
    assert probes.best_size(rungs, CASE, 0.0) in (1, 2, 4), "not a batch that was decoded"
    probes.refuse_what_cannot_be_decoded(rungs, [SAMPLED, EVALUATED])
    assert "sampling" in probes.table(rungs, meter.limit)


def test_recorded_steps_have_their_memory_while_updates_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, seen = Meter(), list[bool]()

    def record(step: Callable[[], None]) -> Callable[[], None]:
        step()
        return step

    def update(self: Trainer, step: int, experience: Any) -> dict[str, float]:
        seen.append(self.policy.replays.memory is not None)
        return {}

    made = tiny_trainer(meter)
    made.policy.replays = Replays(record)
    monkeypatch.setattr(Trainer, "update", update)
    rungs = probes.probe_all(made, replace(CASE, rows=2), meter, [SAMPLED])
    assert seen
    assert all(seen)
    assert {rung.what for rung in rungs} == {"update", "sampling"}


@pytest.mark.parametrize(("fixed", "most", "calls"), [(0, 20, 3), (0, 10, 2), (80, 100, 2), (60, 100, 3)])
def test_a_batch_that_cannot_be_decoded_is_one_line(
    fixed: int, most: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(fixed)
    drawn = Drawn(meter, most, monkeypatch)
    rungs = probes.probe_all(tiny_trainer(meter), replace(CASE, rows=2), meter, [SAMPLED])
    assert len(drawn.calls) == calls
    assert rungs[-1].rows == 32
    with pytest.raises(
        ConfigError, match=r"sampling of 32 rows of 11 tokens takes .* at most 85%.*lower grpo\.prompts"
    ):
        probes.refuse_what_cannot_be_decoded(rungs, [SAMPLED])


@pytest.mark.parametrize(
    ("fixed", "most", "tried", "batch"),
    [(0, 100, [4, 8, 16], None), (0, 9, [4, 8, 16], 8), (0, 3, [2, 4, 16], 2), (83, 100, [2, 4, 8, 16], 2)],
)
def test_an_evaluation_is_cut_to_what_fits_and_says_the_same(
    fixed: int, most: int, tried: list[int], batch: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(fixed)
    made, own = tiny_trainer(meter), grpo(policy())
    prompts = Asked(tuple(range(1, 17))).select(0)

    def greedy() -> Greedy:
        return Greedy(
            policy=own.policy,
            tokenizer=own.source.tokenizer,
            prompts=prompts,
            reward=own.source.reward,
            max_new_tokens=6,
            own_lengths={},
            autocast=nullcontext,
        )

    def finder(evaluated: Greedy) -> fitting.Finder:
        case = replace(EVALUATED, prompts=len(prompts))
        found = fitting.Finder(Hardware(**HARDWARE), replace(CASE, rows=2), [case], None, evaluated)
        found.memory = meter
        return found

    plain = greedy()
    whole = repr(plain(0)), repr(plain.completions)
    with monkeypatch.context() as patch:
        Drawn(meter, most, patch)
        finder(cut := greedy()).apply(made, tmp_path)
    profile = json.loads((tmp_path / fitting.PROFILE).read_text(encoding="utf-8"))
    assert [rung["rows"] for rung in profile["rungs"] if rung["what"] == "evaluation"] == tried
    assert profile["evaluation_batch"] == batch
    assert cut.batch == (batch or plain.batch)
    assert (repr(cut(0)), repr(cut.completions)) == whole
    finder(again := greedy()).apply(made, tmp_path)  # a run that goes on
    assert again.batch == cut.batch


def test_an_evaluation_of_which_no_row_fits_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    Drawn(meter, 0, monkeypatch)
    found = fitting.Finder(Hardware(**HARDWARE), replace(CASE, rows=2), [EVALUATED], None, None)
    found.memory = meter
    with pytest.raises(ConfigError, match=r"evaluation of 1 rows of 10 tokens takes more .*; lower eval\.max_new_tok"):
        found.apply(tiny_trainer(meter), tmp_path)


def test_a_cpu_that_has_no_more_memory_ends_the_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    made = tiny_trainer(meter)
    loss = made.objective.loss

    def greedy_for_memory(micro: Any) -> Any:
        return torch.empty(1 << 60) if len(micro.tokens) > 4 else loss(micro)

    made.objective.loss = greedy_for_memory  # type: ignore[method-assign]
    assert probes.probe_all(made, CASE, meter)[-1] == Rung(8, None, None, None)


# ---- a batch that grows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "most", "given", "expected"),
    [(0, 1000, 2, 16), (0, 50, 2, 12), (0, 1000, 16, 16), (0, 1000, 20, 20), (70, 1000, 2, 2), (0, 3, 2, 2)],
)
def test_a_step_has_as_many_prompts_as_one_micro_batch_holds(
    fixed: int, most: int, given: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(fixed)  # 64 rows, of 100 GiB, are the most below 85
    Drawn(meter, most, monkeypatch)

    def update(self: Trainer, step: int, experience: Any) -> dict[str, float]:
        meter.rows = self.micro_batch
        return {}

    monkeypatch.setattr(Trainer, "update", update)
    made = tiny_trainer(meter)
    before = everything(made)
    case = replace(SAMPLED, prompts=given)

    def finder(prompts: int, grow: str = "batch") -> fitting.Finder:
        made = fitting.Finder(
            Hardware(**HARDWARE | {"grow": grow}), CASE, [case], Batch(prompts, 4, 1, any_number), None
        )
        made.memory = meter
        return made

    if expected == given:
        (last := finder(given)).grow(made, tmp_path, resumed=False)
        assert not (tmp_path / fitting.PROFILE).exists(), "nothing is noted before the micro-batch is found"
    else:
        with pytest.raises(Reconfigured) as found:
            finder(given).grow(made, tmp_path, resumed=False)
        assert (found.value.key, found.value.value) == ("grpo.prompts_per_step", expected)
        with monkeypatch.context() as patch:
            patch.setattr(fitting, "probe_updates", None)  # what was just found is not found anew
            (last := finder(expected)).grow(made, tmp_path, resumed=False)
    assert everything(made) == before
    assert last.growth["prompts_per_step"] == expected
    finder(given, "micro_batch").grow(made, tmp_path, resumed=False)  # without the word nothing grows


def test_only_a_batch_of_at_most_the_tasks_prompts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    Drawn(meter, 1000, monkeypatch)
    batch = Batch(2, 4, 1, can_ask=lambda prompts: prompts <= 8)
    finder = fitting.Finder(Hardware(**HARDWARE | {"grow": "batch"}), CASE, [replace(SAMPLED, prompts=2)], batch, None)
    finder.memory = meter
    with pytest.raises(Reconfigured, match=r"grpo\.prompts_per_step=8:"):
        finder.grow(tiny_trainer(meter), tmp_path, resumed=False)


def test_a_batch_is_found_anew_in_the_folder_of_a_failed_attempt_and_kept_by_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = Meter(90)
    Drawn(meter, 1000, monkeypatch)
    made = tiny_trainer(meter)

    def finder(prompts: int, memory: Meter) -> fitting.Finder:
        here = Hardware(**HARDWARE | {"grow": "batch"})
        found = fitting.Finder(
            here,
            replace(CASE, rows=4 * prompts),
            [replace(SAMPLED, prompts=prompts)],
            Batch(prompts, 4, 1, any_number),
            None,
        )
        found.memory = memory
        return found

    (failed := finder(2, meter)).grow(made, tmp_path, resumed=False)
    with pytest.raises(ConfigError, match=r"hardware\.fit=true: a row"):
        failed.apply(made, tmp_path)
    meter.fixed = 0
    with pytest.raises(Reconfigured) as found:
        finder(2, meter).grow(made, tmp_path, resumed=False)
    grown = found.value.value
    (last := finder(grown, meter)).grow(made, tmp_path, resumed=False)
    last.apply(made, tmp_path)
    profile = fitting.read_profile(tmp_path)
    assert (profile["prompts_given"], profile["prompts_per_step"]) == (2, grown)
    meter.fixed = 90
    said = capsys.readouterr().out
    finder(grown, meter).grow(made, tmp_path, resumed=False)
    assert f"prompts_per_step={grown}, of {grown} given" in capsys.readouterr().out, "a new run asks anew"
    assert f"prompts_per_step={grown}, of 2 given" in said
    with pytest.raises(Reconfigured, match=f"={grown}:"):
        finder(2, meter).grow(made, tmp_path, resumed=True)
    finder(grown, meter).grow(made, tmp_path, resumed=True)
    kept = f"prompts_per_step={grown}, as {tmp_path / fitting.PROFILE} has it\n"
    assert capsys.readouterr().out == f"hardware.grow: grpo.{kept}"
    meter.fixed = 0
    with pytest.raises(Reconfigured, match=f"={grown}:"):
        finder(2, meter).grow(made, tmp_path, resumed=False)
    assert f"prompts_per_step={grown}, of 2 given" in capsys.readouterr().out, "in the folder of a finished search, too"


@pytest.mark.parametrize(
    ("grow", "prompts", "refused"),
    [
        ("batch", 2, None),
        ("batch", 24, None),
        ("micro_batch", 24, None),
        ("batch", 3, r"grpo\.prompts_per_step=3: .* has grown to 24; leave it out, or begin a new run"),
        (
            "micro_batch",
            2,
            r"hardware\.grow=micro_batch: .* has grown to 24 .*; allowed: batch, or grpo\.prompts_per_step=24",
        ),
    ],
)
def test_a_run_that_has_grown_goes_on_with_its_batch(
    grow: str, prompts: int, refused: str | None, tmp_path: Path
) -> None:
    here = Hardware(**HARDWARE | {"grow": grow})
    fitting.refuse_another_batch(here, 5, tmp_path)  # nothing has grown there
    profile = {"asked": {}, "prompts_given": 2, "prompts_per_step": 24, "grown": []}
    (tmp_path / fitting.PROFILE).write_text(json.dumps(profile), encoding="utf-8")
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        fitting.refuse_another_batch(here, prompts, tmp_path)


@pytest.mark.parametrize("text", ['{"asked"', "[]", ""])
def test_a_damaged_profile_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / fitting.PROFILE).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"memory_profile\.json: no JSON.*; restore it, or delete it"):
        fitting.read_profile(tmp_path)


def test_the_rows_that_are_tried() -> None:
    rows = CASE.experience(10, 17, torch.device("cpu"))
    assert rows.tokens.shape == (10, 6 + LONGEST)
    assert rows.weights.sum() == pytest.approx(1)
    assert rows.prompt.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert len(rows.predicting()) == 10 * LONGEST
    whole = replace(CASE, prompt=0).experience(2, 17, torch.device("cpu"))
    assert len(whole.predicting()) == 2 * (LONGEST - 1), "a document's first token is not predicted"


# ---- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_its_micro_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    finder = fitting.Finder(Hardware(**HARDWARE), replace(CASE, rows=8), (), None, None)
    finder.memory = meter
    made = tiny_trainer(meter)
    finder.apply(made, tmp_path)
    profile = json.loads((tmp_path / fitting.PROFILE).read_text(encoding="utf-8"))
    assert made.micro_batch == profile["micro_batch"] in (1, 2, 4, 8)
    assert [rung["rows"] for rung in profile["rungs"]] == [1, 2, 4, 8]
    assert profile["limit_gib"] == 100
    assert "utilisation" in capsys.readouterr().out
    profile["micro_batch"] = 6
    (tmp_path / fitting.PROFILE).write_text(json.dumps(profile), encoding="utf-8")
    finder.apply(made, tmp_path)
    assert made.micro_batch == 6
    assert "utilisation" not in capsys.readouterr().out
    finder.hardware.head_chunk = 8
    finder.apply(made, tmp_path)
    assert made.micro_batch != 6, "another question"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no peak of a process elsewhere")
def test_a_run_grows_and_says_so_in_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "debug=fast model=fresh_nano model.n_layer=1 model.n_head=2 model.n_embd=16 grpo.group_size=3"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probes, "SIZES", (2, 4, 8, 12))
    monkeypatch.setattr(
        sys, "argv", ["train", *words.split(), "hardware.fit=true", "hardware.grow=batch", "hydra.run.dir=run"]
    )
    door.enter(train.train, "config")
    config = yaml.safe_load(Path("run", "config.yaml").read_text(encoding="utf-8"))
    assert config["grpo"]["prompts_per_step"] == config["task"]["prompts"] == 4
    assert "grpo.prompts_per_step=4, of 2 given" in capsys.readouterr().out
    rows = [json.loads(line) for line in Path("run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["completions/sampled"] == 12
    assert json.loads(Path("run", "summary.json").read_text(encoding="utf-8"))["status"] == "finished"
    monkeypatch.setattr(sys, "argv", ["train", "resume=run", "steps=3"])
    door.enter(train.train, "config")
    rows = [json.loads(line) for line in Path("run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (rows[-1]["step"], rows[-1]["completions/sampled"]) == (3, 12)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("from step-")]
    assert told == ["from step-000002 on: steps was 2, now 3"], "and not the number of prompts that was typed"


def test_prompts_of_a_step_are_counted_in_tasks_within_tasks() -> None:
    task = {"prompts": 2, "rows": 2, "tasks": {"P": {"prompts": 2}, "A": {"prompts": 7}}}
    expected = {"prompts": 9, "rows": 2, "tasks": {"P": {"prompts": 9}, "A": {"prompts": 7}}}
    assert parts.with_prompts(task, 2, 9) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="no peak of a process elsewhere")
def test_a_batch_is_not_larger_than_the_data(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "debug=fast model=fresh_nano model.n_layer=1 model.n_head=2 model.n_embd=16 grpo.group_size=1 baseline=ema"
    more = ["task.positions=six.jsonl", "hardware.fit=true", "hardware.grow=batch", "hydra.run.dir=run"]
    embedded = (root / "rookexp/assets/positions/train.jsonl").read_text(encoding="utf-8").splitlines()
    white, black = ([line for line in embedded if f" {colour} " in json.loads(line)["fen"]] for colour in "wb")
    (tmp_path / "six.jsonl").write_text("\n".join([*white[:3], *black[:3]]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probes, "SIZES", (1, 4, 6, 8))
    monkeypatch.setattr(sys, "argv", ["train", *words.split(), *more])
    door.enter(train.train, "config")
    assert "grpo.prompts_per_step=6, of 2 given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sweep", "grow"), [(["sweep=grid"], "batch"), (["sweep=grid"], "micro_batch,batch"), ([], "batch")]
)
def test_a_sweeps_batches_do_not_grow(
    sweep: list[str], grow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None, capsys: Any
) -> None:
    words = ["debug=fast", "hardware.fit=true", f"hardware.grow={grow}", "grpo.prompts_per_step=2,4", *sweep]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "-m", *words, "hydra.sweep.dir=swept"])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code
    assert "hardware.grow=batch: not in a sweep" in capsys.readouterr().err
    assert not list(Path("swept").rglob("metrics.jsonl"))
    assert not list(Path(".").glob("swept/[0-9]*")), "what is refused leaves no folder"


@pytest.mark.skipif(sys.platform != "linux", reason="no peak of a process elsewhere")
def test_a_run_fits_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logging: None) -> None:
    words = "debug=fast model=fresh_nano model.n_layer=1 model.n_head=2 model.n_embd=16 grpo.group_size=3"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", *words.split(), "hardware.fit=true", "hydra.run.dir=run"])
    micro_batches: list[int] = []
    update = Trainer.update

    def spied(self: Trainer, step: int, experience: Any) -> dict[str, float]:
        micro_batches.append(self.micro_batch)
        return update(self, step, experience)

    monkeypatch.setattr(Trainer, "update", spied)
    door.enter(train.train, "config")
    profile = json.loads(Path("run", fitting.PROFILE).read_text(encoding="utf-8"))
    assert [rung["rows"] for rung in profile["rungs"] if rung["what"] == "update"] == [1, 2, 4, 6]
    assert {rung["what"] for rung in profile["rungs"]} == {"update", "sampling", "evaluation"}
    assert all(0 < rung["utilisation"] < 1 for rung in profile["rungs"])
    assert profile["asked"]["case"]["rows"] == 6
    assert profile["asked"]["case"]["completion"] == 4
    assert micro_batches == [1] * 3 + [2] * 3 + [4] * 3 + [6] * 3 + [profile["micro_batch"]] * 2
    assert json.loads(Path("run", "summary.json").read_text(encoding="utf-8"))["status"] == "finished"
