"""From a trace to the jobs of a run; clusters; generated tables and traces."""

from __future__ import annotations

import pytest

from heet_elastic.errors import UsageError
from heet_elastic.simulator.cluster import HostGroup, build_hosts, format_cluster, match_types, parse_cluster
from heet_elastic.simulator.generate import generated_truth, synthetic_trace
from heet_elastic.simulator.jobs import JobOptions, dump_jobs, offered_load, resolve_jobs
from heet_elastic.simulator.traces import Trace, TraceJob, read_trace
from heet_elastic.simulator.truth import Row, Truth

CELLS = {(1, 1): 10.0, (2, 1): 18.0, (4, 1): 30.0}
TRUTH = Truth(
    [
        Row("bert-b32", "bert", "samples/s", {"T4": CELLS, "V100": {k: 3 * v for k, v in CELLS.items()}}),
        Row("bert-b64", "bert", "samples/s", {"T4": CELLS}),
        Row("vgg (global batch 64)", "vgg", "iterations/s at fixed global batch", {"T4": CELLS}),
        Row("only-a100", "other", "samples/s", {"A100": CELLS}),
    ]
)
GROUPS = (HostGroup("T4", 2, 4), HostGroup("V100", 1, 4))


def entry(i=0, **fields):
    return TraceJob(line=i + 2, job_id=f"j{i}", submit_s=100.0 + 60.0 * i, **fields)


AS_IT_IS = JobOptions()


def resolve(*entries, options=AS_IT_IS, skip_bad=False):
    return resolve_jobs(Trace("t.csv", "own", tuple(entries)), TRUTH, GROUPS, options, skip_bad)


def test_work_in_the_tables_own_terms_is_taken_as_it_is():
    (job,) = resolve(entry(row="bert-b32", total_work=123.0, requested=2)).jobs
    assert (job.row, job.total_work, job.requested, job.submit_s) == ("bert-b32", 123.0, 2, 0.0)
    assert (job.min_workers, job.max_workers, job.rigid) == (1, 4, False)


def test_work_from_a_duration_is_speed_as_requested_on_the_median_type():
    assert TRUTH.median_type() == "T4"
    (job,) = resolve(entry(row="bert-b32", duration_s=100.0, requested=2)).jobs
    assert job.total_work == 1800.0


def test_a_model_and_its_batch_find_the_nearest_row_whatever_the_spelling():
    one, two, three = resolve(
        entry(0, model="BERT", batch=60.0, duration_s=1.0),
        entry(1, model="Bert", batch=20.0, duration_s=1.0),
        entry(2, model="vgg", batch=64.0, total_work=7.0, work_unit="iterations"),
    ).jobs
    assert (one.row, two.row) == ("bert-b64", "bert-b32")
    assert three.total_work == 7.0


def test_work_in_another_unit_than_the_table_is_never_used():
    (job,) = resolve(entry(model="bert", total_work=5.0, work_unit="steps", duration_s=10.0, requested=1)).jobs
    assert job.total_work == 100.0
    with pytest.raises(UsageError, match="neither a duration nor work in the unit"):
        resolve(entry(model="bert", total_work=5.0, work_unit="steps"))


def test_jobs_without_a_model_get_one_by_seed_that_runs_on_the_cluster():
    entries = [entry(i, duration_s=60.0, requested=1) for i in range(40)]
    first, again, other = (resolve(*entries, options=JobOptions(seed=s)).jobs for s in (1, 1, 2))
    assert first == again != other
    assert {j.row for j in first} == {"bert-b32", "bert-b64", "vgg (global batch 64)"}


def test_a_job_that_runs_nowhere_on_the_cluster_is_an_error_or_left_out_and_counted():
    entries = (entry(0, row="only-a100", total_work=1.0), entry(1, row="bert-b32", total_work=1.0))
    with pytest.raises(UsageError, match="line 2: 'only-a100' was measured on no host type of this cluster"):
        resolve(*entries)
    found = resolve(*entries, skip_bad=True)
    assert len(found.jobs) == 1
    assert "1 jobs left out" in found.notes[-1]
    with pytest.raises(UsageError, match="none of its jobs"):
        resolve(entries[0], skip_bad=True)


