# %% [markdown]
# # Which average? Eight of one Lightning run, with their controls
#
# `python packages/sts-core/examples/bank.py`: about ten seconds on a CPU; needs lightning, scikit-learn and sts-eval.
#
# A network learns scikit-learn's handwritten digits. Beside it `BankCallback` keeps three moving averages, and five
# teachers that move in fragments as fast as the middle one; now and then it measures them all. The training itself is
# what it would be without.

# %%
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sts_core import averages_and_fragments
from sts_core.integrations.lightning import BankCallback
from sts_eval import write_averages_report

EPOCHS = 40

seed_everything(0, verbose=False)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(x))
train, test = order[:800], order[800:]


# %%
class Digits(LightningModule):
    """Any module of yours: nothing in it knows of averages."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


def measure(net: nn.Module) -> dict[str, float]:
    logits = net(x[test])
    accuracy = float((logits.argmax(1) == y[test]).float().mean())
    return {"test accuracy, %": 100 * accuracy, "test loss": float(F.cross_entropy(logits, y[test]))}


# %%
eight = averages_and_fragments(0.99)  # half of what the middle average knows is of the last 69 steps
callback = BankCallback(measure, eight, part="net", path="averages/averages.jsonl", every_n_epochs=EPOCHS // 10)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[callback], **quiet)
trainer.fit(Digits(), DataLoader(TensorDataset(x[train], y[train]), batch_size=64, shuffle=True, drop_last=True))

# %% [markdown]
# A table of all of them after the last measurement, and a page with plots.

# %%
markdown, page = write_averages_report("averages/averages.jsonl", "averages")
print(markdown.read_text())
print(f"with plots: {page.resolve().as_uri()}")
