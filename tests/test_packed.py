"""Packed weights for decoding: the same logits from another layout, a copy that training does not reach."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_generate import EOT, SETTINGS, equal, mixed_prompts, wild

from rookexp.generate import sample
from rookexp.models import packed
from rookexp.models.packed import CopiedLinear, PackedLinear

FOR_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize(("small", "kind"), [(0, PackedLinear), (packed.SMALL, CopiedLinear)])
def test_a_packed_model_computes_what_the_model_computes(
    small: int, kind: type[torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "SMALL", small)
    model = wild()
    twin = model.packed()
    assert sum(isinstance(module, kind) for module in twin.modules()) == 1 + 4 * model.config.n_layer  # with the head
    tokens = torch.randint(model.config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.logits(model.hidden(tokens))
        torch.testing.assert_close(twin.logits(twin.hidden(tokens)), expected, rtol=0, atol=2e-5)
        for parameter in model.parameters():
            parameter.zero_()
        assert twin.logits(torch.ones(1, model.config.n_embd)).abs().sum() > 1
    assert not any(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize("small", [0, packed.SMALL])
def test_samples_are_the_same(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SMALL", small)
    model, prompts = wild(), mixed_prompts()
    seen, pack = [], model.packed
    monkeypatch.setattr(model, "packed", lambda: model)
    plain = sample(model, prompts, range(64), SETTINGS[2], EOT)
    monkeypatch.setattr(model, "packed", lambda: seen.append(1) or pack())
    equal(sample(model, prompts, range(64), SETTINGS[2], EOT), plain)
    equal(sample(model, prompts, range(64), dataclasses.replace(SETTINGS[2], lookup=3), EOT), plain)
    assert len(seen) == 2


def test_bf16_is_packed_where_the_machine_multiplies_it() -> None:
    model, hidden = wild(), torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        twin = model.packed()
        assert (twin is model) != FOR_BF16
        assert any(isinstance(module, PackedLinear) for module in twin.modules()) == FOR_BF16
        torch.testing.assert_close(twin.logits(hidden), model.logits(hidden), rtol=0.02, atol=0.1)
    assert model.to(torch.float64).packed() is model