def test_load_rescales_arrivals_and_nothing_else():
    entries = [entry(i, row="bert-b32", duration_s=600.0, requested=4) for i in range(10)]
    found = resolve(*entries, options=JobOptions(load=2.0))
    assert offered_load(found.jobs, TRUTH, GROUPS) == pytest.approx(2.0)
    assert found.jobs[-1].submit_s == pytest.approx(10 * 4 * 600 / 12 / 2)
    assert {j.total_work for j in found.jobs} == {j.total_work for j in resolve(*entries).jobs}


def test_a_request_beyond_what_was_measured_is_cut_to_the_most_that_was_and_said():
    found = resolve(entry(row="bert-b32", duration_s=10.0, requested=64))
    assert found.jobs[0].requested == 4
    assert "1 jobs request more GPUs" in " ".join(found.notes)


def test_rigid_jobs_take_what_they_request():
    entries = [entry(i, row="bert-b32", duration_s=10.0, requested=2) for i in range(50)]
    assert all(j.min_workers == j.max_workers == 2 for j in resolve(*entries, options=JobOptions(rigid=1.0)).jobs)
    shares = [j.rigid for j in resolve(*entries, options=JobOptions(rigid=0.3)).jobs]
    assert 5 < sum(shares) < 25


def test_a_trace_that_is_too_short_is_run_again_after_its_end():
    entries = [entry(i, row="bert-b32", duration_s=10.0) for i in range(3)]
    jobs = resolve(*entries, options=JobOptions(jobs=7)).jobs
    assert [j.submit_s for j in jobs] == [0.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0]
    assert len({j.job for j in jobs}) == 7
    assert len(resolve(*entries, options=JobOptions(jobs=2)).jobs) == 2


def test_dumped_jobs_are_read_back_exactly(tmp_path):
    entries = [entry(i, duration_s=60.0 + i / 7, requested=1 + i % 4) for i in range(12)]
    jobs = resolve(*entries, options=JobOptions(rigid=0.4, load=1.3)).jobs
    path = tmp_path / "dump.csv"
    dump_jobs(path, jobs)
    again = resolve_jobs(read_trace(path), TRUTH, GROUPS, JobOptions(seed=9), False).jobs
    assert again == jobs


@pytest.mark.parametrize("text", ["", "T4", "T4:2", "T4:0x4", "T4:2x0", "T4:ax4", ":2x4", "T4:2x4,,"])
def test_a_malformed_cluster_gets_a_sentence(text):
    with pytest.raises(UsageError, match="--cluster"):
        parse_cluster(text)


def test_a_cluster_text_is_read_and_written():
    groups = parse_cluster("t4:6x4, RTX2080Ti:3x8")
    assert format_cluster(match_types(groups, ("T4", "RTX2080Ti"))) == "T4:6x4,RTX2080Ti:3x8"
    with pytest.raises(UsageError, match="no throughput was measured on 't4'"):
        match_types(groups, ("V100",))


def test_hosts_are_named_apart_even_where_a_type_comes_twice():
    hosts = build_hosts(parse_cluster("T4:1x4,T4:2x8"))
    assert list(hosts) == ["t4-00", "t4-01", "t4-02"]
    assert [len(h.gpus) for h in hosts.values()] == [4, 8, 8]
    assert len({g.uuid for h in hosts.values() for g in h.gpus}) == 20


def test_generated_speeds_grow_with_workers_and_fall_over_hosts_and_need_a_known_gpu():
    truth = generated_truth(parse_cluster("T4:4x4,A100:2x8"))
    for row in truth.rows:
        assert truth.speed(row, "A100", 1, 1) > truth.speed(row, "T4", 1, 1) > 0
        assert truth.speed(row, "T4", 4, 1) >= truth.speed(row, "T4", 4, 2)
        assert truth.speed(row, "T4", 16, 4) <= 16 * truth.speed(row, "T4", 1, 1) * (1 + 1e-9)
    with pytest.raises(UsageError, match="no datasheet facts of 'Abacus'"):
        generated_truth(parse_cluster("Abacus:1x1"))


def test_a_synthetic_trace_depends_on_its_seed_alone():
    assert synthetic_trace(50, 3, 8) == synthetic_trace(50, 3, 8) != synthetic_trace(50, 4, 8)
    assert {j.requested for j in synthetic_trace(500, 0, 4).jobs} == {1, 2, 4}
