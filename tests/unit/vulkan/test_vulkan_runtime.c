/* Memory, commands and the pool of a Vulkan device, on the drivers that compute on the CPU. Skipped without one. */
#include "helper_assert.h"
#include "vulkan/helper_vulkan.h"

#include "vulkan/kernels/kernels.h"
#include "vulkan/runtime/context.h"
#include "vulkan/runtime/pool_memory.h"

static void fill_pattern(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7 + (i >> 8));
}

/* Copies with and without a mapping, longer than the staging buffer, at odd places. */
TEST(copies)
{
    enum { BYTES = (8 << 20) + 12, AT = 8 };
    uint8_t *written = malloc(BYTES), *read = malloc(BYTES);
    assert_non_null(written);
    assert_non_null(read);
    fill_pattern(written, BYTES);
    for (int is_staged = 0; is_staged < 2; is_staged++) {
        label("%s", is_staged ? "staged" : "mapped");
        if (is_staged)
            setenv("QN_VULKAN_STAGING", "1", 1);
        qn_vk *vk;
        qn_vk_buffer buffer;
        assert_ok(qn_vk_open(0, &vk));
        assert_ok(qn_vk_alloc(vk, BYTES + AT + 4, QN_VK_ON_DEVICE, "test", &buffer));
        assert_true((buffer.host == NULL) == is_staged);
        assert_true(buffer.address != 0);
        assert_ok(qn_vk_zero(vk, &buffer));
        assert_ok(qn_vk_write(vk, &buffer, AT, written, BYTES));
        memset(read, 0xff, BYTES);
        assert_ok(qn_vk_read(vk, read, &buffer, AT, BYTES));
        assert_memory_equal(read, written, BYTES);
        assert_ok(qn_vk_read(vk, read, &buffer, 0, AT));
        for (size_t i = 0; i < AT; i++)
            assert_int_equal(read[i], 0);
        qn_vk_free(vk, &buffer);
        assert_fails(qn_vk_alloc(vk, SIZE_MAX / 2, QN_VK_ON_DEVICE, "much", &buffer), QN_ERR_MEMORY, "much: ");
        assert_true(buffer.handle == VK_NULL_HANDLE);
        qn_vk_close(vk);
        unsetenv("QN_VULKAN_STAGING");
    }
    free(written);
    free(read);
}

/* Items across granules, which lie anywhere: zeroed when they are committed, copied to the host, from it and within. */
TEST(pool)
{
    enum { BYTES = 3 << 20, ITEMS = 6 };
    qn_vk *vk;
    qn_vk_pool_memory context;
    qn_pool_memory memory;
    qn_pool *pool;
    qn_pool_class *class;
    uint32_t items[ITEMS];
    uint8_t *a = malloc(BYTES), *b = malloc(BYTES);
    assert_non_null(a);
    assert_non_null(b);
    assert_ok(qn_vk_open(0, &vk));
    assert_ok(qn_vk_pool_memory_open(vk, 32 << 20, 1, &context, &memory));
    assert_int_equal(memory.granule, 2 << 20);
    assert_ok(qn_pool_create(&memory, 32 << 20, 0, &pool));
    assert_ok(qn_pool_add_class(pool, "item", BYTES, &class));
    assert_true(qn_pool_base(class) != 0);
    for (size_t i = 0; i < ITEMS; i++)
        assert_ok(qn_pool_take(class, &items[i]));
    assert_ok(qn_vk_pool_read(&context, b, qn_pool_address(class, items[1]), BYTES));
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(b[i], 0);
    fill_pattern(a, BYTES);
    assert_ok(qn_vk_pool_write(&context, qn_pool_address(class, items[1]), a, BYTES));
    assert_ok(qn_vk_pool_copy(&context, qn_pool_address(class, items[4]), qn_pool_address(class, items[1]), BYTES));
    assert_ok(qn_vk_pool_read(&context, b, qn_pool_address(class, items[4]), BYTES));
    assert_memory_equal(a, b, BYTES);
    assert_ok(qn_vk_pool_read(&context, b, qn_pool_address(class, items[5]), BYTES));
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(b[i], 0);
    for (size_t i = 0; i < ITEMS; i++)
        qn_pool_drop(class, items[i]);
    for (size_t i = 0; i < context.n_granules; i++)
        assert_true(!context.granules[i].handle);
    qn_pool_free(pool);
    qn_vk_pool_memory_close(&context);
    qn_vk_close(vk);
    free(a);
    free(b);
}

