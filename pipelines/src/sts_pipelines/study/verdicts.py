"""From differences between teachers to verdicts, by a rule that was written down before the first run.

The rule. Teachers are compared seed by seed (the same initial weights, images, order and augmentation). Two hypotheses
are tested for each comparison: that the mean difference is zero (t-test), and that it is as large as the margin or
larger (two one-sided t-tests, TOST). Holm's correction spans all tests of the study at a level of 5 %; at most one of
the two hypotheses of a comparison is true, so its factor never exceeds the number of comparisons. If zero is rejected,
a claim that one teacher is better *holds* or *does not hold*, by the sign; if only a large difference is, the two are
*equivalent within the margin*. A claim that two are comparable holds if a large difference is rejected, and does not
hold if only zero is. Else it *cannot be told*. Before all planned seeds are measured nothing is called a verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from sts_eval import Estimate
from sts_pipelines.study.outcomes import Outcomes, summary
from sts_pipelines.study.plan import Comparison, Study

Verdict = Literal["holds", "does not hold", "equivalent within the margin", "cannot be told", "interim"]
LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A comparison with what was measured."""

    comparison: Comparison
    effect: Estimate
    """Of all seeds so far; positive is on the claim's side."""
    planned: int
    """Seeds that the plan has."""
    different: float
    """Holm's p-value of a difference of zero."""
    within: float
    """Holm's p-value of a difference as large as the margin."""
    verdict: Verdict


def findings(study: Study, outcomes: Outcomes) -> list[Finding]:
    """All comparisons that have been measured, in the study's order."""
    effects = {c: list(outcomes.effect(c).values()) for c in study.comparisons}
    raw = [p for c, values in effects.items() for p in p_values(values, c.margin)]
    adjusted = holm(raw, most_true=len(effects))
    found = []
    for place, (comparison, values) in enumerate(effects.items()):
        effect = summary(dict(enumerate(values)))
        if effect is not None:
            pair = (adjusted[2 * place], adjusted[2 * place + 1])
            planned = study.num_seeds(comparison)
            finding = Finding(
                comparison=comparison,
                effect=effect,
                planned=planned,
                different=pair[0],
                within=pair[1],
                verdict=judged(comparison, effect.mean, *pair) if len(values) >= planned else "interim",
            )
            found.append(finding)
    return found


def judged(comparison: Comparison, mean: float, different: float, within: float) -> Verdict:
    """The verdict that two corrected p-values give."""
    apart, close = different <= LEVEL, within <= LEVEL
    if comparison.expects == "comparable":
        return "holds" if close else "does not hold" if apart else "cannot be told"
    if apart:
        return "holds" if mean > 0 else "does not hold"
    return "equivalent within the margin" if close else "cannot be told"


def p_values(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Of the t-test of a mean of zero (two-sided), and of TOST: max over both sides of P(T > (margin - |mean|)/se)."""
    from scipy import stats

    if len(values) < 2:
        return 1.0, 1.0
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    if error == 0:
        return float(mean == 0), float(abs(mean) >= margin)
    degrees = len(values) - 1
    zero = 2 * stats.t.sf(abs(mean) / error, degrees)
    large = stats.t.sf((margin - abs(mean)) / error, degrees)
    return float(zero), float(large)


def holm(p_values: Sequence[float], *, most_true: int) -> list[float]:
    """Step-down p-values, in the given order, where at most `most_true` of the hypotheses can be true."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [1.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        factor = min(len(p_values) - place, most_true)
        highest = max(highest, min(1.0, factor * p_values[index]))
        adjusted[index] = highest
    return adjusted
