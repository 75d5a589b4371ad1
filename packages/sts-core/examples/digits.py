# %% [markdown]
# # A whole student-teacher loop: Mean Teacher with forty labels and STS
#
# `python packages/sts-core/examples/digits.py`: about ten seconds on a CPU, on scikit-learn's handwritten digits.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing

NUM_LABELS, NUM_STEPS, BATCH = 40, 400, 128

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(x))
train, test = order[:1400], order[1400:]

# %% [markdown]
# The three lines: a teacher, what moves it, and below, after the optimizer's step, the moving.

# %%
student = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
teacher = make_teacher(student)
config = spatial_temporal_smoothing(momentum=0.9, preserve_probability=0.7)
smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)


def accuracy(network: nn.Module) -> float:
    with torch.no_grad():
        return float((network(x[test]).argmax(1) == y[test]).float().mean())


# %%
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
labelled = train[:NUM_LABELS]
for step in range(1, NUM_STEPS + 1):
    batch = x[train[torch.randint(len(train), (BATCH,))]]
    target = teacher(batch + 0.1 * torch.randn_like(batch)).softmax(1)
    consistency = (student(batch + 0.1 * torch.randn_like(batch)).softmax(1) - target).square().sum(1).mean()
    loss = F.cross_entropy(student(x[labelled]), y[labelled]) + 3 * consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoother.update()
    if step % 50 == 0:
        shown = f"student {100 * accuracy(student):.1f} %, teacher {100 * accuracy(teacher):.1f} %"
        print(f"step {step} of {NUM_STEPS}, loss {loss.item():.3f}, test accuracy: {shown}")
