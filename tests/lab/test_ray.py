"""A Ray cluster gives the records that this process gives, also when a worker dies."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lab.evaluations import PROTOCOL, contender, selection_jobs, small_data
from samples import rings_and_cliques, write_json_lines

from softperm import parallel
from softperm.lab import scheduler
from softperm.lab.protocol import evaluate
from softperm.lab.scheduler import LocalExecutor, Outcome, RayExecutor

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray leaves sockets and processes to the end


@pytest.fixture
def cluster():
    """Two nodes on this machine."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    tests = os.path.dirname(os.path.dirname(__file__))
    ray.init(
        address=made.address,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": tests, "OMP_NUM_THREADS": "1"}},
    )
    yield made
    ray.shutdown()
    made.shutdown()


def dying(mark: str):
    """A worker's function that kills its process the first time."""

    def work(job, graphs, device, threads):
        import os
        import signal

        from softperm.lab import scheduler  # the worker's own, which is not patched

        if not os.path.exists(mark):
            with open(mark, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return scheduler._work(job, graphs, device, threads)

    return work


@pytest.mark.slow
def test_a_killed_workers_stack_is_tried_again_and_gives_the_same(cluster, tmp_path, monkeypatch):
    mark = str(tmp_path / "died")
    monkeypatch.setattr(scheduler, "_work", dying(mark))
    single = contender(sizes=(3,))
    rules = replace(PROTOCOL, stack=2)  # three stacks for two workers
    spread = evaluate(small_data(), [single], rules, RayExecutor(), tmp_path / "ray")
    assert os.path.exists(mark)
    monkeypatch.undo()
    whole = evaluate(small_data(), [single], rules, LocalExecutor(), tmp_path / "local")
    assert [r.digest for r in spread] == [r.digest for r in whole]


EVALUATION = (
    "--folds", "2", "--epochs", "10", "--final-runs", "2", "--configurations", "2", "--models",
    "pi-gnn,gin", "--stack", "1",
)  # fmt: skip


@pytest.mark.slow
def test_a_command_whose_cluster_is_lost_ends_with_one_sentence_and_resumes(tmp_path):
    from ray.cluster_utils import Cluster

    graphs, kinds = rings_and_cliques(24)
    data = write_json_lines(tmp_path / "g.jsonl", graphs, y=kinds.tolist())
    command = [sys.executable, "-m", "softperm", "evaluate", "--data", data, *EVALUATION, "--out"]
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    address = made.address
    there = ["--engine", "ray", "--address", address]
    with subprocess.Popen(
        [*command, tmp_path / "run", *there], stderr=subprocess.PIPE, text=True
    ) as running:
        while not list(tmp_path.glob("run/records/*")) and running.poll() is None:
            time.sleep(0.1)
        made.shutdown()
        _, said = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert sentence.startswith(f"error: the Ray cluster at {address} is gone")
    finished = {path: path.read_bytes() for path in tmp_path.glob("run/records/*")}
    for out in ("run", "alone"):
        subprocess.run([*command, tmp_path / out], check=True, capture_output=True)
    assert all(path.read_bytes() == content for path, content in finished.items())
    tables = [(tmp_path / out / "table.csv").read_bytes() for out in ("run", "alone")]
    assert tables[0] == tables[1]


ENDS = """
import os, sys
from softperm.parallel import _last_words
with _last_words(sys.argv[1]):
    if sys.argv[2] == "lost":
        os._exit(1)
"""


@pytest.mark.parametrize(
    ("answers", "end", "sentences"), [(False, "lost", 1), (True, "lost", 0), (False, "well", 0)]
)
def test_the_loss_of_a_cluster_is_said_if_ray_ends_the_process(answers, end, sentences):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}" if answers else "127.0.0.1:1"
        with subprocess.Popen(
            [sys.executable, "-c", ENDS, address, end], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            if not answers:
                said = process.stderr.read()
                assert said.count("error: the Ray cluster at 127.0.0.1:1 is gone") == sentences
            else:
                server.settimeout(20)
                server.accept()[0].close()  # the other process asks whether the cluster is there
    assert process.returncode == (1 if end == "lost" else 0)


def test_a_job_on_a_cluster_gives_the_records_that_it_gives_here(tmp_path, monkeypatch):
    class WorkingRay(FakeRay):
        def get(self, name):
            return scheduler._work(self.jobs[name], small_data(), "cpu", 1)

    fake = WorkingRay()
    monkeypatch.setattr(parallel, "_import_ray", lambda: fake)
    rules = replace(PROTOCOL, stack=2)
    single = contender(sizes=(3,))
    spread = evaluate(small_data(), [single], rules, RayExecutor(), tmp_path / "ray")
    whole = evaluate(small_data(), [single], rules, LocalExecutor(), tmp_path / "local")
    assert [r.digest for r in spread] == [r.digest for r in whole]
    assert fake.asked["max_retries"] == 3, "Ray gives the job of a killed worker to another one"


class FakeRay:
    """Notes what a task asks for, and does it at once."""

    address = "127.0.0.1:1"
    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self) -> None:
        self.asked, self.jobs, self.devices, self.threads = {}, {}, [], []

    def is_initialized(self) -> bool:
        return True

    def remote(self, **asked):
        self.asked = asked

        def made(function):
            def called(job, data, device, threads):
                self.devices.append(device)
                self.threads.append(threads)
                self.jobs[job.name] = job
                return job.name

            return SimpleNamespace(remote=called)

        return made

    def put(self, thing):
        return thing

    def wait(self, waiting, num_returns, timeout):
        return waiting[:1], waiting[1:]

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=self.address)

    def get(self, name):
        return Outcome(self.jobs[name])

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": cpus}} for cpus in (2.0, 4.0)]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:3", 1)])
def test_a_worker_on_a_gpu_asks_the_cluster_for_one(device, gpus, tmp_path, monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(parallel, "_import_ray", lambda: fake)
    jobs = selection_jobs(small_data(), contender(), PROTOCOL)
    done = list(RayExecutor(device).run(jobs, small_data(), tmp_path, lambda job, epoch: None))
    assert len(done) == len(jobs)
    assert fake.asked["num_gpus"] == gpus
    assert set(fake.devices) == {device.partition(":")[0]}, "it sees one GPU, which is the first"


def test_a_worker_reserves_a_cpu_for_each_of_its_threads(tmp_path, monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(parallel, "_import_ray", lambda: fake)
    jobs = selection_jobs(small_data(), contender(), PROTOCOL)
    for threads in (1, 3):
        monkeypatch.setattr(scheduler.torch, "get_num_threads", lambda n=threads: n)
        list(RayExecutor().run(jobs, small_data(), tmp_path, lambda job, epoch: None))
        assert fake.asked["num_cpus"] == threads == fake.threads[-1]
    monkeypatch.setattr(scheduler.torch, "get_num_threads", lambda: 8)
    with pytest.raises(ValueError, match=r"8 threads, but the largest machine .* offers 4 CPUs"):
        list(RayExecutor().run(jobs, small_data(), tmp_path, lambda job, epoch: None))


class NewRay(FakeRay):
    """A Ray that is not connected yet."""

    def is_initialized(self) -> bool:
        return False

    def init(self, address, log_to_driver):
        self.address = address


@pytest.mark.parametrize(
    ("given", "environment", "used"),
    [(None, "", "local"), (None, "10.0.0.1:6379", "10.0.0.1:6379"), ("auto", "10.0.0.1:1", "auto")],
)
def test_only_a_named_cluster_is_joined(given, environment, used, tmp_path, monkeypatch, caplog):
    fake = NewRay()
    monkeypatch.setattr(parallel, "_import_ray", lambda: fake)
    monkeypatch.setenv("RAY_ADDRESS", environment)
    jobs = selection_jobs(small_data(), contender(), PROTOCOL)[:1]
    with caplog.at_level("INFO", "softperm"):
        list(RayExecutor(address=given).run(jobs, small_data(), tmp_path, lambda *_: None))
    assert fake.address == used
    assert caplog.messages == [f"computing on the Ray cluster at {used}"]


def test_a_cluster_that_goes_away_is_said(tmp_path, monkeypatch):
    class GoneRay(FakeRay):
        def wait(self, waiting, num_returns, timeout):
            return [], waiting

    monkeypatch.setattr(parallel, "_import_ray", GoneRay)
    jobs = selection_jobs(small_data(), contender(), PROTOCOL)
    with pytest.raises(ConnectionError, match=r"cluster at 127\.0\.0\.1:1 is gone .* resumes"):
        list(RayExecutor().run(jobs, small_data(), tmp_path, lambda *_: None))


def test_a_failed_job_is_no_progress(tmp_path, monkeypatch):
    class FailingRay(FakeRay):
        def get(self, name):
            return Outcome(self.jobs[name], error="diverged")

    monkeypatch.setattr(parallel, "_import_ray", FailingRay)
    jobs, epochs = selection_jobs(small_data(), contender(), PROTOCOL), []
    done = RayExecutor().run(jobs, small_data(), tmp_path, lambda job, epoch: epochs.append(epoch))
    assert {outcome.error for outcome in done} == {"diverged"}
    assert epochs == []
