/* Opening the device, its arrays and its launches. */
#include "vulkan.h"

#include <time.h>

static const qn_checked_operation operations[] = {
    { "rows", qn_check_vulkan_rows },           { "matmul", qn_check_vulkan_matmul },
    { "attention", qn_check_vulkan_attention }, { "prepare", qn_check_vulkan_prepare },
    { "deltanet", qn_check_vulkan_deltanet },   { "sample", qn_check_vulkan_sample },
};

enum { GUARD = 256 };

static struct {
    qn_vk *vk;
    qn_vk_commands commands;
} device;

static void close_device(void)
{
    if (device.vk)
        qn_vk_commands_free(device.vk, &device.commands);
    qn_vk_close(device.vk);
    device.vk = NULL;
}

static bool open_device(int ordinal)
{
    if (qn_vk_open(ordinal, &device.vk) || qn_vk_commands_create(device.vk, &device.commands)) {
        fprintf(stderr, "quern-check: --device vulkan: %s\n", qn_error_text());
        close_device();
        return false;
    }
    return true;
}

const qn_checked_backend qn_checked_vulkan = { .name = "vulkan",
                                               .open = open_device,
                                               .close = close_device,
                                               .operations = operations,
                                               .n_operations = QN_LENGTH(operations) };

/* ---- Arrays ---- */

static bool is_intact(const void *object)
{
    const qn_vk_array *a = object;
    uint8_t guards[2][GUARD];
    qn_assert_ok(qn_vk_read(device.vk, guards[0], &a->block, 0, GUARD));
    qn_assert_ok(qn_vk_read(device.vk, guards[1], &a->block, GUARD + a->bytes, GUARD));
    for (size_t i = 0; i < GUARD; i++)
        if (guards[0][i] != 0xff || guards[1][i] != 0xff)
            return false;
    return true;
}

static void release(void *object)
{
    qn_vk_array *a = object;
    qn_vk_free(device.vk, &a->block);
    free(a);
}

qn_vk_array *qn_vk_new_array(size_t bytes)
{
    const size_t all = bytes + 2 * GUARD;
    qn_vk_array *a = calloc(1, sizeof *a);
    uint8_t *poison = malloc(all);
    if (!a || !poison)
        qn_assert_ok(qn_fail(QN_ERR_MEMORY, "no memory for an array"));
    memset(poison, 0xff, all);
    qn_assert_ok(qn_vk_alloc(device.vk, all, QN_VK_ON_DEVICE, "quern-check", &a->block));
    qn_assert_ok(qn_vk_write(device.vk, &a->block, 0, poison, all));
    free(poison);
    a->at = a->block.address + GUARD;
    a->bytes = bytes;
    qn_own(a, bytes, is_intact, release);
    return a;
}

qn_vk_array *qn_vk_array_of(const void *memory)
{
    qn_vk_array *a = qn_vk_new_array(qn_bytes_of(memory));
    qn_assert_ok(qn_vk_write(device.vk, &a->block, GUARD, memory, a->bytes));
    return a;
}

void *qn_vk_contents(const qn_vk_array *array)
{
    void *copy = qn_new(array->bytes, 1);
    qn_assert_ok(qn_vk_read(device.vk, copy, &array->block, GUARD, array->bytes));
    return copy;
}

const qn_vk_info *qn_vk_device_info(void)
{
    return qn_vk_get_info(device.vk);
}

void qn_vk_poison(const qn_vk_array *array, size_t at, size_t bytes)
{
    uint8_t *poison = malloc(bytes);
    if (!poison)
        qn_assert_ok(qn_fail(QN_ERR_MEMORY, "no memory for poison"));
    memset(poison, 0xff, bytes);
    qn_assert_ok(qn_vk_write(device.vk, &array->block, GUARD + at, poison, bytes));
    free(poison);
}

/* ---- Launches ---- */

void qn_vk_launch_now(qn_vk_launch launch, const void *args)
{
    qn_assert_ok(qn_vk_begin(device.vk, &device.commands));
    qn_assert_ok(qn_vk_dispatch(device.vk, &device.commands, &launch, args));
    qn_assert_ok(qn_vk_end(device.vk, &device.commands));
    qn_assert_ok(qn_vk_run(device.vk, &device.commands));
}

/* A device works while the host waits: CPU time, by which qn_bench measures, is not the time that it takes. */
static double run_seconds(void)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    qn_assert_ok(qn_vk_run(device.vk, &device.commands));
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
}

/* Times commands; returns the median of a run's seconds. */
static double bench_commands(void)
{
    enum { RUNS = 5 };
    double seconds[RUNS];
    qn_assert_ok(qn_vk_end(device.vk, &device.commands));
    (void)run_seconds();
    for (int i = 0; i < RUNS; i++)
        seconds[i] = run_seconds();
    return qn_median(seconds, RUNS);
}

static void record_launch(const qn_vk_launch *launch, const void *args)
{
    qn_assert_ok(qn_vk_dispatch(device.vk, &device.commands, launch, args));
    qn_vk_barrier(device.vk, &device.commands);
}

void qn_vk_bench_launches(const char *op, const char *shape, double units, const char *unit, qn_vk_launch launch,
                          const void *args, size_t n_args)
{
    enum { LAUNCHES = 100 };
    if (!qn_bench_selected(shape))
        return;
    qn_assert_ok(qn_vk_begin(device.vk, &device.commands));
    for (size_t i = 0; i < LAUNCHES; i++)
        record_launch(&launch, (const char *)args + i % n_args * launch.shader->args_bytes);
    const double seconds = bench_commands() / LAUNCHES;
    qn_report_rate(op, "vulkan", shape, seconds, units / seconds, unit, 0);
}

void qn_vk_bench_steps(const char *op, const char *shape, double units, const char *unit, const qn_vk_step *steps,
                       size_t n_steps, size_t n_parts)
{
    qn_assert_ok(qn_vk_begin(device.vk, &device.commands));
    for (size_t i = 0; i < n_steps; i++)
        record_launch(&steps[i].launch, steps[i].args);
    const double seconds = bench_commands() / (double)n_parts;
    qn_report_rate(op, "vulkan", shape, seconds, units / seconds, unit, 0);
}

void qn_vk_bench_launch(const char *op, const char *shape, double units, const char *unit, qn_vk_launch launch,
                        const void *args)
{
    qn_vk_bench_launches(op, shape, units, unit, launch, args, 1);
}
