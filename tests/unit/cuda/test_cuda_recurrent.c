/* Which launches a recurrent layer's rows become, on the fake driver: rows over open chunks, complete chunks, folds;
 * with the positions and the addresses of states that each of them is given. */
#include "helper_cuda_api.h"

#include "cuda/executor/recurrent.h"

#define CUBIN(source, defines) FAKE_CUBIN("deltanet/deltanet_" source ".cu", defines)
#define ADVANCE(rest) CUBIN("advance", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 " rest)

static const qn_gpu_cubin cubins[] = { CUBIN("open", "-DQN_HEAD_K=128 -DQN_HEAD_V=128"),
                                       CUBIN("open", "-DQN_HEAD_K=48 -DQN_HEAD_V=48"),
                                       CUBIN("open_few", ""),
                                       CUBIN("step", "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_BF16"),
                                       CUBIN("prepare", "-DQN_HEAD_K=128"),
                                       CUBIN("compose", "-DQN_HEAD_K=128"),
                                       ADVANCE("-DQN_GDN_SLICES=1"),
                                       ADVANCE("-DQN_GDN_SLICES=2"),
                                       ADVANCE("-DQN_GDN_SLICES=1 -DQN_GDN_EFFECTS"),
                                       ADVANCE("-DQN_GDN_SLICES=2 -DQN_GDN_EFFECTS") };

enum { K_HEADS = 1, V_HEADS = 2, TAPS = 4, MAX_PIECES = 4 };
enum { QKV, ALPHA, BETA, CONVOLVED, OUT, GATE, BUFFERS };
enum { STATES = 1 << 20, OPEN = 2 << 20, INPUTS = 3 << 20, SCRATCH = 4 << 20, BUFFER = 5 << 20 };

static qn_status reserve(void *context, size_t bytes, uint64_t *address)
{
    (void)bytes;
    *address = (uint64_t)(uintptr_t)context;
    return QN_OK;
}

static void unreserve(void *context, uint64_t address, size_t bytes)
{
    (void)context;
    (void)address;
    (void)bytes;
}

/* A model of two recurrent layers, the first and the third, of which the step is in the second. */
struct fixture {
    qn_pool *pools[2];
    qn_cache cache;
    qn_sequence sequences[MAX_PIECES];
    qn_gpu_memory memories[MAX_PIECES];
    qn_gpu_piece pieces[MAX_PIECES];
    qn_op ops[3];
    qn_cuda_op cuda_ops[3];
    qn_plan_buffer widths[BUFFERS];
    qn_cuda_buffer buffers[BUFFERS];
    bool is_recurrent[3];
    qn_plan plan;
    qn_cuda_common common;
    qn_cuda_weights weights;
    qn_cuda_workspace workspace;
    qn_cuda_rows_step step;
    uint32_t host_inputs[64];
    size_t state_bytes, history;
    qn_gdn_open_layout layout;
};

static struct fixture fixture; /* of the current test */

static qn_pool *pool_at(uint64_t address, size_t item, qn_pool_class **class)
{
    const qn_pool_memory memory = {
        .context = (void *)(uintptr_t)address, .granule = 4096, .reserve = reserve, .unreserve = unreserve
    };
    qn_pool *pool;
    assert_ok(qn_pool_create(&memory, 1 << 20, 0, &pool));
    assert_ok(qn_pool_add_class(pool, "item", item, class));
    return pool;
}

static size_t args_bytes(const char *function)
{
    return !strncmp(function, "qn_gdn_open", 11) ? sizeof(qn_gdn_open_args)
           : !strcmp(function, "qn_gdn_conv")    ? sizeof(qn_gdn_conv_args)
           : !strcmp(function, "qn_gdn_norm")    ? sizeof(qn_gdn_norm_args)
                                                 : sizeof(qn_gdn_chunk_args);
}

