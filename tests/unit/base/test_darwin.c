/* The logic of src/base/darwin/ on this system, with macOS' functions played by this file: processors of Macs, features
 * of ARM, available memory, and waiting with and without the function of macOS 14.4. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "base/topology.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

/* Their names here; the library has those of this system. */
#define qn_topology_read darwin_topology_read
#define qn_cpu_threads darwin_cpu_threads
#define qn_arm_has_dotprod darwin_arm_has_dotprod
#define qn_arm_has_i8mm darwin_arm_has_i8mm
#define qn_available_memory_in darwin_available_memory_in
#define qn_available_memory darwin_available_memory
#define qn_available_addresses darwin_available_addresses
#define qn_random_bytes darwin_random_bytes
#define qn_wait_value darwin_wait_value
#define qn_wake_value darwin_wake_value
#define dlsym fake_dlsym
static void *fake_dlsym(void *handle, const char *name);

void darwin_topology_read(const char *root, qn_topology *t);
int darwin_cpu_threads(void);

#include "base/darwin/arm_features.c"
#include "base/darwin/available.c"
#include "base/darwin/random.c"
#include "base/darwin/topology.c"
#include "base/darwin/wait_value.c"

/* ---- macOS ---- */

static struct {
    const char *name;
    int32_t value;
} numbers[16];

int sysctlbyname(const char *name, void *value, size_t *size, void *new_value, size_t new_size)
{
    assert_null(new_value);
    assert_int_equal(new_size, 0);
    assert_int_equal(*size, sizeof(int32_t));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && numbers[i].name; i++)
        if (strcmp(numbers[i].name, name) == 0)
            return memcpy(value, &numbers[i].value, sizeof(int32_t)), 0;
    return -1;
}

static void set_number(const char *name, int32_t value)
{
    size_t i = 0;
    while (numbers[i].name)
        i++;
    assert_true(i + 1 < sizeof numbers / sizeof *numbers);
    numbers[i].name = name;
    numbers[i].value = value;
}

uintptr_t vm_kernel_page_size = 16384;
static int n_ports;
static kern_return_t statistics_result;

mach_port_t mach_host_self(void)
{
    n_ports++;
    return 7;
}

mach_port_t mach_task_self(void)
{
    return 1;
}

kern_return_t mach_port_deallocate(mach_port_t task, mach_port_t port)
{
    assert_int_equal(task, 1);
    assert_int_equal(port, 7);
    n_ports--;
    return KERN_SUCCESS;
}

kern_return_t host_statistics64(mach_port_t host, int flavour, host_info64_t info, mach_msg_type_number_t *count)
{
    const vm_statistics64_data_t pages = { .free_count = 1000,
                                           .active_count = 1 << 20,
                                           .inactive_count = 300000,
                                           .wire_count = 1 << 20,
                                           .purgeable_count = 24 };
    assert_int_equal(host, 7);
    assert_int_equal(flavour, HOST_VM_INFO64);
    assert_int_equal(*count, HOST_VM_INFO64_COUNT);
    memcpy(info, &pages, sizeof pages);
    return statistics_result;
}

static bool is_new_system;
static atomic_int n_system_waits, n_system_wakes;

static int system_wait(void *address, uint64_t value, size_t size, uint32_t flags)
{
    assert_int_equal(size, 4);
    assert_int_equal(flags, 0);
    n_system_waits++;
    while (atomic_load((atomic_uint *)address) == value)
        ;
    return 0;
}

static int system_wake(void *address, size_t size, uint32_t flags)
{
    assert_non_null(address);
    assert_int_equal(size, 4);
    assert_int_equal(flags, 0);
    n_system_wakes++;
    return 0;
}

static void *fake_dlsym(void *handle, const char *name)
{
    assert_ptr_equal(handle, RTLD_DEFAULT);
    if (!is_new_system)
        return NULL;
    if (strcmp(name, "os_sync_wait_on_address") == 0)
        return (void *)system_wait;
    assert_string_equal(name, "os_sync_wake_by_address_all");
    return (void *)system_wake;
}

/* ---- Tests ---- */

static void forget_numbers(void)
{
    memset(numbers, 0, sizeof numbers);
}

