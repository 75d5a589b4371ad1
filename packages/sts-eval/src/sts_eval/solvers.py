"""Linear classifiers solved to their optimum: softmax regression by L-BFGS, and ridge regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sts_eval import parallel

CHUNK = 16384
"""Rows of features per product: bounds memory whatever the dataset's size."""
TOLERANCE = 1e-5
"""L-BFGS stops when no entry of the gradient of the mean loss is larger."""
MAX_ITERATIONS = 300
"""L-BFGS iterations per regularisation."""


@dataclass(frozen=True)
class Standardisation:
    """Column means and standard deviations of the training features, over all processes."""

    mean: Tensor
    deviation: Tensor


def share(values: Tensor) -> Tensor:
    """This process's contiguous part of the rows."""
    edges = [len(values) * r // parallel.world_size() for r in range(parallel.world_size() + 1)]
    return values[edges[parallel.rank()] : edges[parallel.rank() + 1]]


def standardise(values: Tensor) -> Standardisation:
    """Moments of all rows, in float64, from each process's share."""
    total = torch.zeros(2, values.shape[1], dtype=torch.float64)
    for rows in share(values).split(CHUNK):
        total[0] += rows.sum(0, dtype=torch.float64)
    mean = parallel.sum_across_ranks_(total[0]) / len(values)
    for rows in share(values).split(CHUNK):
        total[1] += (rows.double() - mean).square().sum(0)
    deviation = (parallel.sum_across_ranks_(total[1]) / len(values)).sqrt()
    deviation[deviation < 1e-8] = 1.0  # a constant column carries nothing: leave it
    return Standardisation(mean, deviation)


def softmax_regression(
    values: Tensor, labels: Tensor, num_classes: int, regularisations: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """Weights [C, D] and biases [C] in the units of `values`, one pair per λ, in the order given.

    minimise  mean_n CE(W z_n + b, y_n) + λ/2·‖W‖²   with z the standardised features.

    The path starts at the strongest λ and each solution starts the next. Features are never copied: their
    standardisation is folded into the weights, z·W = x·(W/σ) − (μ/σ)·W.
    """
    scaling = standardise(values)
    problem = _SoftmaxProblem(share(values), share(labels), num_classes, len(values), scaling)
    parameters = torch.zeros(num_classes, values.shape[1] + 1)
    solutions: dict[float, tuple[Tensor, Tensor]] = {}
    for strength in sorted(set(regularisations), reverse=True):
        parameters = problem.solve(parameters, strength)
        solutions[strength] = problem.unfolded(parameters)
    return [solutions[strength] for strength in regularisations]


class _SoftmaxProblem:
    """Loss and gradient of softmax regression, chunk by chunk and over all processes."""

    def __init__(self, values: Tensor, labels: Tensor, num_classes: int, count: int, scaling: Standardisation) -> None:
        self.values, self.labels, self.count, self.num_classes = values, labels, count, num_classes
        self.shift = (scaling.mean / scaling.deviation).float()
        self.inverse = scaling.deviation.reciprocal().float()

    def unfolded(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """[C, D + 1] for standardised features as (weights, bias) for raw ones."""
        weight, bias = parameters[:, :-1], parameters[:, -1]
        return weight * self.inverse, bias - weight @ self.shift

    def loss_and_gradient(self, parameters: Tensor, strength: float) -> tuple[float, Tensor]:
        """The objective and its gradient with respect to [C, D + 1]; p − onehot is that of the cross entropy."""
        weight, bias = self.unfolded(parameters)
        total, by_weight, by_bias = (
            torch.zeros(1, dtype=torch.float64),
            torch.zeros_like(weight),
            torch.zeros_like(bias),
        )
        for rows, labels in zip(self.values.split(CHUNK), self.labels.split(CHUNK), strict=True):
            logits = torch.addmm(bias, rows, weight.T)
            logs = logits.log_softmax(1)
            total -= logs.gather(1, labels[:, None]).sum(dtype=torch.float64)
            residual = logs.exp_()
            residual.scatter_add_(1, labels[:, None], residual.new_full((len(labels), 1), -1.0))
            by_weight.addmm_(residual.T, rows)
            by_bias += residual.sum(0)
        for tensor in (total, by_weight, by_bias):
            parallel.sum_across_ranks_(tensor)
        free = parameters[:, :-1]
        gradient = torch.cat([by_weight * self.inverse - by_bias[:, None] * self.shift, by_bias[:, None]], 1)
        gradient /= self.count
        gradient[:, :-1] += strength * free
        return float(total) / self.count + 0.5 * strength * float(free.square().sum()), gradient

    def solve(self, start: Tensor, strength: float) -> Tensor:
        """L-BFGS with a strong-Wolfe line search; every process walks the same way, since all see the same sums."""
        parameters = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [parameters],
            max_iter=MAX_ITERATIONS,
            history_size=10,
            tolerance_grad=TOLERANCE,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            with torch.no_grad():
                loss, parameters.grad = self.loss_and_gradient(parameters, strength)
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return parameters.detach()


def ridge_regression(
    values: Tensor, labels: Tensor, num_classes: int, regularisations: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """Weights [C, D] and biases [C], one pair per λ, of least squares on targets +1 (own class) and −1 (others).

    minimise  1/N·Σ_n ‖W (x_n − μ) + b − t_n‖² + λ·‖W‖²,   W = T'X'·(X'ᵀX' + N·λ·I)⁻¹

    One eigendecomposition of X'ᵀX' serves all λ. In float64: the Gram matrix squares the condition number.
    """
    count, width = values.shape
    mean = standardise(values).mean
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, num_classes, dtype=torch.float64)
    for rows, part in zip(share(values).split(CHUNK), share(labels).split(CHUNK), strict=True):
        centred = rows.double() - mean
        gram.addmm_(centred.T, centred)
        cross.index_add_(1, part, 2.0 * centred.T)  # the −1 of all other classes vanishes against centred features
    parallel.sum_across_ranks_(gram)
    parallel.sum_across_ranks_(cross)
    target_mean = 2.0 * torch.bincount(labels, minlength=num_classes).double() / count - 1.0
    eigenvalues, vectors = torch.linalg.eigh(gram)
    rotated = vectors.T @ cross
    solutions = []
    for strength in regularisations:
        weight = (vectors @ (rotated / (eigenvalues.clamp_min(0.0) + count * strength)[:, None])).T
        solutions.append((weight.float(), (target_mean - weight @ mean).float()))
    return solutions