static void set_up(size_t head)
{
    static const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &fake_code };
    fixture = (struct fixture){ .is_recurrent = { true, false, true } };
    fake_code.cubins = cubins;
    fake_code.n_cubins = COUNT(cubins);
    fake.no_param_info = true;
    const qn_cuda_params params = { .driver = fake_driver(), .tools = &tools };
    const qn_recurrent_shape shape = { K_HEADS, V_HEADS, head, head, TAPS };
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(&shape);
    fixture.layout = layout.open;
    fixture.state_bytes = layout.state_layer_bytes;
    fixture.history = layout.history;
    fixture.pools[0] = pool_at(STATES, 2 * fixture.state_bytes, &fixture.cache.states);
    fixture.pools[1] = pool_at(OPEN, 2 * fixture.layout.bytes, &fixture.cache.open_chunks);
    fixture.ops[0] = (qn_op){ .kind = QN_OP_CONV,
                              .layer = 2,
                              .conv = { .qkv = QKV, .alpha = ALPHA, .beta = BETA, .out = CONVOLVED } };
    fixture.ops[1] = (qn_op){ .kind = QN_OP_DELTA_RULE, .layer = 2, .delta_rule = { .qkv = CONVOLVED, .out = OUT } };
    fixture.ops[2] = (qn_op){ .kind = QN_OP_GATED_NORM, .layer = 2, .gated_norm = { .in = OUT, .gate = GATE } };
    const size_t width = (2 * K_HEADS + V_HEADS) * head, values = V_HEADS * head;
    const size_t widths[BUFFERS] = { width, V_HEADS, V_HEADS, width, values, values };
    for (size_t i = 0; i < BUFFERS; i++) {
        fixture.widths[i].width = widths[i];
        fixture.buffers[i].address = BUFFER + (i << 20);
    }
    fixture.plan = (qn_plan){ .ops = fixture.ops,
                              .n_ops = 3,
                              .buffers = fixture.widths,
                              .n_buffers = BUFFERS,
                              .n_layers = 3,
                              .recurrent = shape,
                              .is_recurrent = fixture.is_recurrent };
    fixture.common = (qn_cuda_common){ .plan = &fixture.plan, .gdn = { 227 << 10, 132 } };
    fixture.weights = (qn_cuda_weights){ .common = &fixture.common, .ops = fixture.cuda_ops };
    fixture.workspace = (qn_cuda_workspace){ .common = &fixture.common,
                                             .weights = &fixture.weights,
                                             .buffers = fixture.buffers,
                                             .inputs = INPUTS,
                                             .scratch.address = SCRATCH,
                                             .block_inputs = { (uint8_t *)fixture.host_inputs } };
    assert_ok(qn_cuda_open(&params, &fixture.common.cuda));
    fake.args_bytes = args_bytes;
    fixture.step = (qn_cuda_rows_step){ .common = &fixture.common,
                                        .weights = &fixture.weights,
                                        .workspace = &fixture.workspace,
                                        .pieces = fixture.pieces,
                                        .inputs = { .cu_seqlens = 0,
                                                    .first_positions = 32,
                                                    .state_from = 64,
                                                    .state_to = 96,
                                                    .open_chunks = 128,
                                                    .state_positions = 160 } };
}

static void tear_down(void)
{
    qn_cuda_close(fixture.common.cuda);
    qn_pool_free(fixture.pools[0]);
    qn_pool_free(fixture.pools[1]);
    fake_expect_empty();
}

/* n rows; the state is item 2 i, and after a fold item 2 i + 1. */
static void add_piece(uint32_t position, uint32_t state_position, uint32_t n)
{
    const uint32_t i = (uint32_t)fixture.step.n_pieces++;
    fixture.sequences[i] = (qn_sequence){ .cache = &fixture.cache,
                                          .state = 2 * i,
                                          .state_to = 2 * i + 1,
                                          .open_chunk = 10 + i,
                                          .state_position = state_position };
    fixture.memories[i].base.sequence = &fixture.sequences[i];
    static const qn_row row; /* not padding */
    fixture.pieces[i] = (qn_gpu_piece){
        .memory = &fixture.memories[i], .row = (uint32_t)fixture.step.n, .n = n, .position = position, .rows = &row
    };
    fixture.step.n += n;
}

/* Runs the layer; returns the number of its launches. */
static int run(void)
{
    const int before = fake.launches;
    for (size_t i = 0; i < 3; i++)
        assert_ok(qn_cuda_run_recurrent_op(&fixture.step, &fixture.ops[i]));
    return fake.launches - before;
}

/* The address of the layer's part of a state item. */
static uint64_t state_at(uint32_t item)
{
    return qn_pool_address(fixture.cache.states, item) + fixture.state_bytes;
}

