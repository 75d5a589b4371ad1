"""A whole student-teacher loop on scikit-learn's handwritten digits: Mean Teacher with forty labels and STS.

python packages/sts-core/examples/digits.py            about ten seconds on a CPU; needs scikit-learn
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing

NUM_LABELS, NUM_STEPS, BATCH = 40, 600, 128


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return x[train], y[train], x[test], y[test]


def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((network(x).argmax(1) == y).float().mean())


def main() -> None:
    torch.manual_seed(0)
    x, y, x_test, y_test = data()
    student = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    teacher = make_teacher(student)
    config = spatial_temporal_smoothing(momentum=0.9, preserve_probability=0.7)
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(NUM_STEPS):
        batch = x[torch.randint(len(x), (BATCH,))]
        target = teacher(batch + 0.1 * torch.randn_like(batch)).softmax(1)
        consistency = (student(batch + 0.1 * torch.randn_like(batch)).softmax(1) - target).square().sum(1).mean()
        loss = F.cross_entropy(student(x[:NUM_LABELS]), y[:NUM_LABELS]) + 3 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smoother.update()
        if (step + 1) % 100 == 0:
            networks = {"student": student, "teacher": teacher}
            shown = ", ".join(f"{name} {100 * accuracy(net, x_test, y_test):.1f} %" for name, net in networks.items())
            print(f"step {step + 1} of {NUM_STEPS}, loss {loss.item():.3f}, test accuracy: {shown}")


if __name__ == "__main__":
    main()
