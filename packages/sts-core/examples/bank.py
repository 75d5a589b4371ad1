"""Which average? Eight of them, and their controls, from one run on scikit-learn's handwritten digits.

python packages/sts-core/examples/bank.py [FOLDER]     about half a minute on a CPU; needs scikit-learn and sts-eval

Writes FOLDER/averages.jsonl while it trains, and a table and plots of it, report.md and report.html, at the end.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from sts_core import BankRecord, TeacherBank, averages_and_fragments
from sts_eval import write_averages_report

NUM_STEPS, BATCH, EVERY = 1500, 64, 150


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:800], order[800:]
    return x[train], y[train], x[test], y[test]


def main(folder: Path) -> None:
    torch.manual_seed(0)
    x, y, x_test, y_test = data()
    student = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9)

    def measure(network: nn.Module) -> dict[str, float]:
        logits = network(x_test)
        accuracy = float((logits.argmax(1) == y_test).float().mean())
        return {"test accuracy, %": 100 * accuracy, "test loss": float(F.cross_entropy(logits, y_test))}

    bank = TeacherBank(student=student, configs=averages_and_fragments(0.99), seed=0)
    bank.attach(optimizer)
    record = BankRecord(bank, folder / "averages.jsonl", measure)
    for step in range(1, NUM_STEPS + 1):
        batch = torch.randint(len(x), (BATCH,))
        F.cross_entropy(student(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            record.measure()
    markdown, page = write_averages_report(record.path, folder)
    print(markdown.read_text())
    print(f"with plots: {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "averages"))
