"""Any architecture pairs with its teacher and follows it, at every granularity, whatever its tensors are called."""

import copy

import pytest
import torch
from torch import nn

from sts_core import Smoother, SmoothingConfig, fragment_age, make_teacher, parameter_drift

timm = pytest.importorskip("timm", reason="timm supplies the architectures; sts-core itself needs only torch")

SMALL = {  # names and what makes the smallest member of each family quick to build
    # convolutions with batch norm
    "resnet18": {},
    "resnext50_32x4d": {},
    "wide_resnet50_2": {},
    "seresnet18": {},
    "densenet121": {},
    "mobilenetv2_050": {},
    "mobilenetv3_small_050": {},
    "efficientnet_b0": {},
    "mnasnet_small": {},
    "ghostnet_050": {},
    "regnetx_002": {},
    "regnety_002": {},
    "repvgg_a0": {},
    "dla34": {},
    "hrnet_w18_small": {},
    "inception_v3": {"aux_logits": False},
    "xception41": {},
    "res2net50_14w_8s": {},
    "skresnet18": {},
    # without batch norm
    "nf_regnet_b0": {},
    "dm_nfnet_f0": {},
    "convnext_atto": {},  # LayerScale
    "convnextv2_atto": {},
    # transformers
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "cait_xxs24_224": {},  # LayerScale
    "beit_base_patch16_224": {"depth": 1, "embed_dim": 48, "num_heads": 3},  # relative position buffers
    "swin_tiny_patch4_window7_224": {},
    "pit_ti_224": {},
    "xcit_nano_12_p16_224": {},
    "levit_128s": {},
    "coat_tiny": {},
    # mixers and others
    "mixer_s32_224": {},
    "resmlp_12_224": {},
    "gmlp_ti16_224": {},
    "poolformer_s12": {},
    "convmixer_768_32": {},
    "mobilevit_xxs": {},
    "edgenext_xx_small": {},
}


def build(name: str) -> nn.Module:
    return timm.create_model(name, num_classes=3, **SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_architecture_follows_the_rule(name: str) -> None:
    student = build(name)
    teacher = make_teacher(student)
    before = copy.deepcopy(teacher)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    for granularity in ("layer", "module", "channel", "neuron"):
        config = SmoothingConfig(momentum=0.0, preserve_probability=0.5, granularity=granularity, buffers="smooth")
        smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)
        smoother.update()
        share = parameter_drift(teacher, before)  # each moved weight has moved by 1
        assert 0.2 < share < 0.8 or granularity in ("layer", "module"), granularity
        assert 0.0 < share < 1.0, granularity
        smoother.update(preserve_probability=0.0)
        assert parameter_drift(teacher, student) == 0.0
        teacher.load_state_dict(before.state_dict())


def test_there_are_at_least_thirty_architectures() -> None:
    assert len(SMALL) >= 30


@pytest.mark.parametrize("granularity", ["layer", "module", "channel", "neuron"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_complex_tensor_moves_as_its_real_and_imaginary_parts(granularity: str, backend: str) -> None:
    config = SmoothingConfig(momentum=0.9, preserve_probability=0.5, granularity=granularity)

    def followed(weight: torch.Tensor, moved: torch.Tensor) -> tuple[nn.Module, float, torch.Tensor]:
        student = nn.ParameterDict({"weight": weight.clone()})
        teacher = make_teacher(student)
        start = copy.deepcopy(teacher)
        with torch.no_grad():
            student["weight"].copy_(moved)
        Smoother(student=student, teacher=teacher, config=config, seed=3, backend=backend).update()
        ages = fragment_age(teacher, config, seed=3, step=1)["weight"]
        return teacher, parameter_drift(teacher, start), ages

    old, new = torch.randn(2, 30, 50, dtype=torch.complex64)
    teacher, drift, ages = followed(old, new)
    expected, real_drift, real_ages = followed(torch.view_as_real(old), torch.view_as_real(new))
    assert torch.equal(torch.view_as_real(teacher["weight"]), expected["weight"])
    assert drift == real_drift
    assert torch.equal(ages, real_ages)


def test_integer_parameters_are_the_students_as_of_a_quantized_base() -> None:
    student = nn.ParameterDict({"adapter": torch.ones(4)})
    student["base"] = nn.Parameter(torch.arange(4, dtype=torch.int8), requires_grad=False)
    teacher = make_teacher(student)
    with torch.no_grad():
        student["adapter"].zero_()
        student["base"].add_(1)
    config = SmoothingConfig(momentum=0.5, preserve_probability=0.0)
    Smoother(student=student, teacher=teacher, config=config, seed=0).update()
    assert teacher["adapter"].tolist() == [0.5] * 4
    assert teacher["base"].tolist() == [1, 2, 3, 4]