static void expect_sequence(const qn_gdn_open_args *a, const qn_gdn_open_sequence *expected)
{
    assert_int_equal(a->positions, 0);
    assert_int_equal(a->sequences, 1);
    assert_memory_equal(&a->sequence, expected, sizeof *expected);
}

/* One launch over pieces [first, first + n) of the inputs. */
static void expect_open_pieces(int i, int n, size_t first, uint32_t pieces)
{
    const qn_gdn_open_args *a = arguments_of("qn_gdn_open_step", i, n);
    assert_true(launched(i, n)->pdl);
    assert_int_equal(a->sequences, pieces);
    assert_int_equal(a->cu_seqlens, INPUTS + 4 * first);
    assert_int_equal(a->positions, INPUTS + 32 + 4 * first);
    assert_int_equal(a->state_from, INPUTS + 64 + 4 * first);
    assert_int_equal(a->state_to, INPUTS + 96 + 4 * first);
    assert_int_equal(a->open_slots, INPUTS + 128 + 4 * first);
    assert_int_equal(a->state_positions, INPUTS + 160 + 4 * first);
}

TEST(rows_of_many)
{
    set_up(128);
    add_piece(10, 0, 1);
    add_piece(128, 64, 3);
    add_piece(63, 0, 64); /* no complete chunk */
    assert_int_equal(run(), 1);
    expect_open_pieces(0, 1, 0, 3);
    const qn_gdn_open_args *a = arguments(0, 1);
    assert_int_equal(a->states, STATES);
    assert_int_equal(a->state_stride, qn_pool_stride(fixture.cache.states));
    assert_int_equal(a->state_offset, fixture.state_bytes);
    assert_int_equal(a->open, OPEN);
    assert_int_equal(a->open_offset, fixture.layout.bytes);
    assert_int_equal(a->qkv, BUFFER + (QKV << 20));
    assert_int_equal(a->out, SCRATCH);
    tear_down();
}

/* Few rows of each piece, within a page: full chunks are folded before, and the rows have a kernel that does not fold.
 */
TEST(few_rows)
{
    set_up(128);
    add_piece(10, 0, 4);
    add_piece(128, 64, 15);
    fixture.step.fits_open_chunks = true;
    const int before = fake.launches;
    assert_ok(qn_cuda_fold_full_chunks(&fixture.step));
    assert_int_equal(fake.launches - before, 1);
    expect_sequence(arguments_of("qn_gdn_open_fold", 0, 1), &(qn_gdn_open_sequence){ 128, 64, 2, 3, 11, 0, 0 });
    assert_int_equal(fixture.host_inputs[64 / 4 + 1], 3);
    assert_int_equal(fixture.host_inputs[160 / 4 + 1], 128);
    assert_int_equal(run(), 1);
    const qn_gdn_open_args *a = arguments_of("qn_gdn_open_few", 0, 1);
    assert_int_equal(a->sequences, 2);
    assert_int_equal(a->cu_seqlens, INPUTS);
    tear_down();
}

/* 130 rows from position 72: 56 fill the open chunk, 64 are a chunk, 10 are in the next open chunk. */
TEST(complete_chunks)
{
    set_up(128);
    add_piece(7, 0, 1);
    add_piece(72, 64, 130);
    add_piece(9, 0, 2);
    const int n = run();
    expect_open_pieces(0, n, 0, 1);
    expect_sequence(arguments_of("qn_gdn_open_step", 1, n), &(qn_gdn_open_sequence){ 72, 64, 2, 3, 11, 1, 57 });
    expect_sequence(arguments_of("qn_gdn_open_fold", 2, n), &(qn_gdn_open_sequence){ 128, 64, 2, 3, 11, 1, 57 });
    assert_int_equal(((const qn_gdn_open_args *)arguments(2, n))->layers, 1);
    const qn_gdn_conv_args *conv = arguments_of("qn_gdn_conv", 3, n);
    assert_int_equal(conv->rows, 64);
    assert_int_equal(conv->qkv, BUFFER + (QKV << 20) + 57 * fixture.widths[QKV].width * 4);
    assert_int_equal(conv->history, state_at(3) + fixture.history);
    assert_int_equal(conv->last, state_at(3) + fixture.history);
    const qn_gdn_chunk_args *rule = arguments_of("qn_gdn_prepare", 4, n);
    assert_int_equal(rule->tokens, 64);
    assert_int_equal(rule->q, conv->out);
    assert_int_equal(rule->initial, state_at(3));
    assert_int_equal(rule->final, state_at(3));
    const qn_gdn_norm_args *norm = arguments_of("qn_gdn_norm", n - 3, n);
    assert_int_equal(norm->rows, 64);
    assert_int_equal(norm->o, rule->o);
    assert_int_equal(norm->out, SCRATCH + 57 * fixture.widths[OUT].width * 4);
    expect_sequence(arguments_of("qn_gdn_open_step", n - 2, n),
                    &(qn_gdn_open_sequence){ 192, 192, 3, 3, 11, 121, 131 });
    expect_open_pieces(n - 1, n, 2, 1);
    tear_down();
}

