"""Is the representation collapsing? Three numbers that cost far less than one per cent of a step and no host sync."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sts_methods.methods.losses import cosine_distance, full_precision


def feature_std(embeddings: Tensor) -> Tensor:
    """Mean over dimensions of the standard deviation over the batch of L2-normalised embeddings [N, D].

    1/√D when they are spread evenly over the sphere, 0 when all are equal (collapse).
    """
    return F.normalize(embeddings.float(), dim=1).std(dim=0, correction=0).mean()


def effective_rank(embeddings: Tensor) -> Tensor:
    """(Σλ)²/Σλ² of the eigenvalues λ of the covariance C of L2-normalised embeddings [N, D].

    It counts the directions that the embeddings use: the participation ratio, exp of the spectrum's Rényi entropy of
    order 2, between 1 and min(N − 1, D), and near 0 when all embeddings are equal. Being tr(C)²/‖C‖² it needs one small
    matrix product and no decomposition.
    """
    x = F.normalize(embeddings.float(), dim=1)
    x = x - x.mean(dim=0)
    with full_precision(x):
        gram = x @ x.T if x.shape[0] < x.shape[1] else x.T @ x  # the same nonzero eigenvalues, N·λ
    scale = float(x.shape[0])
    # The embeddings have norm 1, so 1e-12 is the squared variance that float32 rounding alone can make.
    return (gram.trace() / scale) ** 2 / ((gram / scale).square().sum() + 1e-12)


@torch.no_grad()
def health_metrics(student: Tensor, teacher: Tensor | None = None) -> dict[str, Tensor]:
    """Feature std and effective rank of the student's embeddings and their distance 2 − 2·cos from the teacher's.

    They describe this rank's batch.
    """
    metrics = {"feature_std": feature_std(student), "effective_rank": effective_rank(student)}
    if teacher is not None:
        metrics["student_teacher_distance"] = cosine_distance(student, teacher)
    return metrics


@torch.no_grad()
def relative_weight_distance(student: nn.Module, teacher: nn.Module) -> Tensor:
    """‖θˢ − θᵀ‖/‖θˢ‖ over the teacher's parameters, for steps in which the teacher does not run."""
    theirs = dict(teacher.named_parameters())
    mine = dict(student.named_parameters())
    pairs = [(mine[name].detach(), theirs[name]) for name in theirs]
    gaps = torch._foreach_norm(torch._foreach_sub([s for s, _ in pairs], [t for _, t in pairs]))
    norms = torch._foreach_norm([s for s, _ in pairs])
    distance: Tensor = torch.stack(gaps).norm() / torch.stack(norms).norm()
    return distance