/* ---- Failures of a driver ---- */

static VkResult VKAPI_PTR submit_to_lost(VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence)
{
    (void)queue;
    (void)n;
    (void)infos;
    (void)fence;
    return VK_ERROR_DEVICE_LOST;
}

TEST(a_lost_device_stays_lost)
{
    qn_vk *vk;
    qn_vk_commands commands;
    assert_ok(qn_vk_open(0, &vk));
    assert_ok(qn_vk_commands_create(vk, &commands));
    assert_ok(qn_vk_begin(vk, &commands));
    assert_ok(qn_vk_end(vk, &commands));
    assert_ok(qn_vk_run(vk, &commands));
    const PFN_vkQueueSubmit submit = vk->call.vkQueueSubmit;
    vk->call.vkQueueSubmit = submit_to_lost;
    assert_fails(qn_vk_run(vk, &commands), QN_ERR_DEVICE, "was lost (vkQueueSubmit): its driver was reset");
    vk->call.vkQueueSubmit = submit;
    assert_fails(qn_vk_run(vk, &commands), QN_ERR_DEVICE, "the program has to be started again");
    qn_vk_commands_free(vk, &commands);
    qn_vk_close(vk);
}

static VkResult VKAPI_PTR allocate_nothing(VkDevice device, const VkMemoryAllocateInfo *info,
                                           const VkAllocationCallbacks *allocator, VkDeviceMemory *memory)
{
    (void)device;
    (void)info;
    (void)allocator;
    (void)memory;
    return VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

TEST(exhausted_memory_says_what_fits)
{
    qn_vk *vk;
    qn_vk_buffer first, second;
    assert_ok(qn_vk_open(0, &vk));
    assert_ok(qn_vk_alloc(vk, 256 << 20, QN_VK_ON_DEVICE, "weights", &first));
    const PFN_vkAllocateMemory allocate = vk->call.vkAllocateMemory;
    vk->call.vkAllocateMemory = allocate_nothing;
    assert_fails(qn_vk_alloc(vk, 4096, QN_VK_ON_DEVICE, "weights", &second), QN_ERR_MEMORY,
                 "weights: 4096 bytes do not fit: ");
    assert_non_null(strstr(qn_error_text(), "GiB, of which quern has taken 0.2"));
    vk->call.vkAllocateMemory = allocate;
    assert_true(second.handle == VK_NULL_HANDLE);
    qn_vk_free(vk, &first);
    qn_vk_close(vk);
}

/* Adds 1 to a float by a product of 1 x 1: a row of two weights, of which one is not 0. */
struct adder {
    qn_vk_buffer memory; /* codes, acts, out */
    qn_vk_matmul_args args;
};

static void create_adder(qn_vk *vk, struct adder *a)
{
    const float ones[2] = { 1, 0 };
    const uint32_t codes[QN_VK_TILE_ROWS] = { 0x3c00 }; /* 1 and 0 in fp16 */
    assert_ok(qn_vk_alloc(vk, 256, QN_VK_ON_DEVICE, "test", &a->memory));
    assert_ok(qn_vk_zero(vk, &a->memory));
    assert_ok(qn_vk_write(vk, &a->memory, 0, codes, sizeof codes));
    assert_ok(qn_vk_write(vk, &a->memory, 64, ones, sizeof ones));
    a->args = (qn_vk_matmul_args){ .codes = a->memory.address,
                                   .acts = a->memory.address + 64,
                                   .outs = { a->memory.address + 128 },
                                   .first_tiles = { 0, UINT32_MAX, UINT32_MAX, UINT32_MAX },
                                   .n_rows = { 1 },
                                   .strides = { 1 },
                                   .n_cols = 2,
                                   .n_tokens = 1,
                                   .n_tiles = 1,
                                   .accumulate = 1 };
}

static qn_vk_launch launch_of(const qn_vk *vk, const struct adder *a)
{
    const qn_vk_format f16 = qn_vk_format_of(qn_type_find(QN_TYPE_F16));
    const qn_vk_matmul_kind kind = { .planes = 1 };
    return qn_vk_matmul(&f16, &qn_vk_get_info(vk)->features, &kind, &a->args);
}

static float sum_of(qn_vk *vk, const struct adder *a)
{
    float sum;
    assert_ok(qn_vk_read(vk, &sum, &a->memory, 128, sizeof sum));
    return sum;
}

/* Commands are recorded once and run many times; recorded again they replace the old ones. */
TEST(commands_run_again)
{
    qn_vk *vk;
    qn_vk_commands commands;
    struct adder a;
    assert_ok(qn_vk_open(0, &vk));
    assert_ok(qn_vk_commands_create(vk, &commands));
    create_adder(vk, &a);
    const qn_vk_launch launch = launch_of(vk, &a);
    for (int times = 1; times < 3; times++) {
        assert_ok(qn_vk_begin(vk, &commands));
        for (int i = 0; i < times; i++) {
            assert_ok(qn_vk_dispatch(vk, &commands, &launch, &a.args));
            qn_vk_barrier(vk, &commands);
        }
        assert_ok(qn_vk_end(vk, &commands));
        for (int i = 0; i < 3; i++)
            assert_ok(qn_vk_run(vk, &commands));
    }
    assert_true(sum_of(vk, &a) == 3 * 1 + 3 * 2);
    qn_vk_free(vk, &a.memory);
    qn_vk_commands_free(vk, &commands);
    qn_vk_close(vk);
}

/* QN_VULKAN_REVERSE: a result differs where a barrier is missing, and does not where there is one. */
TEST(reverse_order_shows_missing_barriers)
{
    qn_vk *vk;
    assert_ok(qn_vk_open(0, &vk));
    for (int has_barrier = 0; has_barrier < 2; has_barrier++) {
        qn_vk_commands commands;
        struct adder a;
        setenv("QN_VULKAN_REVERSE", "1", 1);
        assert_ok(qn_vk_commands_create(vk, &commands));
        unsetenv("QN_VULKAN_REVERSE");
        create_adder(vk, &a);
        const qn_vk_launch launch = launch_of(vk, &a);
        assert_ok(qn_vk_begin(vk, &commands));
        assert_ok(qn_vk_dispatch(vk, &commands, &launch, &a.args)); /* adds 1 */
        if (has_barrier)
            qn_vk_barrier(vk, &commands);
        a.args.accumulate = 0;
        assert_ok(qn_vk_dispatch(vk, &commands, &launch, &a.args)); /* sets to 1 */
        assert_ok(qn_vk_end(vk, &commands));
        assert_ok(qn_vk_run(vk, &commands));
        assert_true(sum_of(vk, &a) == (has_barrier ? 1 : 2));
        qn_vk_free(vk, &a.memory);
        qn_vk_commands_free(vk, &commands);
    }
    qn_vk_close(vk);
}

/* The validation layer sees a copy that does not wait for another one, and the next submission fails. */
/* Opens a device with validation, or skips the test. */
static qn_vk *open_validated(const char *how)
{
    qn_vk *vk;
    setenv("QN_VULKAN_VALIDATE", how, 1);
    const qn_status status = qn_vk_open(0, &vk);
    unsetenv("QN_VULKAN_VALIDATE");
    if (status != QN_OK && strstr(qn_error_text(), "VK_ERROR_LAYER_NOT_PRESENT") && !getenv("QN_VULKAN_REQUIRED"))
        skip();
    assert_ok(status);
    return vk;
}

/* A read after the end of a buffer, of the next float. */
TEST(validation_finds_addresses_of_nothing)
{
    qn_vk *vk = open_validated("gpu");
    struct adder adder;
    qn_vk_commands commands;
    create_adder(vk, &adder);
    assert_ok(qn_vk_commands_create(vk, &commands));
    for (int is_right = 1; is_right >= 0; is_right--) {
        adder.args.acts = adder.memory.address + (is_right ? 64 : 256);
        const qn_vk_launch launch = launch_of(vk, &adder);
        assert_ok(qn_vk_begin(vk, &commands));
        assert_ok(qn_vk_dispatch(vk, &commands, &launch, &adder.args));
        assert_ok(qn_vk_end(vk, &commands));
        if (is_right)
            assert_ok(qn_vk_run(vk, &commands));
        else
            assert_fails(qn_vk_run(vk, &commands), QN_ERR_DEVICE, "out of bounds");
    }
    qn_vk_commands_free(vk, &commands);
    qn_vk_free(vk, &adder.memory);
    qn_vk_close(vk);
}

TEST(validation_finds_a_hazard)
{
    qn_vk_buffer a, b;
    qn_vk_commands commands;
    qn_vk *vk = open_validated("1");
    assert_ok(qn_vk_alloc(vk, 64, QN_VK_ON_DEVICE, "test", &a));
    assert_ok(qn_vk_alloc(vk, 64, QN_VK_ON_DEVICE, "test", &b));
    assert_ok(qn_vk_commands_create(vk, &commands));
    for (int has_barrier = 1; has_barrier >= 0; has_barrier--) {
        assert_ok(qn_vk_begin(vk, &commands));
        qn_vk_copy(vk, &commands, &a, 0, &b, 0, 64);
        if (has_barrier)
            qn_vk_barrier_of_copies(vk, &commands);
        qn_vk_copy(vk, &commands, &b, 0, &a, 0, 64);
        assert_ok(qn_vk_end(vk, &commands));
        if (has_barrier)
            assert_ok(qn_vk_run(vk, &commands));
        else
            assert_fails(qn_vk_run(vk, &commands), QN_ERR_DEVICE, "SYNC-HAZARD");
    }
    qn_vk_commands_free(vk, &commands);
    qn_vk_free(vk, &a);
    qn_vk_free(vk, &b);
    qn_vk_close(vk);
}

/* Whatever a device has, the arrays of matmuls fit. Teams of one row are a multiple of eight lanes, of which each has
 * at most one result; others are powers of two that no shader's array is too small for: a lane has at most four
 * results. */
TEST(matmuls_fit_in_devices)
{
    static const uint32_t kib[] = { 16, 32, 48, 227 }, lanes[] = { 128, 192, 256, 1024 };
    static const size_t cols[] = { 128, 1024, 4096, 17408 };
    const qn_vk_format q1_0 = qn_vk_format_of(qn_type_find(QN_TYPE_Q1_0));
    size_t largest = 0;
    for (size_t i = 0; i < 4 * 4 * 4 * QN_VK_FEW_ROWS * 3; i++) {
        const qn_vk_features features = { .lanes = lanes[i % 4], .shared_bytes = kib[i / 4 % 4] << 10 };
        const bool is_row = i < 192;
        const qn_vk_matmul_kind kind = { .epilogue = (qn_vk_epilogue)(i / 64 % 3),
                                         .planes = 1,
                                         .next_planes = 1,
                                         .rotated = is_row && i / 64 ? QN_VK_MAX_ROTATED : 0 };
        const qn_vk_matmul_args args = { .n_cols = (uint32_t)cols[i / 16 % 4],
                                         .n_tokens = (uint32_t)(i / 192 + 1),
                                         .n_tiles = 64,
                                         .first_tiles = { 0, 32, UINT32_MAX, UINT32_MAX } };
        const qn_vk_launch l = qn_vk_matmul(&q1_0, &features, &kind, &args);
        const uint32_t team = l.constants[4], workgroup = l.constants[5];
        label("%u lanes, %u bytes, %u columns, %u rows, epilogue %d: teams of %u of %u", features.lanes,
              features.shared_bytes, args.n_cols, args.n_tokens, (int)kind.epilogue, team, workgroup);
        assert_true(team && workgroup % team == 0 && (is_row ? team % 8 == 0 : !(team & (team - 1))));
        assert_true(workgroup <= features.lanes);
        assert_true(qn_vk_matmul_shared(&l) <= features.shared_bytes);
        assert_true(is_row || workgroup / team * QN_VK_TILE_ROWS * l.constants[1] <= 4 * workgroup);
        assert_true(!is_row || workgroup / team * QN_VK_TILE_ROWS * 2 <= workgroup);
        if (largest < qn_vk_matmul_shared(&l))
            largest = qn_vk_matmul_shared(&l);
    }
    assert_in_range(largest, 37120, 37120 + 128); /* 256 lanes and 8 rows, where there is room: counted by hand */
}

/* Rope of heads, of one row: a workgroup has QN_VK_HEADS_UNIT results. */
TEST(matmuls_with_heads_fit_in_devices)
{
    static const uint32_t kib[] = { 16, 32, 48, 227 }, lanes[] = { 128, 192, 256, 1024 };
    static const size_t cols[] = { 128, 1024, 4096, 17408 };
    const qn_vk_format q1_0 = qn_vk_format_of(qn_type_find(QN_TYPE_Q1_0));
    for (size_t i = 0; i < 4 * 4 * 4 * 2; i++) {
        const qn_vk_features features = { .lanes = lanes[i % 4], .shared_bytes = kib[i / 4 % 4] << 10 };
        const qn_vk_matmul_kind kind = { .epilogue = QN_VK_EPILOGUE_HEADS, .planes = 1 + (uint32_t)(i / 64) };
        const qn_vk_matmul_args args = {
            .n_cols = (uint32_t)cols[i / 16 % 4], .n_tokens = 1, .n_tiles = 64, .first_tiles = { 0, 32, 48, UINT32_MAX }
        };
        const qn_vk_launch l = qn_vk_matmul(&q1_0, &features, &kind, &args);
        const uint32_t team = l.constants[4], workgroup = l.constants[5];
        label("%u lanes, %u bytes, %u columns: teams of %u of %u", features.lanes, features.shared_bytes, args.n_cols,
              team, workgroup);
        assert_true(team % 8 == 0 && workgroup / team * QN_VK_TILE_ROWS == QN_VK_HEADS_UNIT);
        assert_true(workgroup <= features.lanes);
        assert_true(qn_vk_matmul_shared(&l) <= features.shared_bytes);
    }
}

/* Of more rows than have an epilogue, with matrices and without. */
TEST(matmuls_of_many_rows_fit_in_devices)
{
    static const uint32_t kib[] = { 16, 32, 48, 227 }, lanes[] = { 128, 192, 256, 1024 }, depths[] = { 0, 16, 32 };
    static const uint32_t n_tokens[] = { 9, 32, 33, 500 }, n_tiles[] = { 64, 8192 };
    const qn_vk_format q1_0 = qn_vk_format_of(qn_type_find(QN_TYPE_Q1_0));
    for (size_t i = 0; i < 4 * 4 * 4 * 3 * 2 * 2; i++) {
        const qn_vk_features features = { .lanes = lanes[i % 4],
                                          .shared_bytes = kib[i / 4 % 4] << 10,
                                          .matrix_depth = depths[i / 64 % 3] };
        const qn_vk_matmul_kind kind = { .planes = 1 + (uint32_t)(i / 192 % 2) };
        const qn_vk_matmul_args args = { .n_cols = 4096,
                                         .n_tokens = n_tokens[i / 16 % 4],
                                         .n_tiles = n_tiles[i / 384],
                                         .first_tiles = { 0, UINT32_MAX, UINT32_MAX, UINT32_MAX } };
        const qn_vk_launch l = qn_vk_matmul(&q1_0, &features, &kind, &args);
        label("%u lanes, %u bytes, matrices of %u, %u planes, %u rows, %u tiles: %s", features.lanes,
              features.shared_bytes, features.matrix_depth, kind.planes, args.n_tokens, args.n_tiles, l.shader->name);
        assert_true(l.constants[5] <= features.lanes);
        assert_true(qn_vk_matmul_shared(&l) <= features.shared_bytes);
        /* Every device has room for a square of one plane. */
        assert_true(kind.planes == 2 || strstr(l.shader->name, "matmul_tiles") || strstr(l.shader->name, "matrix"));
    }
}

int main(void)
{
    return run_tests_on_vulkan();
}
