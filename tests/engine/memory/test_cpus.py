"""CPU limits from fake /proc and cgroup trees, laid out as Linux and Docker lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.memory.cpus import CpuCount, count_cpus

V2 = "30 23 0:26 {group} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 31 0:30 {group} {point} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "34 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


class Machine:
    """A root directory with /proc/self/cgroup, /proc/self/mountinfo and quota files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def processes(self, *, cgroup: str, mounts: list[str]) -> None:
        self.write("/proc/self/cgroup", cgroup)
        self.write(
            "/proc/self/mountinfo",
            "22 27 0:21 / /proc rw - proc proc rw\n" + "\n".join(mounts) + "\n",
        )

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def quota_v1(self, directory: str, quota_us: int, period_us: int = 100000) -> None:
        self.write(f"{directory}/cpu.cfs_quota_us", f"{quota_us}\n")
        self.write(f"{directory}/cpu.cfs_period_us", f"{period_us}\n")

    def cores(self, *siblings: str, name: str = "core_cpus_list") -> None:
        """Of each CPU, which ones are the same core's, as the system writes it."""
        for cpu, same in enumerate(siblings):
            self.write(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}", same + "\n")

    def count(self, n_affinity: int) -> CpuCount:
        return count_cpus(self.root, range(n_affinity))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def v2(machine: Machine) -> Machine:
    """cgroup v2, this process in /user/app."""
    machine.processes(
        cgroup="0::/user/app\n", mounts=[V2.format(group="/", point="/sys/fs/cgroup")]
    )
    return machine


@pytest.fixture
def v1(machine: Machine) -> Machine:
    """cgroup v1, this process in /user/app of the cpu hierarchy."""
    machine.processes(
        cgroup="5:memory:/other\n4:cpu,cpuacct:/user/app\n1:name=systemd:/user/x\n",
        mounts=[V1_MEMORY, V1.format(group="/", point="/sys/fs/cgroup/cpu,cpuacct")],
    )
    return machine


