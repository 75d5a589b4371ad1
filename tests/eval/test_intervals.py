import pytest
import scipy.stats

from sts_core.errors import ConfigError
from sts_eval.intervals import estimate, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 30, 101])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_t_quantile_equals_scipys(degrees, confidence):
    assert t_quantile(confidence, degrees) == pytest.approx(scipy.stats.t.ppf(0.5 + confidence / 2, degrees), rel=1e-9)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    import numpy as np

    draws = np.random.Generator(np.random.Philox(key=1)).normal(3.0, 2.0, (2000, 4))
    covered = [e.low <= 3.0 <= e.high for e in (estimate(row.tolist(), 0.9) for row in draws)]
    assert 0.88 < sum(covered) / len(covered) < 0.92


def test_one_seed_has_no_interval_and_says_so():
    single = estimate([72.0])
    assert (single.low, single.high, str(single)) == (None, None, "72.00 (one seed)")
    with pytest.raises(ConfigError):
        estimate([])
