"""True speeds between, at and beyond measured cells."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from heet_elastic.errors import UsageError
from heet_elastic.simulator.tables import load_truth
from heet_elastic.simulator.truth import Row, Truth

HEADER = "job,model,gpu_type,workers,nodes,throughput,unit\n"


def truth(**cells):
    return Truth([Row("m", "m", "samples/s", cells)])


def test_a_measured_cell_is_what_was_measured():
    assert truth(T4={(1, 1): 10.0, (4, 1): 30.0}).speed("m", "T4", 4, 1) == 30.0


def test_counts_between_measured_ones_are_interpolated_in_logs():
    t = truth(T4={(1, 1): 10.0, (4, 1): 30.0})
    assert t.speed("m", "T4", 2, 1) == pytest.approx(math.sqrt(10 * 30))


def test_nothing_is_extrapolated_and_an_unmeasured_type_is_closed():
    t = truth(T4={(2, 1): 10.0, (4, 1): 30.0})
    assert t.speed("m", "T4", 1, 1) == t.speed("m", "T4", 5, 2) == t.speed("m", "A100", 2, 1) == 0.0
    assert t.largest("m", "T4") == 4
    assert t.unit_speed("m", "T4") == 5.0


def test_a_spread_placement_takes_the_nearest_measured_spread_and_the_dense_one_where_none_was_measured():
    t = truth(T4={(1, 1): 10.0, (2, 1): 19.0, (4, 1): 36.0, (2, 2): 12.0, (4, 2): 20.0})
    assert t.speed("m", "T4", 4, 3) == 20.0
    assert t.speed("m", "T4", 3, 2) == pytest.approx(12.0 * (20 / 12) ** (math.log(1.5) / math.log(2)))
    dense_only = truth(T4={(1, 1): 10.0, (4, 1): 36.0})
    assert dense_only.speed("m", "T4", 4, 3) == 36.0


def test_fewer_hosts_than_were_measured_are_no_slower_than_the_densest_measured_placement():
    t = truth(T4={(4, 1): 36.0, (8, 2): 60.0})
    assert t.speed("m", "T4", 8, 1) == 60.0
    assert 36.0 < t.speed("m", "T4", 6, 1) < 60.0


def test_over_several_types_every_worker_runs_at_the_pace_of_the_slowest():
    t = truth(T4={(1, 1): 1.0, (4, 1): 4.0}, A100={(1, 1): 5.0, (4, 1): 20.0})
    assert t.mixed_speed("m", {"T4": 2, "A100": 2}, 1) == 4.0


def test_the_median_type_is_not_moved_by_which_rows_a_type_was_measured_with():
    rows = [
        Row("fast", "fast", "u", {"A": {(1, 1): 100.0}, "B": {(1, 1): 200.0}}),
        Row("slow", "slow", "u", {"A": {(1, 1): 1.0}, "C": {(1, 1): 0.5}}),
        Row("slower", "slower", "u", {"A": {(1, 1): 0.1}, "C": {(1, 1): 0.05}}),
    ]
    assert Truth(rows).median_type() == "A"


def test_reference_speed_moves_to_the_nearest_measured_count_and_to_the_rows_own_middle_type():
    t = Truth([Row("m", "m", "u", {"A": {(2, 1): 4.0, (4, 1): 6.0}, "C": {(2, 1): 8.0, (4, 1): 9.0}})])
    assert t.reference_speed("m", 1, "A") == 4.0
    assert t.reference_speed("m", 64, "A") == 6.0
    assert t.reference_speed("m", 2, "B") == 4.0


def test_a_dense_curve_uses_as_few_hosts_as_possible():
    t = truth(T4={(1, 1): 1.0, (2, 1): 2.0, (4, 2): 3.0})
    assert np.allclose(t.dense_curve("m", "T4", 2, 4), [1.0, 2.0, t.speed("m", "T4", 3, 2), 3.0])


def test_tables_keep_the_files_unit_and_several_rows_of_a_cell_are_their_median(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "job,model,gpu_type,workers,batch_per_gpu,throughput,unit\n"
        + "".join(f"a,a,T4,1,32,{v},worker-steps/s\n" for v in (1, 2, 9))
    )
    found, notes = load_truth([path])
    assert found.speed("a", "T4", 1, 1) == 2.0
    assert found.rows["a"].unit == "worker-steps/s"
    assert notes == ()


def test_a_bad_row_of_a_table_is_an_error_with_its_line_unless_skipped_and_a_job_that_did_not_run_is_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "a,a,T4,1,1,5,u\na,a,T4,2,1,0,u\na,a,T4,x,1,5,u\n")
    with pytest.raises(UsageError, match=r"line 4: workers is 'x'"):
        load_truth([path])
    found, notes = load_truth([path], skip_bad=True)
    assert found.largest("a", "T4") == 1
    assert len(notes) == 1
    assert "line 4" in notes[0]


def test_rows_of_one_name_in_two_tables_are_one_row_if_their_units_agree(tmp_path):
    one, two, other = (tmp_path / n for n in ("1.csv", "2.csv", "3.csv"))
    one.write_text(HEADER + "a,a,T4,1,1,5,u\n")
    two.write_text(HEADER + "a,a,V100,1,1,9,u\n")
    other.write_text(HEADER + "a,a,A100,1,1,9,v\n")
    assert set(load_truth([one, two])[0].rows["a"].cells) == {"T4", "V100"}
    with pytest.raises(UsageError, match="is in v here and in u"):
        load_truth([one, other])


def test_gavels_json_is_read_as_published(tmp_path):
    path = tmp_path / "g.json"
    key, other = "('ResNet-18 (batch size 16)', {})", "('LM (batch size 5)', 1)"
    data = {
        "k80": {key.format(1): {"null": 4.5, other: [1.0, 2.0]}, key.format(2): {"null": 8.0}},
        "k80_unconsolidated": {key.format(1): {"null": 4.5}, key.format(2): {"null": 6.0}},
    }
    path.write_text(json.dumps(data))
    found, _ = load_truth([path])
    row = found.rows["ResNet-18 (batch size 16)"]
    assert row.family == "ResNet-18"
    assert row.cells == {"K80": {(1, 1): 4.5, (2, 1): 8.0, (2, 2): 6.0}}
    path.write_text('{"k80": 3}')
    with pytest.raises(UsageError, match="no throughput JSON"):
        load_truth([path])