def test_without_cgroups_the_affinity_counts(machine: Machine) -> None:
    assert machine.count(3) == CpuCount(3, "CPU affinity", n_cores=3)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_of_this_process_is_read(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert count_cpus(tmp_path).n == 1
    finally:
        os.sched_setaffinity(0, before)


def test_without_affinity_the_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cpus(tmp_path) == CpuCount(1, "CPUs of the machine", n_cores=1)


@pytest.mark.parametrize(
    ("cpu_max", "n"),
    [
        ("150000 100000", 1),
        ("200000 100000", 2),
        ("299999 100000", 2),
        ("50000 100000", 1),
        ("20000 10000", 2),
        ("max 100000", 4),
        ("900000 100000", 4),
        ("", 4),
        ("nonsense", 4),
        ("100000 0", 4),
    ],
)
def test_v2_quota(v2: Machine, cpu_max: str, n: int) -> None:
    v2.write("/sys/fs/cgroup/user/app/cpu.max", cpu_max + "\n")
    assert v2.count(4).n == n


@pytest.mark.parametrize(("quota_us", "n"), [(150000, 1), (250000, 2), (50000, 1), (-1, 4), (0, 4)])
def test_v1_quota(v1: Machine, quota_us: int, n: int) -> None:
    v1.quota_v1("/sys/fs/cgroup/cpu,cpuacct/user/app", quota_us)
    assert v1.count(4).n == n


def test_v1_quota_is_that_of_the_cpu_hierarchy(v1: Machine) -> None:
    v1.quota_v1("/sys/fs/cgroup/memory/other", 100000)
    v1.quota_v1("/sys/fs/cgroup/cpu,cpuacct/other", 100000)
    assert v1.count(4).n == 4


@pytest.mark.parametrize("parent", ["/user", ""])
def test_the_tightest_group_on_the_way_up_counts(v1: Machine, parent: str) -> None:
    v1.quota_v1("/sys/fs/cgroup/cpu,cpuacct/user/app", 350000)
    v1.quota_v1(f"/sys/fs/cgroup/cpu,cpuacct{parent}", 250000)
    assert v1.count(8).n == 2


@pytest.mark.parametrize("parent", ["/user", ""])
def test_v2_parents_count(v2: Machine, parent: str) -> None:
    v2.write("/sys/fs/cgroup/user/app/cpu.max", "max 100000\n")
    v2.write(f"/sys/fs/cgroup{parent}/cpu.max", "300000 100000\n")
    count = v2.count(8)
    assert count.n == 3
    assert count.reason == f"quota of 3 CPUs in {v2.root}/sys/fs/cgroup{parent}"


def test_reason_names_the_group_and_the_unrounded_quota(v2: Machine) -> None:
    v2.write("/sys/fs/cgroup/user/app/cpu.max", "150000 100000\n")
    assert v2.count(2).reason == f"quota of 1.5 CPUs in {v2.root}/sys/fs/cgroup/user/app"


def test_a_quota_above_the_affinity_does_not_raise_it(v2: Machine) -> None:
    v2.write("/sys/fs/cgroup/user/app/cpu.max", "400000 100000\n")
    assert v2.count(2) == CpuCount(2, "CPU affinity", n_cores=2)


def test_container_with_its_own_cgroup_namespace(machine: Machine) -> None:
    machine.processes(cgroup="0::/\n", mounts=[V2.format(group="/", point="/sys/fs/cgroup")])
    machine.write("/sys/fs/cgroup/cpu.max", "200000 100000\n")
    assert machine.count(8).n == 2


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/sub"])
def test_v1_container_where_only_the_own_group_is_mounted(machine: Machine, group: str) -> None:
    machine.processes(
        cgroup=f"4:cpu,cpuacct:{group}\n",
        mounts=[V1.format(group="/docker/abc", point="/sys/fs/cgroup/cpu")],
    )
    machine.quota_v1("/sys/fs/cgroup/cpu", 300000)
    assert machine.count(8).n == 3


@pytest.mark.parametrize("path", ["/elsewhere", "/../../elsewhere"])
def test_a_group_outside_of_what_is_mounted_falls_back_to_the_mount(
    machine: Machine, path: str
) -> None:
    machine.processes(
        cgroup=f"0::{path}\n", mounts=[V2.format(group="/docker/abc", point="/sys/fs/cgroup")]
    )
    machine.write("/sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert machine.count(8).n == 1


def test_hybrid_systems_limit_cpu_through_v1(machine: Machine) -> None:
    machine.processes(
        cgroup="4:cpu,cpuacct:/app\n0::/app\n",
        mounts=[
            V1.format(group="/", point="/sys/fs/cgroup/cpu,cpuacct"),
            V2.format(group="/", point="/sys/fs/cgroup/unified"),
        ],
    )
    machine.write("/sys/fs/cgroup/unified/app/cgroup.procs", "1\n")
    machine.quota_v1("/sys/fs/cgroup/cpu,cpuacct/app", 200000)
    assert machine.count(8).n == 2


def test_mount_points_and_groups_with_spaces_and_colons(machine: Machine) -> None:
    machine.processes(
        cgroup="0::/my:group name\n", mounts=[V2.format(group="/", point="/mnt/c\\040group")]
    )
    machine.write("/mnt/c group/my:group name/cpu.max", "100000 100000\n")
    assert machine.count(8).n == 1


@pytest.mark.parametrize(
    ("siblings", "n_cores"),
    [
        (("0-1", "0-1", "2-3", "2-3"), 2),
        (("0,2", "1,3", "0,2", "1,3"), 2),
        (("0-1", "0-1", "2", "3"), 3),  # some laptops: big cores have two threads, small ones one
        (("0", "1", "2", "3"), 4),
    ],
)
def test_two_threads_of_a_core_are_one_core(
    machine: Machine, siblings: tuple[str, ...], n_cores: int
) -> None:
    machine.cores(*siblings)
    assert machine.count(4) == CpuCount(4, "CPU affinity", n_cores)


def test_older_systems_have_another_name_for_it(machine: Machine) -> None:
    machine.cores("0-1", "0-1", name="thread_siblings_list")
    assert machine.count(2).n_cores == 1


def test_only_cores_of_the_affinity_count(machine: Machine) -> None:
    machine.cores("0-1", "0-1", "2-3", "2-3")
    assert count_cpus(machine.root, {1, 2, 3}) == CpuCount(3, "CPU affinity", n_cores=2)


def test_a_quota_limits_cores_too(v2: Machine) -> None:
    v2.cores("0-1", "0-1", "2-3", "2-3", "4-5", "4-5")
    v2.write("/sys/fs/cgroup/user/app/cpu.max", "200000 100000\n")
    assert (v2.count(6).n, v2.count(6).n_cores) == (2, 2)
