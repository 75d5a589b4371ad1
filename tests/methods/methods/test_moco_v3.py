"""MoCo v3: the loss and its gradients against a slow computation, the heads, and what a transformer starts from."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_core import ConfigError, Smoother, spatial_temporal_smoothing
from sts_methods import Batch, MoCoV3, MoCoV3Config, build_backbone
from sts_methods.methods.moco_v3 import sin_cos_positions

CONVOLUTIONAL = MoCoV3Config(backbone="wrn_10_1", stem="cifar", hidden_dim=16, dim=8, temperature=0.7)
TRANSFORMER = MoCoV3Config(backbone="test_vit", freeze_patches=True, hidden_dim=16, dim=8, temperature=0.2)


def batch(num: int = 6, *, size: int = 8) -> Batch:
    draw = torch.Generator().manual_seed(0)
    one, two = (torch.randn(num, 3, size, size, generator=draw) for _ in range(2))
    return Batch(views=(one, two), indices=torch.arange(num), step=0)


def slow_loss(method: MoCoV3, views: tuple[Tensor, ...]) -> Tensor:
    """Query by query and key by key, each network on one view at a time."""
    temperature = method.config.temperature
    queries = [F.normalize(method.student.predictor(method.student(view)), dim=1) for view in views]
    with torch.no_grad():
        keys = [F.normalize(method.teacher(view), dim=1) for view in views]
    total = torch.zeros(())
    for mine, theirs in ((queries[0], keys[1]), (queries[1], keys[0])):
        for i, query in enumerate(mine):
            scores = [(query * key).sum() / temperature for key in theirs]
            total = total - (scores[i] - sum(score.exp() for score in scores).log()) / len(mine)  # type: ignore[union-attr]
    return 2.0 * temperature * total


@pytest.mark.parametrize("config", [CONVOLUTIONAL, TRANSFORMER], ids=["convolutional", "transformer"])
def test_the_loss_and_its_gradients_are_those_of_a_slow_computation(config: MoCoV3Config) -> None:
    data = batch(size=160 if config is TRANSFORMER else 8)
    fast, slow = MoCoV3(config, seed=4), MoCoV3(config, seed=4)
    found, expected = fast(data).loss, slow_loss(slow, data.views)
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)
    for (name, one), other in zip(fast.student.named_parameters(), slow.student.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) == (not one.requires_grad), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)
    assert all(p.grad is None and not p.requires_grad for p in fast.teacher.parameters())


def test_a_query_that_equals_its_key_and_no_other_is_counted_as_found() -> None:
    method, data = MoCoV3(CONVOLUTIONAL, seed=0), batch()
    alike = Batch(views=(data.views[0], data.views[0]), indices=data.indices, step=0)
    method.student.predictor = nn.Identity()
    result = method(alike)
    assert result.metrics["accuracy"] == 1.0
    assert result.metrics["student_teacher_distance"] < 1e-5
    assert result.loss < 2.0 * 2.0 * 0.7 * math.log(6)


def test_the_heads_are_as_deep_and_as_normalised_as_those_of_moco_v3() -> None:
    def layers(head: nn.Module) -> list[str]:
        kinds = {nn.Linear: "linear", nn.ReLU: "relu"}
        return [
            kinds.get(type(layer)) or ("plain norm" if layer.weight is None else "norm")  # type: ignore[arg-type]
            for layer in head.children()
        ]

    hidden = ["linear", "norm", "relu"]
    resnet, vit = MoCoV3(CONVOLUTIONAL, seed=0).student, MoCoV3(TRANSFORMER, seed=0).student
    assert layers(resnet.head) == [*hidden, "linear", "plain norm"]
    assert layers(resnet.predictor) == [*hidden, "linear"]
    assert layers(vit.head) == [*hidden, *hidden, "linear", "plain norm"]
    assert layers(vit.predictor) == [*hidden, "linear", "plain norm"]
    for network in (resnet, vit):
        linear = [m for part in (network.head, network.predictor) for m in part.children() if isinstance(m, nn.Linear)]
        assert all(layer.bias is None for layer in linear)
        assert {linear[-1].in_features, linear[-1].out_features} == {16, 8}


def test_places_are_told_by_sines_and_cosines_of_row_and_column() -> None:
    found = sin_cos_positions(2, 3, 8)
    for place in range(6):
        row, column = divmod(place, 3)
        waves = [wave(n / 10_000 ** (k / 2)) for n in (row, column) for wave in (math.sin, math.cos) for k in range(2)]
        assert found[place].tolist() == pytest.approx(waves, abs=1e-6)


def test_a_transformer_starts_as_moco_v3_s_with_positions_and_patches_that_never_move() -> None:
    method = MoCoV3(TRANSFORMER, seed=0)
    student = method.student.backbone
    (positions,) = student.pos_embed  # type: ignore[union-attr, misc]
    assert torch.equal(positions[0], torch.zeros(64))
    assert torch.equal(positions[1:], sin_cos_positions(10, 10, 64))
    attention, patches = student.blocks[0].attn.qkv.weight, student.patch_embed.proj.weight  # type: ignore[union-attr, index]
    for weight, fans in ((attention, 64 + 64), (patches, 3 * 16 * 16 + 64)):
        assert weight.abs().max().item() == pytest.approx(math.sqrt(6 / fans), rel=0.01)
    smoothing = spatial_temporal_smoothing(0.3, 0.5, buffers="keep")
    smoother = Smoother(student=method.student, teacher=method.teacher, config=smoothing, seed=0)
    optimizer = torch.optim.AdamW(method.student.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        method(batch(size=32)).loss.backward()
        optimizer.step()
        smoother.update()
    fresh = MoCoV3(TRANSFORMER, seed=0)
    moved = {
        name
        for (name, before), after, teachers in zip(
            fresh.student.backbone.named_parameters(),
            student.parameters(),
            method.teacher.backbone.parameters(),
            strict=True,
        )
        if not torch.equal(before, after) or not torch.equal(before, teachers)
    }
    assert dict(student.named_parameters()).keys() - moved == {
        "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias",
    }  # fmt: skip
    trained = MoCoV3(replace(TRANSFORMER, freeze_patches=False), seed=0).student.backbone
    assert {name for name, parameter in trained.named_parameters() if not parameter.requires_grad} == {"pos_embed"}


def test_its_backbone_is_timm_s_network_with_other_weights() -> None:
    trained = MoCoV3(TRANSFORMER, seed=0).teacher.backbone.eval()
    again = build_backbone("test_vit").eval()
    again.load_state_dict(trained.state_dict())
    images = batch(2, size=160).views[0]
    with torch.no_grad():
        assert torch.equal(again(images), trained(images))


def test_networks_without_patches_cannot_freeze_them() -> None:
    with pytest.raises(ConfigError, match="freeze_patches is for timm's vision transformers, got WideResNet"):
        MoCoV3(replace(CONVOLUTIONAL, freeze_patches=True), seed=0)
    with pytest.raises(ConfigError, match="temperature must be positive"):
        replace(CONVOLUTIONAL, temperature=0.0)
