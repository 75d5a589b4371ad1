"""How strongly images are augmented, where somebody wants other numbers than a method's authors."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from sts_core import ConfigError
from sts_core.fields import added
from sts_methods.views.specs import CropView, View, Views


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """Strengths and probabilities of augmentations; None leaves the number that each of the views has."""

    flip_probability: float | None = added(None, metadata={"of": "flip"})
    """Probability of a horizontal flip."""
    jitter_probability: float | None = added(None, metadata={"of": "jitter"})
    """Probability of the colour jitter."""
    jitter_brightness: float | None = added(None, metadata={"of": "brightness"})
    """Brightness changes by a factor of 1 ± this."""
    jitter_contrast: float | None = added(None, metadata={"of": "contrast"})
    """Contrast changes by a factor of 1 ± this."""
    jitter_saturation: float | None = added(None, metadata={"of": "saturation"})
    """Saturation changes by a factor of 1 ± this."""
    jitter_hue: float | None = added(None, metadata={"of": "hue", "most": 0.5})
    """Hue shifts by ± this share of the colour circle, at most .5."""
    grayscale_probability: float | None = added(None, metadata={"of": "grayscale"})
    """Probability of dropping the colour."""
    blur_probability: tuple[float, ...] | None = added(None, metadata={"of": "blur"})
    """Probability of a Gaussian blur in the first view, the second and so on; the last serves all further ones."""
    blur_sigma_max: float | None = added(None, metadata={"of": "blur_sigma", "most": 100.0})
    """Largest standard deviation of the blur, in pixels."""
    solarise_probability: tuple[float, ...] | None = added(None, metadata={"of": "solarise"})
    """Probability of inverting bright pixels, for each view as that of the blur."""
    shift_share: float | None = added(None, metadata={"of": "padding", "most": 0.5})
    """Largest shift of weak and strong views as a share of the side, at most .5."""
    num_strong_operations: int | None = added(None, metadata={"of": "num_ops", "most": 16})
    """Operations that RandAugment draws for a strong view."""
    strong_operation_probability: float | None = added(None, metadata={"of": "op_probability"})
    """Probability that each of them is applied."""
    cutout_share: float | None = added(None, metadata={"of": "cutout"})
    """Side of a strong view's gray square as a share of the view's."""

    def __post_init__(self) -> None:
        for name, _, value in self._asked():
            most = type(self).__dataclass_fields__[name].metadata.get("most", 1.0)
            values = value if isinstance(value, tuple) else (value,)
            if not values or not all(0 <= number <= most for number in values):
                raise ConfigError(f"{name} must be in [0, {most:g}], got {value!r}", fields=(name,))

    def applied(self, views: Views, name: str) -> Views:
        """These views, which are called `name`, with the numbers that were asked for."""
        for asked, attribute, value in self._asked():
            if not any(hasattr(view, attribute) for view in views):
                kind = "crops" if attribute in CropView.__dataclass_fields__ else "weak and strong views"
                raise ConfigError(
                    f"{asked} is for {kind}, {name} has none of them, got {value!r}: leave it out", fields=(asked,)
                )
            views = tuple(_with(view, number, attribute, value) for number, view in enumerate(views))
        return views

    def _asked(self) -> Iterator[tuple[str, str, Any]]:
        """Field, attribute of views and value of all that differs."""
        for setting in fields(self):
            if (value := getattr(self, setting.name)) is not None:
                yield setting.name, setting.metadata["of"], value


def _with(view: View, number: int, attribute: str, value: Any) -> View:
    if not hasattr(view, attribute):
        return view
    if isinstance(value, tuple):
        value = value[min(number, len(value) - 1)]
    if attribute == "blur_sigma":
        low, _ = view.blur_sigma  # type: ignore[union-attr]
        value = (min(low, value), value)
    return replace(view, **{attribute: value})


AS_THE_VIEWS = AugmentationConfig()
"""The numbers of each method's authors."""
