/* Available memory and processor time from made-up systems: no limits, control groups of both versions, limits of
 * groups above. */
#include "helper_assert.h"
#include "helper_files.h"

#include "base/available.h"
#include "base/cpu.h"

static char root[64];

static void put(const char *path, const char *text)
{
    write_below(root, path, text);
}

static void new_root(void)
{
    strcpy(root, "/tmp/quern-available-XXXXXX");
    assert_non_null(mkdtemp(root));
    put("/proc/meminfo", "MemTotal:       8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n");
}

static void end_root(void)
{
    assert_int_equal(remove_tree(root), 0);
}

TEST(systems)
{
    new_root();
    assert_int_equal(qn_available_memory_in(root), 4000 * 1024);
    /* v2: the group above has the smaller limit; inactive files count as free. */
    put("/proc/self/cgroup", "0::/user/quern\n");
    put("/sys/fs/cgroup/user/quern/memory.max", "max\n");
    put("/sys/fs/cgroup/user/quern/memory.current", "5000\n");
    assert_int_equal(qn_available_memory_in(root), 4000 * 1024);
    put("/sys/fs/cgroup/user/memory.max", "9000\n");
    put("/sys/fs/cgroup/user/memory.current", "8000\n");
    assert_int_equal(qn_available_memory_in(root), 1000);
    put("/sys/fs/cgroup/user/memory.stat", "anon 100\ninactive_file 3000\nactive_file 77\n");
    assert_int_equal(qn_available_memory_in(root), 4000);
    put("/sys/fs/cgroup/user/memory.current", "12500\n");
    assert_int_equal(qn_available_memory_in(root), 0);
    /* v1 */
    put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker\n0::/\n");
    put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "700000\n");
    put("/sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "300000\n");
    assert_int_equal(qn_available_memory_in(root), 400000);
    put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(qn_available_memory_in(root), 4000 * 1024);
    end_root();
}

static void assert_quota(double expected)
{
    const double found = qn_cpu_quota_in(root);
    if (found < expected - 1e-9 || found > expected + 1e-9)
        fail_msg("quota %g, expected %g", found, expected);
}

TEST(quotas)
{
    new_root();
    assert_quota(0);
    /* v2: the smallest of the group and those above it */
    put("/proc/self/cgroup", "0::/user/quern\n");
    assert_quota(0);
    put("/sys/fs/cgroup/user/quern/cpu.max", "max 100000\n");
    assert_quota(0);
    put("/sys/fs/cgroup/user/cpu.max", "250000 100000\n");
    assert_quota(2.5);
    put("/sys/fs/cgroup/user/quern/cpu.max", "5000 10000\n");
    assert_quota(0.5);
    put("/sys/fs/cgroup/user/quern/cpu.max", "300000 100000\n");
    assert_quota(2.5);
    put("/sys/fs/cgroup/user/quern/cpu.max", "nonsense\n");
    assert_quota(2.5);
    put("/sys/fs/cgroup/user/quern/cpu.max", "0 0\n");
    assert_quota(2.5);
    put("/sys/fs/cgroup/user/quern/cpu.max", "");
    assert_quota(2.5);
    /* v1: its controller may share a mount; in a container the group is the mount itself */
    put("/proc/self/cgroup", "9:cpuset:/x\n5:cpu,cpuacct:/docker/1\n4:memory:/docker\n0::/\n");
    put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
    assert_quota(0);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    assert_quota(0); /* no period */
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    assert_quota(3);
    put("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "100000\n");
    assert_quota(1);
    put("/proc/self/cgroup", "9:cpuset:/x\n5:cpuacct:/docker/1\n6:notcpu,cpus:/docker/1\n");
    assert_quota(0);
    end_root();
}

TEST(nothing_known)
{
    assert_true(qn_available_memory_in("/nowhere") == UINT64_MAX);
    assert_true(qn_available_memory() > 1 << 20);
    assert_true(qn_available_addresses() > 1 << 20);
    assert_true(qn_cpu_quota_in("/nowhere") == 0);
    assert_in_range(qn_cpu_best_threads(), 1, qn_cpu_cores());
}