/* Chunks from position 0, from a state without open rows, and from a full open chunk. */
TEST(starts)
{
    set_up(128);
    add_piece(0, 0, 64);
    int n = run();
    const qn_gdn_conv_args *conv = arguments_of("qn_gdn_conv", 0, n);
    assert_int_equal(conv->history, 0);
    assert_int_equal(conv->last, state_at(1) + fixture.history);
    assert_int_equal(((const qn_gdn_chunk_args *)arguments(1, n))->initial, 0);
    assert_int_equal(((const qn_gdn_chunk_args *)arguments(1, n))->final, state_at(1));
    assert_string_equal(launched(n - 1, n)->function, "qn_gdn_norm");
    fixture.step.n_pieces = fixture.step.n = 0;
    add_piece(128, 128, 64);
    n = run();
    conv = arguments_of("qn_gdn_conv", 0, n);
    assert_int_equal(conv->history, state_at(0) + fixture.history);
    assert_int_equal(((const qn_gdn_chunk_args *)arguments(1, n))->initial, state_at(0));
    assert_int_equal(((const qn_gdn_chunk_args *)arguments(1, n))->final, state_at(1));
    fixture.step.n_pieces = fixture.step.n = 0;
    add_piece(128, 64, 64);
    n = run();
    expect_sequence(arguments_of("qn_gdn_open_fold", 0, n), &(qn_gdn_open_sequence){ 128, 64, 0, 1, 10, 0, 0 });
    assert_int_equal(((const qn_gdn_chunk_args *)arguments(2, n))->initial, state_at(1));
    tear_down();
}

TEST(heads_without_chunks)
{
    set_up(48);
    add_piece(0, 0, 200);
    assert_int_equal(run(), 1);
    expect_open_pieces(0, 1, 0, 1);
    tear_down();
}

/* A step of one row: its result is in the buffer of the plan, and a full open chunk is folded before, in both
 * layers. */
TEST(one_row)
{
    set_up(128);
    add_piece(127, 64, 1);
    const int before = fake.launches;
    assert_ok(qn_cuda_fold_full_chunks(&fixture.step));
    assert_int_equal(fake.launches, before);
    assert_int_equal(run(), 1);
    assert_int_equal(((const qn_gdn_open_args *)arguments(0, 1))->out, BUFFER + (OUT << 20));
    fixture.pieces[0].position = 128;
    assert_ok(qn_cuda_fold_full_chunks(&fixture.step));
    const qn_gdn_open_args *fold = arguments_of("qn_gdn_open_fold", 0, 1);
    assert_int_equal(launched(0, 1)->grid[1], 2);
    expect_sequence(fold, &(qn_gdn_open_sequence){ 128, 64, 0, 1, 10, 0, 0 });
    assert_int_equal(fold->state_offset, 0);
    assert_int_equal(fold->open_offset, 0);
    assert_int_equal(fixture.host_inputs[64 / 4], 1);
    assert_int_equal(fixture.host_inputs[160 / 4], 128);
    qn_persistent_args args = { 0 };
    qn_cuda_set_recurrent_args(&fixture.step, &args);
    assert_int_equal(args.states, STATES);
    assert_int_equal(args.state_positions, INPUTS + 160);
    assert_int_equal(args.open_slots, INPUTS + 128);
    tear_down();
}