/* An M1 Pro: eight fast cores and two slow ones. */
TEST(levels_of_performance)
{
    qn_topology t;
    forget_numbers();
    set_number("hw.nperflevels", 2);
    set_number("hw.perflevel0.physicalcpu", 8);
    set_number("hw.perflevel0.logicalcpu", 8);
    set_number("hw.perflevel1.physicalcpu", 2);
    set_number("hw.perflevel1.logicalcpu", 2);
    set_number("hw.logicalcpu", 10);
    darwin_topology_read("", &t);
    assert_int_equal(t.n, 10);
    assert_int_equal(t.n_cores, 10);
    assert_int_equal(t.n_nodes, 1);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(t.at[i].id, i);
        assert_int_equal(t.at[i].core, i);
        assert_true(i < 8 ? t.at[i].speed == 1 : t.at[i].speed > 0 && t.at[i].speed < 1);
    }
    assert_int_equal(darwin_cpu_threads(), 10);
}

/* An Intel Mac before macOS 12 tells no levels; its cores have two hardware threads. */
TEST(hardware_threads)
{
    qn_topology t;
    forget_numbers();
    set_number("hw.physicalcpu", 4);
    set_number("hw.logicalcpu", 8);
    darwin_topology_read("", &t);
    assert_int_equal(t.n, 8);
    assert_int_equal(t.n_cores, 4);
    for (int i = 0; i < 8; i++)
        assert_int_equal(t.at[i].core, i / 2 * 2);
}

TEST(nothing_is_known)
{
    qn_topology t;
    forget_numbers();
    darwin_topology_read("", &t);
    assert_int_equal(t.n, 1);
    set_number("hw.nperflevels", 2);
    set_number("hw.perflevel0.logicalcpu", -3);
    darwin_topology_read("", &t);
    assert_int_equal(t.n, 1);
    set_number("hw.logicalcpu", 10);
    darwin_topology_read("/elsewhere", &t);
    assert_int_equal(t.n, 1);
}

TEST(features_of_arm)
{
    forget_numbers();
    assert_false(darwin_arm_has_dotprod());
    assert_false(darwin_arm_has_i8mm());
    set_number("hw.optional.arm.FEAT_DotProd", 1);
    set_number("hw.optional.arm.FEAT_I8MM", 0);
    assert_true(darwin_arm_has_dotprod());
    assert_false(darwin_arm_has_i8mm());
}

TEST(available_memory)
{
    assert_true(darwin_available_memory() == (uint64_t)301024 * 16384);
    statistics_result = 5;
    assert_true(darwin_available_memory() == UINT64_MAX);
    statistics_result = KERN_SUCCESS;
    assert_true(darwin_available_memory_in("/elsewhere") == UINT64_MAX);
    assert_int_equal(n_ports, 0);
}

TEST(random_bytes)
{
    uint8_t a[256] = { 0 }, b[256] = { 0 };
    assert_true(darwin_random_bytes(a, sizeof a));
    assert_true(darwin_random_bytes(b, sizeof b));
    assert_memory_not_equal(a, b, sizeof a);
}

static atomic_uint ball;
enum { TURNS = 2000 };

/* Waits until the ball is at an odd number, and throws it back. */
static void *throw_back(void *unused)
{
    for (unsigned turn = 0; turn < TURNS; turn++) {
        while (atomic_load(&ball) != 2 * turn + 1)
            darwin_wait_value(&ball, 2 * turn);
        atomic_store(&ball, 2 * turn + 2);
        darwin_wake_value(&ball);
    }
    return unused;
}

/* A wake that is missed would end in the test's time limit. */
static void play(void)
{
    pthread_t other;
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    atomic_store(&ball, 0);
    assert_int_equal(pthread_create(&other, NULL, throw_back, NULL), 0);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        atomic_store(&ball, 2 * turn + 1);
        darwin_wake_value(&ball);
        while (atomic_load(&ball) == 2 * turn + 1)
            darwin_wait_value(&ball, 2 * turn + 1);
    }
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&ball), 2 * TURNS);
}

TEST(waiting_before_14_4)
{
    is_new_system = false;
    play();
    assert_int_equal(n_system_waits, 0);
    assert_int_equal(n_system_wakes, 0);
}

TEST(waiting_since_14_4)
{
    is_new_system = true;
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    atomic_store(&ball, 4);
    darwin_wait_value(&ball, 3);
    darwin_wake_value(&ball);
    assert_int_equal(n_system_waits, 1);
    assert_int_equal(n_system_wakes, 1);
}
