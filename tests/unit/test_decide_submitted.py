"""Submitted jobs before any torchrun of theirs lives: what a host may run of them is known from the spec."""

from __future__ import annotations

import pytest

from tests.unit.decide_worlds import Lab, host, spec


def pool(*names: str, gpus: int = 4):
    return [host(n, gpus=gpus, agents=[f"heet-agent:me:{n}"]) for n in names]


@pytest.mark.parametrize(("most", "words"), [(None, "4 x T4"), (2, "2 x T4"), (9, "4 x T4")])
def test_a_host_is_asked_for_no_more_workers_than_one_torchrun_of_the_job_may_run(most: int | None, words: str):
    lab = Lab(pool("h1"), {"a": ("T4", 4)})
    lab.submit(spec("a", submitted=True, most_per_host=most))
    assert f"gets {words} on h1" in lab.decide().reasons["a"]


def test_a_rigid_job_wants_its_own_number_on_each_host_and_not_the_whole_host():
    lab = Lab(pool("h1", "h2"), {"a": ("T4", 4)})
    lab.submit(spec("a", hosts=(2, 2), submitted=True, most_per_host=1))
    reason = lab.decide().reasons["a"]
    assert "1 x T4 on h1" in reason
    assert "1 x T4 on h2" in reason
