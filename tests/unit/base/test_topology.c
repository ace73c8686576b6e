/* Processors of made-up systems: hybrid and SMT cores, sockets and nodes, cpusets and quotas, processors that are
 * offline, files that are missing or damaged. */
#include "helper_assert.h"
#include "helper_files.h"

#include "base/cpu.h"
#include "base/numa.h"
#include "base/topology.h"

#include <sys/wait.h>
#include <unistd.h>

static char root[64];
static qn_topology topology;

static void put(const char *path, const char *text)
{
    write_below(root, path, text);
}

static void put_cpu(int cpu, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, name);
    put(path, text);
}

static void new_root(const char *allowed, const char *online)
{
    char text[256];
    strcpy(root, "/tmp/quern-topology-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(text, sizeof text, "Name:\tquern\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed_list:\t0\n",
             allowed);
    put("/proc/self/status", text);
    put("/sys/devices/system/cpu/online", online);
}

static void end_root(void)
{
    assert_int_equal(remove_tree(root), 0);
}

static void assert_line(const char *expected)
{
    char line[256];
    qn_topology_read(root, &topology);
    qn_topology_print(&topology, line, sizeof line);
    assert_string_equal(line, expected);
}

/* Hardware threads 2i and 2i + 1 of core i. */
static void put_pairs(int first, int n)
{
    char text[32];
    for (int cpu = first; cpu < first + n; cpu++) {
        snprintf(text, sizeof text, "%d-%d\n", cpu & ~1, cpu | 1);
        put_cpu(cpu, "topology/thread_siblings_list", text);
    }
}

/* A laptop with 6 performance cores of two threads each, and 8 efficient cores. */
static void new_laptop(void)
{
    char text[32];
    new_root("0-19", "0-19\n");
    put_pairs(0, 12);
    for (int cpu = 12; cpu < 20; cpu++) {
        snprintf(text, sizeof text, "%d\n", cpu);
        put_cpu(cpu, "topology/thread_siblings_list", text);
    }
    put("/sys/devices/cpu_core/cpus", "0-11\n");
    put("/sys/devices/cpu_atom/cpus", "12-19\n");
    put("/sys/devices/system/node/online", "0\n");
    put("/sys/devices/system/node/node0/cpulist", "0-19\n");
}

TEST(intel_hybrid)
{
    new_laptop();
    assert_line("14 cores, 6 fast and 8 of 0.50 of their speed; 20 hardware threads");
    assert_int_equal(qn_cpu_best_threads_in(root), 14);
    assert_int_equal(topology.at[11].core, 10);
    assert_true(topology.at[11].speed == 1 && topology.at[12].speed == 0.5f);
    /* the capacity that newer kernels give counts more than the lists */
    for (int cpu = 0; cpu < 20; cpu++)
        put_cpu(cpu, "cpu_capacity", cpu < 12 ? "1024\n" : "768\n");
    assert_line("14 cores, 6 fast and 8 of 0.75 of their speed; 20 hardware threads");
    /* but only if all processors have one */
    put_cpu(3, "cpu_capacity", "\n");
    assert_line("14 cores, 6 fast and 8 of 0.50 of their speed; 20 hardware threads");
    put_cpu(3, "cpu_capacity", "99999999999999999999\n");
    assert_line("14 cores, 6 fast and 8 of 0.50 of their speed; 20 hardware threads");
    end_root();
}

/* What Linux's cpuid driver gives for a processor, as far as it is read: 16 bytes at each leaf's number. */
static void put_cpuid(int cpu, uint32_t features, uint32_t kind)
{
    enum { FEATURES = 7, KIND = 0x1a, REGISTERS = 16 };
    unsigned char leaves[KIND + REGISTERS] = { 0 };
    char path[64], full[128];
    memcpy(leaves + FEATURES + 12, &features, sizeof features); /* EDX */
    memcpy(leaves + KIND, &kind, sizeof kind);                  /* EAX */
    snprintf(path, sizeof path, "/dev/cpu/%d/cpuid", cpu);
    put(path, "");
    snprintf(full, sizeof full, "%s%s", root, path);
    write_file(full, leaves, sizeof leaves);
}

