"""`heet submit` without processes: what is refused, and that a job exists once or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heet_elastic.agents.node_command import Here, launch
from heet_elastic.agents.node_records import JobCommand, StartReport, check_variable
from heet_elastic.cli.limits import why_never
from heet_elastic.cli.request import check_job, describe
from heet_elastic.cli.submit import Submitted, check_script, put_job, read_sweep
from heet_elastic.errors import RefusedError, StoreUnavailableError, UsageError
from heet_elastic.model import Gpu, Host, JobSpec, Result
from heet_elastic.store.api import Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.records import decode, encode
from tests.faults.injector import Fault, FaultScript, FaultyStore, touching

KEYS = Keys()
SPEC = JobSpec("j", "train.py", "i1", 1, 8, script="train.py", submitted=True)
COMMAND = JobCommand("j", "i1", "train.py", ("--lr", "1"), "/work", environment=(("K", "v"),))


def host(name: str, daemon: bool = True, **types: int) -> Host:
    gpus = tuple(Gpu(f"{name}-{kind}-{i}", kind, kind) for kind, n in types.items() for i in range(n))
    return Host(name, gpus, agents=("heet-agent:me:1",) if daemon else ("t1",))


POOL = {h.name: h for h in (host("a", T4=4), host("b", T4=2), host("c", V100=8), host("d", False, A100=64))}


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({}, True),
        ({"min_workers": 8}, True),
        ({"min_workers": 9}, False),
        ({"min_workers": 6, "max_hosts": 1, "most_per_host": 4}, False),
        ({"min_workers": 6, "min_hosts": 2}, True),
        ({"min_workers": 7, "min_hosts": 2}, False),
        ({"allowed_workers": (16, 32)}, False),
        ({"allowed_workers": (5, 16)}, True),
        ({"multiple_of": 9}, False),
        ({"min_hosts": 2, "max_hosts": 2, "min_workers": 2, "most_per_host": 2}, True),
        ({"min_hosts": 2, "max_hosts": 2, "min_workers": 2, "most_per_host": 3}, False),
        ({"min_hosts": 3, "max_hosts": 3, "min_workers": 3, "most_per_host": 1}, False),
    ],
)
def test_limits_that_no_host_type_meets_are_known_before_anything_is_written(limits: dict[str, object], fits: bool):
    why = why_never(replace(SPEC, **limits), POOL)  # type: ignore[arg-type]
    assert (why is None) is fits, why
    if why is not None:
        assert "T4: 6 on 2 hosts; V100: 8 on 1 host" in why


def test_a_pool_without_heet_agents_refuses_nothing_yet():
    assert why_never(replace(SPEC, min_workers=1000), {"d": POOL["d"]}) is None


def test_a_job_is_written_with_its_command_and_submitted_twice_is_there_once():
    store = MemoryStore()
    assert put_job(store, KEYS, SPEC, COMMAND) == Submitted("j")
    again = replace(SPEC, incarnation="i2"), replace(COMMAND, incarnation="i2")
    assert put_job(store, KEYS, *again) == Submitted("j", existing=True)
    entries = store.read(KEYS.job("j")).entries
    assert decode("k", entries[KEYS.spec("j")].value, JobSpec) == SPEC
    assert decode("k", entries[KEYS.command("j")].value, JobCommand) == COMMAND


@pytest.mark.parametrize(
    ("spec", "command", "says"),
    [
        (replace(SPEC, max_workers=4), COMMAND, "other max_workers"),
        (SPEC, replace(COMMAND, environment=(("K", "other"),)), "another command line, folder or environment"),
    ],
)
def test_the_id_of_another_live_job_is_refused_without_showing_its_command(spec, command, says: str):
    store = MemoryStore()
    put_job(store, KEYS, SPEC, COMMAND)
    with pytest.raises(RefusedError, match=says) as caught:
        put_job(store, KEYS, replace(spec, incarnation="i2"), replace(command, incarnation="i2"))
    assert "--lr" not in str(caught.value)
    assert "'v'" not in str(caught.value)


def test_a_job_that_was_started_by_hand_is_not_replaced():
    store = MemoryStore()
    store.txn([], [Put(KEYS.spec("j"), encode(replace(SPEC, submitted=False, incarnation="i0")))])
    with pytest.raises(RefusedError, match="started by hand"):
        put_job(store, KEYS, SPEC, COMMAND)


def test_an_ended_job_is_not_run_again_by_a_retry_but_on_request():
    store = MemoryStore()
    put_job(store, KEYS, SPEC, COMMAND)
    result = Result("succeeded", "done", "i1")
    store.txn(
        [], [Put(KEYS.result("j"), encode(result)), Put(KEYS.start("j", "h"), encode(StartReport("h", "i1", 1, 1, "")))]
    )
    again = replace(SPEC, incarnation="i2"), replace(COMMAND, incarnation="i2")
    assert put_job(store, KEYS, *again) == Submitted("j", True, result)
    assert put_job(store, KEYS, *again, again=True) == Submitted("j")
    assert store.read(KEYS.job("j")).entries.keys() == {KEYS.spec("j"), KEYS.command("j")}
    other = replace(again[1], arguments=())
    store.txn([], [Put(KEYS.result("j"), encode(replace(result, incarnation="i2")))])
    with pytest.raises(RefusedError, match="--again"):
        put_job(store, KEYS, replace(SPEC, incarnation="i3"), replace(other, incarnation="i3"))


@pytest.mark.parametrize("script", ["there.py", "missing.py"])
def test_a_script_is_looked_for_where_its_folder_is(tmp_path: Path, script: str):
    (tmp_path / "there.py").touch()
    command = replace(COMMAND, script=script, cwd=str(tmp_path))
    if script == "there.py":
        check_script(command)
        return
    with pytest.raises(UsageError, match=r"no script .*missing.py"):
        check_script(command)
    check_script(replace(command, torchrun=("-m",)))
    check_script(replace(command, cwd="/only/on/the/hosts"))


@pytest.mark.parametrize("job", ["a/b", "none", "..", "ü" * 101])
def test_ids_that_torchrun_cannot_make_a_folder_of_are_refused(job: str):
    with pytest.raises(UsageError, match="--id"):
        check_job(job)


@pytest.mark.parametrize("name", ["HEET_LOCK_DIR", "RANK", "CUDA_VISIBLE_DEVICES", "1A", "A-B", "", "PET_X"])
def test_variables_that_belong_to_heet_or_torchrun_cannot_be_chosen(name: str):
    with pytest.raises(ValueError, match=r"cannot choose|no name"):
        check_variable(name)


LARGE = "x" * (1 << 20)


@pytest.mark.parametrize(
    "command",
    [
        replace(COMMAND, arguments=(LARGE,)),
        replace(COMMAND, environment=(("K", LARGE),)),
        replace(COMMAND, secrets=(("K", LARGE),)),
    ],
    ids=["arguments", "environment", "secrets"],
)
def test_a_command_that_is_too_large_for_the_store_says_what_to_do(command: JobCommand):
    store = MemoryStore()
    with pytest.raises(UsageError, match="put what is large into files"):
        put_job(store, KEYS, SPEC, command)
    assert store.read("/").entries == {}


def test_secrets_are_in_no_text_about_a_command():
    assert "hush" not in repr(replace(COMMAND, secrets=(("TOKEN", "hush"),)))


def test_the_torchrun_of_a_host_gets_the_job_and_the_host_says_where_it_is():
    here = Here("e:1", "/py", 4, {}, {"HEET_HOST": "h", "K": "host"}, {"PATH": "/bin", "K": "base"})
    command = replace(COMMAND, secrets=(("TOKEN", "hush"),), conf=(("ttl_s", "2"),), torchrun=("-m",))
    made = launch(replace(SPEC, most_per_host=2), command, Path("/run"), here)
    assert made.argv == (
        *("/py", "-m", "torch.distributed.run", "--rdzv-backend=heet", "--rdzv-endpoint=e:1", "--rdzv-id=j"),
        *("--nnodes=1:8", "--nproc-per-node=2", "--max-restarts=0", "--logs-specs=heet", "--rdzv-conf=ttl_s=2"),
        *("-m", "train.py", "--lr", "1"),
    )
    assert made.ranks == 2
    assert "hush" not in f"{made} {made.argv} {made.environment}"
    assert made.environment["K"] == "host"
    assert made.environment["TOKEN_FILE"] == "/run/secrets/TOKEN"
    assert made.environment["HEET_INCARNATION"] == "i1 j"
    assert launch(SPEC, command, Path("/run"), here).ranks == 4


SPEC_ONLY = touching("/spec")


@pytest.mark.parametrize(
    "fault",
    [
        lambda s: s.unknown_txn_at(1, True, SPEC_ONLY),
        lambda s: s.unknown_txn_at(1, False, SPEC_ONLY),
        lambda s: s.late_txn_at(1, 3, SPEC_ONLY),
        lambda s: s.lost_txn_at(1, SPEC_ONLY),
        lambda s: s.unavailable_from(1, 3),
    ],
    ids=["applied", "not applied", "late", "lost", "away for a while"],
)
def test_a_job_whose_answer_was_lost_exists_once(fault: Callable[[FaultScript], Fault]):
    inner, script = MemoryStore(), FaultScript()
    struck = fault(script)
    store = FaultyStore(inner, script)
    assert put_job(store, KEYS, SPEC, COMMAND) == Submitted("j")
    for _ in range(4):
        store.read(KEYS.root)  # what was late arrives
    assert struck.fired
    entries = inner.read(KEYS.job("j")).entries
    assert {e.create_revision for e in entries.values()} == {e.mod_revision for e in entries.values()}, "written once"
    assert set(entries) == {KEYS.spec("j"), KEYS.command("j")}


def test_an_etcd_that_stays_away_leaves_it_unknown_and_says_how_to_settle_it():
    class Away(MemoryStore):
        def read(self, prefix: str):
            raise StoreUnavailableError("nobody listens")

    with pytest.raises(StoreUnavailableError, match="--id j does it once"):
        put_job(Away(), KEYS, SPEC, COMMAND)


def test_a_sweep_is_one_job_a_line_with_the_flags_of_submit(tmp_path: Path):
    file = tmp_path / "sweep"
    file.write_text("# two jobs\n--id=a --max 2 --env K=v -- train.py --lr 0.1\n\n--id=b -- 'my script.py'\n")
    (one, first), (two, second) = read_sweep(file)
    assert (one, two) == (2, 4)
    assert (first.spec.job, first.spec.max_workers, first.command.environment) == ("a", 2, (("K", "v"),))
    assert (first.command.script, first.command.arguments) == ("train.py", ("--lr", "0.1"))
    assert second.command.script == "my script.py"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--max x -- t.py", "line 1: .*--max"),
        ("--nonsense -- t.py", "line 1: .*--nonsense"),
        ("--max 2", "line 1: Missing argument"),
        ("--follow -- t.py", "line 1: --help and --follow"),
        ("'unclosed", "line 1: No closing quotation"),
    ],
)
def test_a_line_that_is_no_job_is_named(tmp_path: Path, line: str, says: str):
    file = tmp_path / "sweep"
    file.write_text(line)
    with pytest.raises(UsageError, match=says):
        list(read_sweep(file))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"conf": ["ttl=2"]}, "ttl is not known; known are .*ttl_s"),
        ({"conf": ["ttl_s=x"]}, "expected a number"),
        ({"conf": ["min_workers=2"]}, "give --min instead"),
        ({"conf": ["user=a,b"]}, "comma"),
        ({"hosts": "3:2"}, "MIN:MAX"),
        ({"hosts": "x"}, "MIN:MAX"),
        ({"workers": "1,2"}, "slashes"),
        ({"total_steps": 1.0, "total_epochs": 1.0}, "one unit"),
        ({"env": ["SURELY_NOT_SET_HERE"]}, "not set here"),
        ({"env": ["RANK=1"]}, "cannot choose"),
        ({"secret": ["T=/no/file"]}, "cannot be read"),
        ({"least": 4, "most": 2}, "min_workers <= max_workers"),
    ],
)
def test_a_flag_that_is_wrong_is_named_before_anything_is_written(flags: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        describe(["train.py"], **flags)  # type: ignore[arg-type]
