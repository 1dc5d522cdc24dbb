"""`--ray resources=...`: what is written becomes Ray's names, and every mistake is said with its remedy."""

from __future__ import annotations

import pytest

from speedo.errors import ConfigError
from speedo.run.config.resources import parse_resources
from speedo.run.config.run_config import make_config


def test_resources_become_a_bundle_and_options_of_an_actor() -> None:
    needs = parse_resources("cpu=2, gpu=0.5,Memory=1e9,tpu-pod=1")
    assert needs.bundle == {"CPU": 2.0, "GPU": 0.5, "memory": 1e9, "tpu-pod": 1.0}
    assert needs.options == {
        "num_cpus": 2.0,
        "num_gpus": 0.5,
        "memory": 1e9,
        "resources": {"tpu-pod": 1.0},
    }
    assert str(needs) == "cpu=2,gpu=0.5,memory=1000000000,tpu-pod=1"


def test_a_worker_needs_one_core_unless_another_amount_is_given() -> None:
    assert parse_resources("").bundle == {"CPU": 1.0}
    assert parse_resources("cpu=0,gpu=1").bundle == {"GPU": 1.0}
    assert parse_resources("cpu=1,gpu=0").options == {"num_cpus": 1.0, "num_gpus": 0.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cpu", "resources has 'cpu'; write NAME=AMOUNT, as in cpu=1"),
        ("=1", "resources has '=1'; write NAME=AMOUNT, as in cpu=1"),
        ("cpu=much", "resources has 'much' of cpu; use a number from 0 on"),
        ("cpu=-1", "resources has '-1' of cpu; use a number from 0 on"),
        ("gpu=nan", "resources has 'nan' of gpu; use a number from 0 on"),
        ("gpu=1.5", "resources has 1.5 of gpu; above 1 use a whole number"),
        ("gpu=0.00001", "resources has 0.00001 of gpu; use 0, or 0.0001 or more"),
        ("cpu=1,CPU=2", "resources names CPU twice; give one amount"),
        ("node:10.0.0.1=1", "resources names node:10.0.0.1, which Ray gives out by itself; leave it out"),
        ("cpu=0", "resources asks for nothing; give at least one, for example cpu=1"),
    ],
)  # fmt: skip
def test_a_mistake_in_resources_is_said_with_its_remedy(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as found:
        make_config({"resources": text})
    assert found.value.problems == (problem,)


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:x", "10.0.0.1:70000", ":1", ""])
def test_an_address_of_a_cluster_has_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="use HOST:PORT, or auto"):
        make_config({"ray": address})


def test_the_address_of_a_client_is_refused_with_the_other_way() -> None:
    with pytest.raises(ConfigError, match="from others use `ray job submit`"):
        make_config({"ray": "ray://10.0.0.1:10001"})


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "[fd00::1]:6379", "head:6379"])
def test_addresses_that_ray_takes_pass(address: str) -> None:
    assert make_config({"ray": address}).ray == address