TEST(hybrid_by_cpuid)
{
    enum { HYBRID = 1 << 15, OTHERS = 0x7, CORE = 0x40000003, ATOM = 0x20000002 };
    new_root("0-5", "0-5\n");
    assert_line("6 cores");
    for (int cpu = 0; cpu < 6; cpu++)
        put_cpuid(cpu, HYBRID | OTHERS, cpu < 2 ? CORE : ATOM);
    assert_line("6 cores, 2 fast and 4 of 0.50 of their speed");
    assert_true(topology.at[1].speed == 1 && topology.at[2].speed == 0.5f);
    /* a kind that is not known, a processor that is not hybrid, a file that ends early: all count alike */
    put_cpuid(5, HYBRID, 0x10000000);
    assert_line("6 cores");
    put_cpuid(5, OTHERS, ATOM);
    assert_line("6 cores");
    put("/dev/cpu/5/cpuid", "short");
    assert_line("6 cores");
    /* lists and capacities count more */
    put_cpuid(5, HYBRID, ATOM);
    put("/sys/devices/cpu_core/cpus", "0-3\n");
    put("/sys/devices/cpu_atom/cpus", "4-5\n");
    assert_line("6 cores, 4 fast and 2 of 0.50 of their speed");
    for (int cpu = 0; cpu < 6; cpu++)
        put_cpu(cpu, "cpu_capacity", cpu < 5 ? "1024\n" : "512\n");
    assert_line("6 cores, 5 fast and 1 of 0.50 of their speed");
    end_root();
}

TEST(big_and_little)
{
    new_root("0-7", "0-7\n");
    for (int cpu = 0; cpu < 8; cpu++)
        put_cpu(cpu, "cpu_capacity", cpu < 4 ? "250\n" : cpu < 7 ? "870\n" : "1024\n");
    assert_line("8 cores, 1 fast, 3 of 0.85 of their speed and 4 of 0.24 of their speed");
    assert_int_equal(qn_cpu_best_threads_in(root), 8);
    /* the little ones alone, as one class */
    put("/proc/self/status", "Cpus_allowed_list:\t0-3\n");
    assert_line("4 cores");
    /* two that are so slow that the others would wait for them */
    new_root("0-9", "0-9\n");
    for (int cpu = 0; cpu < 10; cpu++)
        put_cpu(cpu, "cpu_capacity", cpu < 2 ? "80\n" : "1024\n");
    assert_line("10 cores, 8 fast and 2 of 0.08 of their speed");
    assert_int_equal(qn_cpu_best_threads_in(root), 8);
    end_root();
}

