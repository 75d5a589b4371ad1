"""The losses of the methods as functions of network outputs; all are computed in float32 under any autocast."""

import torch
import torch.nn.functional as F
from torch import Tensor


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which matrix products keep the precision of their arguments, whatever autocast surrounds it."""
    return torch.autocast(tensor.device.type, enabled=False)


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """mean over rows of ‖a/‖a‖ − b/‖b‖‖² = 2 − 2·cos(a, b), for [N, D] each."""
    return 2.0 - 2.0 * F.cosine_similarity(a.float(), b.float(), dim=1).mean()


def info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """InfoNCE of normalised queries q [N, D], their positive keys k [N, D] and negatives n [K, D], and its accuracy.

        L = mean over i of −log( exp(qᵢ·kᵢ/T) / (exp(qᵢ·kᵢ/T) + Σⱼ exp(qᵢ·nⱼ/T)) )

    The accuracy is the share of queries that are nearer to their key than to every negative.
    """
    with full_precision(queries):
        positive = (queries * keys).sum(dim=1) / temperature
        negative = queries @ negatives.T / temperature  # [N, K]
    # −log softmax without joining [N, 1] and [N, K], which would copy the largest tensor of the step
    loss = torch.logaddexp(positive, negative.logsumexp(dim=1)) - positive
    return loss.mean(), (positive > negative.detach().amax(dim=1)).float().mean()


def pseudo_label_loss(strong: Tensor, weak: Tensor, *, threshold: float) -> tuple[Tensor, Tensor]:
    """FixMatch's consistency: cross-entropy of the strong view to the weak view's class where that one is confident.

        L = mean over i of 1[max pᵢ ≥ τ]·H(argmax pᵢ, softmax(strongᵢ)),  p = softmax(weak), no gradient through p

    The mean is over all unlabelled images, confident or not. Returns the loss and the share of confident ones.
    """
    confidence, labels = weak.detach().float().softmax(dim=1).max(dim=1)
    mask = (confidence >= threshold).float()
    loss = F.cross_entropy(strong.float(), labels, reduction="none")
    return (loss * mask).mean(), mask.mean()


def softmax_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean Teacher's consistency: mean over images and classes of (softmax(student) − softmax(teacher))²."""
    return F.mse_loss(student.float().softmax(dim=1), teacher.detach().float().softmax(dim=1))


def cross_view_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """DINO's loss: the cross-entropy of every teacher view to every *other* student view, averaged over pairs.

        L = 1/(G·(V − 1)) Σ over g < G, v < V, v ≠ g of mean over n of −Σ_k teacher[g,n,k]·log softmax(student[v,n])_k

    `student` [V, N, K] holds scores already divided by the temperature, `teacher` [G, N, K] probabilities; the first G
    student views are the teacher's.
    """
    num_teacher, num_student = teacher.shape[0], student.shape[0]
    log_probabilities = student.float().log_softmax(dim=2)
    # Σ over v ≠ g is Σ over v minus the term of g, so every pair costs one product instead of V
    others = log_probabilities.sum(dim=0) - log_probabilities[:num_teacher]
    return -(teacher * others).sum(dim=2).mean() / (num_student - 1)
