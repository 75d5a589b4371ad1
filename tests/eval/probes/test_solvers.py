import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.preprocessing import StandardScaler

from sts_eval import Features, fast_protocol, linear_probe
from sts_eval.probes.linear.solvers import ridge_regression, softmax_regression


def test_ridge_regression_equals_scikit_learns(digit_features):
    train, test = digit_features
    count = len(train)
    strengths = (1e-3, 1e-1, 10.0)
    for (weight, bias), strength in zip(
        ridge_regression(train.values, train.labels, 10, strengths), strengths, strict=True
    ):
        reference = RidgeClassifier(alpha=strength * count).fit(train.values.double().numpy(), train.labels.numpy())
        assert np.allclose(weight.numpy(), reference.coef_, atol=1e-5)
        ours = (test.values @ weight.T + bias).numpy()
        assert np.allclose(ours, reference.decision_function(test.values.double().numpy()), atol=1e-4)


def test_softmax_regression_equals_scikit_learns(digit_features):
    train, test = digit_features
    scaler = StandardScaler().fit(train.values.numpy())
    strengths = (1e-2, 1e-1)
    solutions = softmax_regression(train.values, train.labels, 10, strengths, tolerance=1e-6)
    for (weight, bias), strength in zip(solutions, strengths, strict=True):
        reference = LogisticRegression(C=1 / (strength * len(train)), tol=1e-8, max_iter=2000)
        reference.fit(scaler.transform(train.values.numpy()).astype(np.float64), train.labels.numpy())
        logits = test.values @ weight.T + bias
        expected = reference.predict_log_proba(scaler.transform(test.values.numpy()).astype(np.float64))
        assert np.abs(logits.log_softmax(1).numpy() - expected).max() < 0.02


def test_the_gradient_vanishes_at_the_solution(digit_features):
    train, _ = digit_features
    ((weight, bias),) = softmax_regression(train.values, train.labels, 10, (1e-2,), tolerance=1e-6)
    bias = bias.clone().requires_grad_()
    torch.nn.functional.cross_entropy(train.values @ weight.T + bias, train.labels).backward()
    assert bias.grad.abs().max() < 1e-4  # the bias is not penalised, so its gradient is the loss's alone


def test_solutions_come_in_the_order_of_the_grid(digit_features):
    train, test = digit_features
    up = linear_probe(train, test, fast_protocol(regularisations=(1e-3, 1.0)))
    down = linear_probe(train, test, fast_protocol(regularisations=(1.0, 1e-3)))
    assert [head.last for head in up.heads] == [head.last for head in reversed(down.heads)]


@pytest.mark.parametrize("solver", ["lbfgs", "ridge"])
def test_a_constant_feature_does_no_harm(solver, digit_features):
    train, test = digit_features
    assert (train.values.std(0) == 0).any()  # the corner pixels of digits are always empty
    result = linear_probe(train, test, fast_protocol(solver=solver))
    assert result.last[1] > 90.0
    assert not any(head.diverged for head in result.heads)


@pytest.mark.parametrize("solve", [softmax_regression, ridge_regression])
def test_some_rows_give_what_a_copy_of_them_gives(solve, digit_features):
    train, _ = digit_features
    rows = torch.arange(len(train))[::3]
    some = solve(train.values, train.labels, 10, (1e-2, 1.0), rows=rows)
    copied = solve(train.values[rows], train.labels[rows], 10, (1e-2, 1.0))
    assert all(torch.equal(a, b) for one, two in zip(some, copied, strict=True) for a, b in zip(one, two, strict=True))


def test_the_choice_of_a_penalty_copies_the_held_out_tenth_and_no_more():
    class Counted(torch.Tensor):
        """Features that know how many rows were taken out of them at once."""

        most = 0

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            result = super().__torch_function__(function, types, arguments, options or {})
            if function is torch.Tensor.__getitem__ and isinstance(arguments[1], torch.Tensor):
                cls.most = max(cls.most, len(result))
            return result

    labels = torch.arange(40_000) % 2
    values = (torch.randn(40_000, 2, generator=torch.Generator().manual_seed(0)) + labels[:, None]).as_subclass(Counted)
    test = Features(values[:100].as_subclass(torch.Tensor), labels[:100])
    linear_probe(Features(values, labels), test, fast_protocol(regularisations=(1e-2, 1.0)))
    assert 0 < Counted.most <= 16384
