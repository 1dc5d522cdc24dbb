"""What the solver's learning rate is multiplied by."""

from __future__ import annotations

import pytest

from speedo.errors import ConfigError
from speedo.run.config.run_config import make_config


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"mode": "sync", "workers": 4}, 1.0),
        ({"mode": "async", "workers": 4}, 1.0),
        ({"mode": "easgd", "workers": 4}, 4.0),
        ({"mode": "easgd", "workers": 3}, 3.0),
        ({"mode": "easgd", "workers": 8}, 4.0),
        ({"mode": "easgd", "workers": 1}, 1.0),
        ({"mode": "partial", "workers": 2, "moving_rate": 0.1}, 2.0),  # the elastic rule too
        ({"mode": "easgd", "workers": 4, "lr": 0.01}, 1.0),  # a rate that is given is meant
        ({"mode": "easgd", "workers": 4, "lr": 0.01, "lr_scale": "sqrt"}, 2.0),
        ({"mode": "easgd", "workers": 4, "lr_scale": "none"}, 1.0),
        ({"mode": "async", "workers": 8, "lr_scale": "linear"}, 8.0),
        ({"mode": "async", "workers": 8, "lr_scale": "linear:6"}, 6.0),
        ({"mode": "async", "workers": 9, "lr_scale": "sqrt:2"}, 2.0),
        ({"mode": "sync", "workers": 4, "lr_scale": 0.5}, 0.5),
        ({"mode": "sync", "workers": 4, "lr_scale": "1.5"}, 1.5),
    ],
)
def test_a_rate_is_scaled_by_the_option_or_with_the_elastic_rule(
    options: dict[str, object], factor: float
) -> None:
    assert make_config(options).scale_of_lr.factor == factor


@pytest.mark.parametrize(
    "value", ["0", "-1", "root", "nan", "inf", "10001", "", "linear:", "linear:0", "2:4", "none:x"]
)
def test_a_scale_that_is_none_is_refused_with_what_to_use(value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_config({"lr_scale": value})
    assert (
        "use none, sqrt, linear, linear:N (at most N times), or a number above 0, up to 10000"
        in str(raised.value)
    )
    assert "lr_scale is" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "sync"}, ""),
        (
            {"mode": "easgd", "workers": 4},
            "4 times the solver's: --lr scale=linear:4 with 4 workers",
        ),
        (
            {"workers": 3, "lr_scale": "linear"},
            "3 times the solver's: --lr scale=linear with 3 workers",
        ),
        ({"lr_scale": "1.5"}, "1.5 times the solver's: --lr scale=1.5"),
    ],
)
def test_people_are_told_how_the_rate_differs(options: dict[str, object], told: str) -> None:
    assert make_config(options).scale_of_lr.told() == told
