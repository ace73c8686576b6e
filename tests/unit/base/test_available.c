/* Available memory from made-up systems: no limits, control groups of both versions, limits of groups above. */
#include "helper_assert.h"
#include "helper_files.h"

#include "base/available.h"

#include <sys/stat.h>

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    write_text(full, text);
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

TEST(nothing_known)
{
    assert_true(qn_available_memory_in("/nowhere") == UINT64_MAX);
    assert_true(qn_available_memory() > 1 << 20);
    assert_true(qn_available_addresses() > 1 << 20);
}
