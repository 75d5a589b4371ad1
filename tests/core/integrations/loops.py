"""Small trainings in the loops that hosts leave to their users: their own scripts, from the parts they are made of."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.core.integrations.trained import (
    CONFIG,
    LABELS,
    SEED,
    State,
    Trained,
    computed,
    copied,
    images,
    named,
    network,
)


def timm(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    """What timm's train.py does, by the parts of it that timm's package has."""
    from timm.task import ClassificationTask, load_task_ema_checkpoint, resume_task_checkpoint
    from timm.utils import CheckpointSaver, NativeScaler

    from sts_core.integrations.timm import ModelSmoother

    model, history = network(), []
    start = copied(model)
    task = ClassificationTask(model, criterion=nn.CrossEntropyLoss(), verbose=False)
    task.trainable_module_ema = ModelSmoother(model, CONFIG, seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = NativeScaler(device="cpu") if mixed else None
    num_updates = 0
    if (last := folder / "last.pth.tar").exists():
        num_updates = resume_task_checkpoint(task, last, optimizer, scaler)
        load_task_ema_checkpoint(task, last)
    arguments = argparse.Namespace(model="its name")
    saver = CheckpointSaver(model, optimizer, arguments, task=task, amp_scaler=scaler, checkpoint_dir=str(folder))
    for epoch in range(num_updates, steps):  # of one update each
        for part in range(accumulate):
            need_update = part == accumulate - 1
            with torch.autocast("cpu", torch.float16, enabled=mixed):
                loss = task(images(accumulate * epoch + part), LABELS)["loss"] / accumulate
            if scaler is not None:
                scaler(loss, optimizer, need_update=need_update)
            else:
                loss.backward()
                if need_update:
                    optimizer.step()
            if not need_update:
                continue
            num_updates += 1
            optimizer.zero_grad()
            history.append(copied(model))
            task.update_ema(step=num_updates)
        saver.save_checkpoint(epoch)
    with torch.no_grad():
        evaluated = task.get_eval_model(ema=True).eval()(images(99))
    return Trained(
        network=network,
        start=start,
        followed=history,
        student=copied(model),
        teacher=copied(task.trainable_module_ema.module),
        evaluated=evaluated,
        compute=computed,
    )


def diffusers(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    """What the training scripts of diffusers do, with accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    from sts_core.integrations.parameter_lists import ParameterTeacher

    def unet() -> Any:
        torch.manual_seed(0)
        small = {"sample_size": 4, "block_out_channels": (8,), "norm_num_groups": 2, "layers_per_block": 1}
        return UNet2DModel(**small, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",))

    def sample(model: Any) -> Tensor:
        pipeline = DDPMPipeline(model, noise)
        pipeline.set_progress_bar_config(disable=True)
        drawn = pipeline(generator=torch.Generator().manual_seed(0), num_inference_steps=2, output_type="np")
        return torch.from_numpy(drawn.images)

    def sampled(state: State) -> Tensor:
        other = unet()
        other.load_state_dict(state)
        return sample(other)

    AcceleratorState._reset_state(reset_partial_state=True)  # one for the process, which other tests may have made
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, mixed_precision="bf16" if mixed else "no"
    )
    plain, noise, history = unet(), DDPMScheduler(num_train_timesteps=10), []
    start = copied(plain)
    ema = ParameterTeacher(plain.parameters(), CONFIG, seed=SEED, model_cls=UNet2DModel, model_config=plain.config)
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9))
    accelerator.register_for_checkpointing(ema)
    if (folder / "state").exists():
        accelerator.load_state(str(folder / "state"))
    for number in range(ema.optimization_step * accumulate, steps * accumulate):
        generator = torch.Generator().manual_seed(number)
        clean, added = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(2))
        times = torch.randint(10, (2,), generator=generator)
        with accelerator.accumulate(model):
            predicted = model(noise.add_noise(clean, added, times), times).sample
            accelerator.backward(nn.functional.mse_loss(predicted.float(), added))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            history.append(copied(plain))
            ema.step(plain.parameters())
    accelerator.save_state(str(folder / "state"))
    unwrapped = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    ema.store(unwrapped.parameters())
    ema.copy_to(unwrapped.parameters())
    evaluated = sample(unwrapped)
    ema.restore(unwrapped.parameters())
    AcceleratorState._reset_state(reset_partial_state=True)
    return Trained(
        network=unet,
        start=start,
        followed=history,
        student=copied(plain),
        teacher=named(plain, ema.shadow_params),
        evaluated=evaluated,
        compute=sampled,
        by_position=True,
    )


def averaged_model(folder: Path, steps: int, accumulate: int = 1, mixed: bool = False) -> Trained:
    """A plain loop with torch's AveragedModel, whose first update copies."""
    from torch.optim.swa_utils import AveragedModel

    from sts_core.integrations.parameter_lists import multi_avg_fn

    model, history = network(), []
    averaged = AveragedModel(model, multi_avg_fn=multi_avg_fn(CONFIG, seed=SEED))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = {"model": model, "ema": averaged, "optimizer": optimizer}
    if (path := folder / "last.pt").exists():
        for name, state in torch.load(path, weights_only=True).items():
            parts[name].load_state_dict(state)
    for number in range(int(averaged.n_averaged) * accumulate, steps * accumulate):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(images(number)), LABELS)
        loss.backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
            history.append(copied(model))
    torch.save({name: part.state_dict() for name, part in parts.items()}, path)
    with torch.no_grad():
        evaluated = averaged.eval()(images(99))
    return Trained(
        network=network,
        start=history[0],
        followed=history[1:],
        student=copied(model),
        teacher=copied(averaged.module),
        evaluated=evaluated,
        compute=computed,
        by_position=True,
    )
