"""Traces in every format that people download, and what is said about rows that cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest

from heet_elastic.errors import UsageError
from heet_elastic.simulator.traces import read_trace


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_an_own_trace_is_taken_as_it_is(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "job,total_work,requested,submit_time_s,id,priority,rigid\nm,1e6,4,10.5,x,2,true\nm,5,1,3,y,,\n",
    )
    trace = read_trace(path)
    first, second = trace.jobs
    assert (first.job_id, first.row, first.total_work, first.requested, first.submit_s) == ("y", "m", 5.0, 1, 3.0)
    assert (second.job_id, second.priority, second.rigid) == ("x", 2.0, True)
    assert (first.priority, first.rigid) == (1.0, None)


def test_a_measured_trace_gives_model_batch_and_work_where_it_has_them(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "source,job_id,submit_time_s,model,batch_size,gpus,duration_s,total_work,work_unit\n"
        "ef,0,37,bert,64,8,100,3249,iterations\nef,1,40,,,1,50,,\n",
    )
    first, second = read_trace(path).jobs
    assert (first.model, first.batch, first.requested, first.total_work, first.work_unit) == (
        "bert", 64.0, 8, 3249.0, "iterations",
    )  # fmt: skip
    assert (second.model, second.duration_s) == (None, 50.0)


def test_gavels_trace_lines_are_read(tmp_path):
    line = "ResNet-18 (batch size 32)\tpython3 main.py\t--num_steps\t1\t{}\t{}\t1\t-1.0\t{}\n"
    path = write(tmp_path / "t.trace", line.format(1000, 2, 0.0) + line.format(50, 1, 12.5))
    trace = read_trace(path)
    assert trace.format == "gavel"
    assert [(j.row, j.total_work, j.requested, j.submit_s) for j in trace.jobs] == [
        ("ResNet-18 (batch size 32)", 1000.0, 2, 0.0),
        ("ResNet-18 (batch size 32)", 50.0, 1, 12.5),
    ]


def philly(**changes):
    attempt = {
        "start_time": "2017-10-03 10:00:10",
        "end_time": "2017-10-03 11:00:10",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu4"]}],
    }
    return {"jobid": "a", "vc": "v", "user": "u", "status": "Pass", "submitted_time": "2017-10-03 10:00:00",
            "attempts": [attempt], **changes}  # fmt: skip


def test_phillys_list_gives_gpus_of_the_first_attempt_and_the_time_of_all(tmp_path):
    second = {"start_time": "2017-10-03 12:00:00", "end_time": "2017-10-03 12:00:30", "detail": []}
    two = philly(jobid="b", attempts=[*philly()["attempts"], second], submitted_time="2017-10-03 10:00:05")
    never = philly(jobid="c", attempts=[])
    running = philly(jobid="d", attempts=[{**philly()["attempts"][0], "end_time": None}])
    trace = read_trace(write(tmp_path / "cluster_job_log", json.dumps([philly(), two, never, running])))
    assert trace.format == "philly"
    assert [(j.job_id, j.requested, j.duration_s) for j in trace.jobs] == [("a", 3, 3600.0), ("b", 3, 3630.0)]
    assert trace.jobs[1].submit_s - trace.jobs[0].submit_s == 5.0
    assert trace.left_out == {"never ran": 1, "had not ended when the trace was taken": 1}


HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def test_helios_list_leaves_cpu_jobs_out_and_says_so(tmp_path):
    row = "{},u,vc,{},4,1,COMPLETED,2020-04-01 00:00:{:02d},2020-04-01 00:01:00,2020-04-01 00:02:00,60,30\n"
    path = write(tmp_path / "cluster_log.csv", HELIOS + row.format(1, 8, 0) + row.format(2, 0, 1) + row.format(3, 1, 9))
    trace = read_trace(path)
    assert [(j.job_id, j.requested, j.duration_s) for j in trace.jobs] == [("1", 8, 60.0), ("3", 1, 60.0)]
    assert trace.jobs[1].submit_s - trace.jobs[0].submit_s == 9.0
    assert trace.left_out == {"asks for no GPU": 1}


def test_alibabas_2020_tasks_are_read_without_a_header_and_from_the_published_archive(tmp_path):
    rows = (
        "j1,worker,2.0,Terminated,100.0,160.0,600.0,29.3,100.0,V100\n"
        "j1,ps,1.0,Terminated,100.0,160.0,600.0,29.3,,\n"
        "j2,tensorflow,1.0,Terminated,120.0,130.0,600.0,29.3,50.0,MISC\n"
        "j3,worker,4.0,Failed,130.0,190.0,600.0,29.3,25.0,T4\n"
        "j4,worker,1.0,Running,140.0,,600.0,29.3,100.0,T4\n"
    )
    archive = tmp_path / "pai_task_table.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("pai_task_table.csv")
        info.size = len(rows)
        tar.addfile(info, io.BytesIO(rows.encode()))
    plain, packed = read_trace(write(tmp_path / "pai_task_table.csv", rows)), read_trace(archive)
    assert plain.format == packed.format == "alibaba-2020"
    assert plain.jobs == packed.jobs
    assert [(j.job_id, j.requested, j.duration_s, j.line) for j in plain.jobs] == [
        ("j1/worker", 2, 60.0, 1),
        ("j3/worker", 4, 60.0, 4),
    ]
    assert plain.left_out == {
        "asks for no GPU": 1,
        "asks for less than one GPU": 1,
        "had not ended when the trace was taken": 1,
    }


def test_alibabas_2023_pods_are_read(tmp_path):
    path = write(
        tmp_path / "openb_pod_list_default.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,8,3,8,1000,,LS,Succeeded,100,400,150\np1,8,3,1,220,,BE,Running,100,400,150\np2,8,3,1,1000,,LS,Pending,1,2,\n",
    )
    trace = read_trace(path)
    assert [(j.job_id, j.requested, j.submit_s, j.duration_s) for j in trace.jobs] == [("p0", 8, 100.0, 250.0)]
    assert trace.left_out == {"asks for less than one GPU": 1, "never ran": 1}


def test_a_gzipped_trace_is_read(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"submit_time_s,gpus,duration_s\n0,1,60\n"))
    assert len(read_trace(path).jobs) == 1


BAD = "submit_time_s,gpus,duration_s\n0,1,60\n5,x,60\n6,0,60\n7,1,nan\n8,1,60,9\n9,1.5,60\n"


def test_bad_rows_are_named_by_line_and_reason(tmp_path):
    path = write(tmp_path / "t.csv", BAD)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert "5 bad rows" in text
    assert "line 3: requested is 'x': expected a number" in text
    assert "line 6: expected 3 columns" in text
    assert "--skip-bad" in text


def test_skip_bad_counts_the_bad_rows_and_keeps_the_others(tmp_path):
    trace = read_trace(write(tmp_path / "t.csv", BAD), skip_bad=True)
    assert len(trace.jobs) == 1
    assert [b.line for b in trace.bad] == [3, 4, 5, 6, 7]


def test_a_job_id_that_occurs_twice_is_a_bad_row(tmp_path):
    path = write(tmp_path / "t.csv", "job_id,submit_time_s,gpus,duration_s\na,0,1,60\na,5,1,60\n")
    with pytest.raises(UsageError, match="line 3: job id 'a' occurs twice"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"a,b,c\n1,2,3\n", "no known trace"),
        (b"\xff\xfe\x00binary\x80", "is no text file"),
        (b"[{]", "is not JSON"),
        (b'{"jobs": 3}', "expected a list of jobs"),
        (b"submit_time_s,gpus,duration_s\n", "no job to run"),
    ],
)
def test_a_file_that_is_no_trace_gets_a_sentence(tmp_path, content, says):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_trace(path)


def test_a_missing_file_gets_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot read the trace"):
        read_trace(tmp_path / "nowhere.csv")