TEST(two_sockets)
{
    new_root("0-15", "0-15\n");
    /* hardware threads of a core are 8 apart */
    for (int cpu = 0; cpu < 16; cpu++) {
        char text[32];
        snprintf(text, sizeof text, "%d,%d\n", cpu % 8, cpu % 8 + 8);
        put_cpu(cpu, "topology/thread_siblings_list", text);
    }
    put("/sys/devices/system/node/online", "0-2\n");
    put("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    put("/sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    put("/sys/devices/system/node/node2/cpulist", "\n"); /* memory alone */
    assert_line("8 cores; 16 hardware threads; 2 NUMA nodes");
    assert_int_equal(qn_cpu_best_threads_in(root), 8);
    assert_int_equal(topology.at[4].node, 1);
    assert_int_equal(topology.at[8].node, 0);
    assert_int_equal(topology.at[15].core, 7);
    /* one node, by affinity */
    put("/proc/self/status", "Cpus_allowed_list:\t4-7,12-15\n");
    assert_line("4 cores; 8 hardware threads");
    end_root();
}

TEST(numa)
{
    bool picked[QN_MAX_PROCESSORS];
    new_root("0-5", "0-5\n");
    put("/sys/devices/system/node/online", "1,3\n");
    put("/sys/devices/system/node/node1/cpulist", "0,2,4\n");
    put("/sys/devices/system/node/node3/cpulist", "1,3,5,7\n");
    assert_line("6 cores; 2 NUMA nodes");
    assert_int_equal(qn_numa_pick(&topology, 3, picked), 3);
    assert_true(picked[1] && picked[3] && picked[5] && !picked[0] && !picked[7]);
    assert_int_equal(qn_numa_pick(&topology, 4, picked), 3);
    assert_true(picked[0] && picked[2] && picked[4] && !picked[1]);
    assert_int_equal(qn_numa_pick(&topology, 99, picked), 3);
    assert_true(picked[0]);
    /* nothing is done on one node, and without the option */
    assert_ok(qn_numa_apply(QN_NUMA_OFF, &topology));
    qn_topology one = topology;
    one.n_nodes = 1;
    assert_ok(qn_numa_apply(QN_NUMA_DISTRIBUTE, &one));
    assert_ok(qn_numa_apply(QN_NUMA_ISOLATE, &one));
    /* no processor of this system has a number that high */
    for (size_t i = 0; i < topology.n; i++)
        topology.at[i].id += QN_MAX_PROCESSORS - 8;
    assert_fails(qn_numa_apply(QN_NUMA_ISOLATE, &topology), QN_ERR_UNSUPPORTED, "not kept on a NUMA node");
    /* nor a node 63 */
    for (size_t i = 0; i < topology.n; i++)
        topology.at[i].node = 63;
    assert_fails(qn_numa_apply(QN_NUMA_DISTRIBUTE, &topology), QN_ERR_UNSUPPORTED, "not distributed over NUMA nodes");
    end_root();
}

/* Interleaving over the one node that there is, as far as the system allows it; in a process of its own. */
TEST(numa_of_this_system)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_topology_read("", &topology);
        topology.n_nodes = 2;
        const qn_status isolated = qn_numa_apply(QN_NUMA_ISOLATE, &topology);
        const qn_status distributed = qn_numa_apply(QN_NUMA_DISTRIBUTE, &topology);
        char *memory = malloc(1 << 24);
        memset(memory, 1, 1 << 24);
        _exit(isolated || (distributed && distributed != QN_ERR_UNSUPPORTED) || memory[12345] != 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(containers)
{
    new_laptop();
    put("/proc/self/cgroup", "0::/box/quern\n");
    put("/sys/fs/cgroup/box/cpuset.cpus.effective", "4-7,12-15\n");
    assert_line("6 cores, 2 fast and 4 of 0.50 of their speed; 8 hardware threads");
    put("/sys/fs/cgroup/box/quern/cpuset.cpus.effective", "4-5,13\n");
    assert_line("2 cores, 1 fast and 1 of 0.50 of their speed; 3 hardware threads");
    put("/sys/fs/cgroup/box/cpu.max", "100000 100000\n");
    assert_int_equal(qn_cpu_best_threads_in(root), 1);
    /* v1 */
    put("/proc/self/cgroup", "4:cpuset:/docker\n3:cpu,cpuacct:/docker\n");
    put("/sys/fs/cgroup/cpuset/docker/cpuset.effective_cpus", "12-17\n");
    assert_line("6 cores");
    assert_int_equal(qn_cpu_best_threads_in(root), 6);
    put("/sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
    assert_int_equal(qn_cpu_best_threads_in(root), 3);
    /* a cpuset without any of the processors is not believed */
    put("/sys/fs/cgroup/cpuset/docker/cpuset.effective_cpus", "100-103\n");
    assert_line("14 cores, 6 fast and 8 of 0.50 of their speed; 20 hardware threads");
    end_root();
}

TEST(offline)
{
    new_laptop();
    put("/sys/devices/system/cpu/online", "0-1,4,12\n");
    put("/sys/devices/cpu_core/cpus", "0-1,4\n");
    put("/sys/devices/cpu_atom/cpus", "12\n");
    put_cpu(4, "topology/thread_siblings_list", "4\n");
    assert_line("3 cores, 2 fast and 1 of 0.50 of their speed; 4 hardware threads");
    end_root();
}

TEST(damaged_files)
{
    static const char *const lists[] = { "",      "x",    "0-",           "-3", "3-1", "0,,1",
                                         "0-3 x", "1;2",  "0x3",          ",",  "0,",  "99999999999999999999",
                                         "0-3-5", "\xff", "0-3,1 000 000" };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        new_root(lists[i], lists[i]);
        qn_topology_read(root, &topology);
        assert_true(topology.n == 1 && topology.n_cores == 1 && topology.n_nodes == 1);
        end_root();
        new_root("0-3", lists[i]);
        put_cpu(1, "topology/thread_siblings_list", lists[i]);
        put_cpu(2, "cpu_capacity", lists[i]);
        put("/sys/devices/cpu_atom/cpus", lists[i]);
        put("/sys/devices/system/node/online", lists[i]);
        assert_line("4 cores");
        end_root();
    }
    /* beyond the limits */
    new_root("0-4000000000", "0-4000000000");
    put("/sys/devices/system/node/online", "0-1000");
    qn_topology_read(root, &topology);
    assert_int_equal(topology.n, QN_MAX_PROCESSORS);
    assert_int_equal(topology.n_nodes, 1);
    end_root();
    /* siblings that do not name the processor itself */
    new_root("0-3", "0-3");
    put_cpu(3, "topology/thread_siblings_list", "0-1");
    assert_line("4 cores");
    end_root();
}

TEST(parts)
{
    const float alike[] = { 1, 1, 1, 1 }, hybrid[] = { 1, 1, 0.5f, 0.5f };
    assert_true(qn_own_part(alike, 4) == 1);
    assert_true(qn_own_part(hybrid, 2) == 1);
    /* a sixth of the work for a slow one, of a quarter */
    assert_true(qn_own_part(hybrid, 4) > 0.666 && qn_own_part(hybrid, 4) < 0.667);
    assert_true(qn_own_part(alike, 0) == 1);
    assert_int_equal(qn_useful_cores(alike, 4), 4);
    assert_int_equal(qn_useful_cores(hybrid, 4), 4);
    assert_int_equal(qn_useful_cores(alike, 0), 1);
}

TEST(this_system)
{
    qn_topology_read("", &topology);
    assert_int_equal(topology.n, qn_cpu_threads());
    assert_int_equal(topology.n_cores, qn_cpu_cores());
    assert_in_range(qn_cpu_best_threads(), 1, qn_cpu_cores());
    qn_topology_read("/nowhere", &topology);
    assert_int_equal(topology.n, 1);
    assert_int_equal(qn_cpu_best_threads_in("/nowhere"), 1);
}
