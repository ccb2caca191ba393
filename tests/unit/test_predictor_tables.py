"""Reading measured tables: cells, placements, units, and what is said about rows that do not count."""

from __future__ import annotations

import numpy as np
import pytest

from heet_elastic.errors import UsageError
from heet_elastic.model import Configuration
from heet_elastic.predictor.tables import covered, load_table
from tests.unit.predictor_worlds import real_table

HEAD = "job,model,gpu_type,workers,nodes,placement,throughput,unit\n"


def load(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return load_table(path, **options)


def value(table, job, *configuration):
    return table.throughput_JK[table.jobs.index(job), table.configurations.index(Configuration(*configuration))]


def test_several_rows_of_one_cell_are_their_median_and_all_are_kept_as_placements(tmp_path):
    table = load(tmp_path, HEAD + "".join(f"a,m,T4,4,2,{p},{t},samples/s\n" for p, t in ((13, 10), (22, 30), (31, 20))))
    assert value(table, "a", "T4", 4, 2) == 20
    assert table.placements[0, 0] == (("13", 10.0), ("22", 30.0), ("31", 20.0))


def test_placements_over_more_hosts_are_cells_of_their_own(tmp_path):
    table = load(tmp_path, HEAD + "a,m,T4,4,1,4,40,samples/s\na,m,T4,4,4,1111,25,samples/s\n")
    assert value(table, "a", "T4", 4, 1) == 40
    assert value(table, "a", "T4", 4, 4) == 25


@pytest.mark.parametrize(
    ("placement", "hosts"), [("44.0", 2), ("unconsolidated", 2), ("consolidated", 1), ("", 1), ("2222", 4)]
)
def test_hosts_come_from_the_placement_where_nodes_are_not_given(tmp_path, placement, hosts):
    table = load(tmp_path, HEAD + f"a,m,T4,8,,{placement},40,samples/s\n")
    assert table.configurations == (Configuration("T4", 8, hosts),)


def test_steps_become_samples_where_the_batch_is_known(tmp_path):
    head = "job,gpu_type,workers,throughput,unit,batch_per_gpu,global_batch\n"
    table = load(
        tmp_path,
        head
        + "a,T4,2,10,worker-steps/s,16,32\nb,T4,2,10,iterations/s at fixed global batch,,64\nc,T4,2,10,steps/s,,\n",
    )
    assert value(table, "a", "T4", 2) == 160
    assert value(table, "b", "T4", 2) == 640
    assert value(table, "c", "T4", 2) == 10
    assert table.units == ("samples/s", "samples/s", "steps/s")
    assert table.families == ("a", "b", "c")  # without a model column every job is a family of its own


def test_the_files_own_unit_can_be_kept(tmp_path):
    head = "job,gpu_type,workers,throughput,unit,batch_per_gpu\n"
    table = load(tmp_path, head + "a,T4,2,10,worker-steps/s,16\n", file_units=True)
    assert (value(table, "a", "T4", 2), table.units) == (10, ("worker-steps/s",))


def test_bad_rows_are_skipped_with_their_line_and_reason(tmp_path):
    bad = ["a,m,T4,x,1,,5,s", "a,m,T4,2,1,,0,s", "a,m,T4,2,3,,5,s", "a,m,T4,2,1,,nan,s", ",m,T4,2,1,,5,s", "a,m,T4"]
    table = load(tmp_path, HEAD + "\n".join(["a,m,T4,1,1,,5,s", *bad]) + "\n")
    assert [s.line for s in table.skipped] == [3, 4, 5, 6, 7, 8]
    for skipped, words in zip(
        table.skipped,
        ("workers is 'x'", "did not run", "cannot span", "finite", "job is empty", "3 fields"),
        strict=True,
    ):
        assert words in skipped.reason
    assert np.isfinite(table.throughput_JK).sum() == 1


def test_rows_in_another_unit_than_the_rest_of_a_job_do_not_count(tmp_path):
    table = load(tmp_path, HEAD + "a,m,T4,1,1,,5,s\na,m,T4,2,1,,9,s\na,m,T4,4,1,,1,tokens/s\n")
    assert len(table.configurations) == 2
    assert "not in its usual s" in table.skipped[0].reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the columns"),
        ("job,gpu_type,workers\n", "lacks the column throughput"),
        (HEAD, "no usable row"),
        (HEAD + "a,m,T4,1,1,,0,s\n", "line 2: throughput is '0': did not run"),
    ],
)
def test_a_file_that_is_no_table_is_one_sentence(tmp_path, text, words):
    with pytest.raises(UsageError, match=r"table\.csv") as caught:
        load(tmp_path, text)
    assert words in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.csv"):
        load_table(tmp_path / "nowhere.csv")


def test_an_interconnect_tells_host_types_apart_only_where_one_gpu_type_has_several(tmp_path):
    head = "job,gpu_type,interconnect,workers,throughput\n"
    two = load(tmp_path, head + "a,V100,NVLink,2,5\na,V100,PCIe,2,4\na,T4,PCIe,2,1\n")
    assert two.host_types == ("T4", "V100 NVLink", "V100 PCIe")


def test_what_is_measured_too_seldom_is_left_out_and_named(tmp_path):
    rows = [f"{j},m,T4,{w},1,,{w},s" for j in "abcd" for w in (1, 2)] + ["a,m,T4,4,1,,4,s", "e,m,T4,16,1,,9,s"]
    table, left_out = covered(load(tmp_path, HEAD + "\n".join(rows) + "\n"), 0.5)
    assert table.jobs == ("a", "b", "c", "d")
    assert [c.workers for c in table.configurations] == [1, 2]
    assert [c.workers for c, _ in left_out.configurations] == [4, 16]
    assert [name for name, _ in left_out.jobs] == ["e"]
    assert set(table.placements) == {(j, k) for j in range(4) for k in range(2)}


def test_a_table_of_which_nothing_would_remain_is_refused(tmp_path):
    table = load(tmp_path, HEAD + "".join(f"j{i},m,T4,{i + 1},1,,1,s\n" for i in range(5)))
    with pytest.raises(UsageError, match="smaller --min-coverage"):
        covered(table, 0.5)


@pytest.mark.parametrize("name", ["gavel", "sia_pcie", "elasticflow", "nvidia_dle", "tensorflow_benchmarks"])
def test_published_tables_can_be_read(name):
    table = load_table(real_table(f"throughput_{name}.csv"))
    known = np.isfinite(table.throughput_JK)
    assert known.any(axis=0).all()
    assert known.any(axis=1).all()
    assert (table.throughput_JK[known] > 0).all()
    assert ((table.rows_JK > 0) == known).all()
