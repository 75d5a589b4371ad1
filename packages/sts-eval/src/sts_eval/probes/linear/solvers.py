"""Linear classifiers solved to their optimum: softmax regression by L-BFGS, and ridge regression."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sts_core import distributed

CHUNK = 16384
"""Rows of features per product: bounds memory whatever the dataset's size."""
GRAM_COLUMNS = 128
"""Columns of X'ᵀX' per product."""
TOLERANCE = 1e-4  # scikit-learn's LogisticRegression
"""L-BFGS stops when no entry of the gradient of the objective is larger."""
MAX_ITERATIONS = 300
"""L-BFGS iterations per regularisation."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Standardisation:
    """Column means and standard deviations of the training features, over all processes."""

    mean: Tensor
    deviation: Tensor


def share(values: Tensor) -> Tensor:
    """This process's contiguous part of the rows."""
    edges = [len(values) * r // distributed.world_size() for r in range(distributed.world_size() + 1)]
    return values[edges[distributed.rank()] : edges[distributed.rank() + 1]]


def pieces(data: Tensor, rows: Tensor | None, device: torch.device) -> Iterator[Tensor]:
    """This process's share of the given rows of `data`, or of all, piece by piece on the device: no more than
    a piece is copied."""
    if rows is None:
        yield from (piece.to(device) for piece in torch.split(share(data), CHUNK))
    else:
        yield from (data[part].to(device) for part in torch.split(share(rows), CHUNK))


def column_mean(values: Tensor, rows: Tensor | None, device: torch.device) -> Tensor:
    """The mean of the rows, in float64, from each process's share."""
    total = torch.zeros(values.shape[1], dtype=torch.float64, device=device)
    for piece in pieces(values, rows, device):
        total += piece.sum(0, dtype=torch.float64)
    return distributed.sum_over_ranks_(total) / len(values if rows is None else rows)


def standardise(values: Tensor, rows: Tensor | None, device: torch.device) -> Standardisation:
    """Moments of the rows; a second pass for the deviations, since E[x²] − E[x]² cancels."""
    mean = column_mean(values, rows, device)
    total = torch.zeros_like(mean)
    for piece in pieces(values, rows, device):
        total += (piece - mean.float()).square_().sum(0, dtype=torch.float64)
    deviation = (distributed.sum_over_ranks_(total) / len(values if rows is None else rows)).sqrt()
    deviation[deviation < 1e-8] = 1.0  # a constant column carries nothing: leave it
    return Standardisation(mean, deviation)


def softmax_regression(
    values: Tensor,
    labels: Tensor,
    num_classes: int,
    regularisations: Sequence[float],
    *,
    rows: Tensor | None = None,
    tolerance: float = TOLERANCE,
    device: torch.device = CPU,
) -> list[tuple[Tensor, Tensor]]:
    """Weights [C, D] and biases [C] in the units of `values`, one pair per λ, in the order given.

    minimise  mean_n CE(W z_n + b, y_n) + λ/2·‖W‖²   with z the standardised features.

    With `rows` only those are fitted. The path starts at the strongest λ and each solution starts the next. Features
    come to `device`, where all is computed, a piece at a time: their standardisation is folded into the weights,
    z·W = x·(W/σ) − (μ/σ)·W.
    """
    problem = _SoftmaxProblem(values, labels, rows, num_classes, standardise(values, rows, device))
    parameters = torch.zeros(num_classes, values.shape[1] + 1, device=device)
    solutions: dict[float, tuple[Tensor, Tensor]] = {}
    for strength in sorted(set(regularisations), reverse=True):
        parameters = problem.solve(parameters, strength, tolerance)
        solutions[strength] = problem.unfolded(parameters)
    return [solutions[strength] for strength in regularisations]


class _SoftmaxProblem:
    """Loss and gradient of softmax regression, chunk by chunk and over all processes."""

    def __init__(
        self, values: Tensor, labels: Tensor, rows: Tensor | None, num_classes: int, scaling: Standardisation
    ) -> None:
        self.values, self.labels, self.rows, self.num_classes = values, labels, rows, num_classes
        self.count = len(values if rows is None else rows)
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
            torch.zeros(1, dtype=torch.float64, device=weight.device),
            torch.zeros_like(weight),
            torch.zeros_like(bias),
        )
        read = (pieces(data, self.rows, weight.device) for data in (self.values, self.labels))
        for piece, labels in zip(*read, strict=True):
            logits = torch.addmm(bias, piece, weight.T)
            logs = logits.log_softmax(1)
            total -= logs.gather(1, labels[:, None]).sum(dtype=torch.float64)
            residual = logs.exp_()
            residual.scatter_add_(1, labels[:, None], residual.new_full((len(labels), 1), -1.0))
            by_weight.addmm_(residual.T, piece)
            by_bias += residual.sum(0)
        for tensor in (total, by_weight, by_bias):
            distributed.sum_over_ranks_(tensor)
        free = parameters[:, :-1]
        gradient = torch.cat([by_weight * self.inverse - by_bias[:, None] * self.shift, by_bias[:, None]], 1)
        gradient /= self.count
        gradient[:, :-1] += strength * free
        return float(total) / self.count + 0.5 * strength * float(free.square().sum()), gradient

    def solve(self, start: Tensor, strength: float, tolerance: float) -> Tensor:
        """L-BFGS with a strong-Wolfe line search; every process walks the same way, since all see the same sums."""
        parameters = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [parameters],
            max_iter=MAX_ITERATIONS,
            history_size=10,
            tolerance_grad=tolerance,
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
    values: Tensor,
    labels: Tensor,
    num_classes: int,
    regularisations: Sequence[float],
    *,
    rows: Tensor | None = None,
    device: torch.device = CPU,
) -> list[tuple[Tensor, Tensor]]:
    """Weights [C, D] and biases [C], one pair per λ, of least squares on targets +1 (own class) and −1 (others).

    minimise  1/N·Σ_n ‖W (x_n − μ) + b − t_n‖² + λ·‖W‖²,   W = T'X'·(X'ᵀX' + N·λ·I)⁻¹

    With `rows` only those are fitted. X'ᵀX' is made once, on `device`, and factored (Cholesky) for each λ, on the CPU.
    In float64: it squares the condition number.
    """
    count, width = len(values if rows is None else rows), values.shape[1]
    mean = column_mean(values, rows, device)
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    sums = torch.zeros(num_classes, width, dtype=torch.float64, device=device)
    for piece, part in zip(pieces(values, rows, device), pieces(labels, rows, device), strict=True):
        centred = piece.double() - mean
        for start in range(0, width, GRAM_COLUMNS):  # the upper triangle only, in blocks: half the work
            block = slice(start, start + GRAM_COLUMNS)
            gram[block, start:].addmm_(centred[:, block].T, centred[:, start:])
        sums.index_add_(0, part, centred)
    gram, sums = (distributed.sum_over_ranks_(total).cpu() for total in (gram, sums))
    gram, mean = gram.triu(), mean.cpu()
    gram += gram.triu(1).T
    # Targets are 2·onehot − 1; against centred features the −1 vanishes.
    cross = 2.0 * sums.T
    counts = torch.bincount(labels if rows is None else labels[rows], minlength=num_classes).double()
    target_mean = 2.0 * counts / count - 1.0
    solutions = []
    for strength in regularisations:
        damped = gram + count * strength * torch.eye(width, dtype=torch.float64)
        weight = torch.cholesky_solve(cross, torch.linalg.cholesky(damped)).T
        solutions.append((weight.float(), (target_mean - weight @ mean).float()))
    return solutions
