/* How GPU backends divide a step into batches, the order of a batch's pieces, and the inputs of its rows. */
#include "helper_assert.h"

#include "gpu/batch.h"

enum { MEMORIES = 300, MAX_ROWS = 2000, N_VOCAB = 10, MANY = 64 };

static const qn_kv_format formats[] = { { "f16", 0, 0, false }, { "aura4", 4, 4, false }, { "aura4v2", 4, 2, false } };
static qn_gpu_format gpu_formats[COUNT(formats)];
static qn_gpu_memory memories[MEMORIES];

static struct step {
    qn_step step;
    qn_row rows[MAX_ROWS];
    uint32_t logit_rows[MAX_ROWS];
    float logits[MAX_ROWS * N_VOCAB];
    qn_sample_request requests[MAX_ROWS];
} step;

static int begin(void)
{
    memset(&step, 0, sizeof step);
    step.step = (qn_step){ .rows = step.rows, .logit_rows = step.logit_rows, .logits = step.logits };
    for (size_t i = 0; i < COUNT(formats); i++)
        gpu_formats[i].format = &formats[i];
    for (uint32_t i = 0; i < MEMORIES; i++)
        memories[i] = (qn_gpu_memory){
            .base = { .sequence = &memories[i].sequence },
            .format = &gpu_formats[0],
            .sequence = { .state = 3000 + i, .state_to = 4000 + i, .open_chunk = 5000 + i, .state_position = 64 * i },
            .kv_table = 1000 + i,
            .f16_table = 2000 + i
        };
    return 0;
}

TEST_EVERY(begin, NULL)

/* Adds n rows of a memory from this position on; the last n_logits of them have logits. */
static void add(size_t memory, uint32_t position, size_t n, size_t n_logits)
{
    for (size_t i = 0; i < n; i++) {
        if (i + n_logits >= n)
            step.logit_rows[step.step.n_logit_rows++] = (uint32_t)step.step.n_rows;
        step.rows[step.step.n_rows++] = (qn_row){ .token = (int32_t)(100 * memory + i),
                                                  .source = (uint32_t)(7 * i),
                                                  .position = position + (uint32_t)i,
                                                  .memory = &memories[memory].base };
    }
}

static qn_gpu_batch batch_at(const qn_gpu_batching *batching, size_t row, size_t logit)
{
    const qn_gpu_batch b = qn_gpu_batch_of(batching, &step.step, row, logit);
    assert_true(b.n_rows > 0 && b.n_pieces > 0 && b.n_pieces <= QN_GPU_MAX_SEQUENCES && b.n_pieces <= b.n_rows);
    assert_ptr_equal(b.rows, step.rows + row);
    assert_ptr_equal(b.logit_rows, step.logit_rows + logit);
    assert_int_equal(b.first, row);
    return b;
}

/* The rows of all batches of the step. Returns their number. */
static size_t batches_of(const qn_gpu_batching *batching, size_t *rows)
{
    size_t n = 0, logit = 0;
    for (size_t row = 0; row < step.step.n_rows;) {
        const qn_gpu_batch b = batch_at(batching, row, logit);
        rows[n++] = b.n_rows;
        row += b.n_rows;
        logit += b.n_logits;
    }
    assert_int_equal(logit, step.step.n_logit_rows);
    return n;
}

#define assert_batches(batching, ...)                                                                                  \
    do {                                                                                                               \
        const size_t wanted[] = { __VA_ARGS__ };                                                                       \
        size_t found[MAX_ROWS];                                                                                        \
        assert_int_equal(batches_of(batching, found), COUNT(wanted));                                                  \
        assert_memory_equal(found, wanted, sizeof wanted);                                                             \
    } while (0)

/* ---- Batches ---- */

static const qn_gpu_batching together = { .n_vocab = N_VOCAB };

/* One format and up to QN_GPU_MAX_SEQUENCES sequences. */
TEST(batches_end_at_other_formats)
{
    for (size_t i = 2; i < 5; i++)
        memories[i].format = &gpu_formats[i == 4 ? 2 : 1];
    add(0, 0, 10, 0);
    add(1, 5, 1, 1);
    add(2, 0, 3, 1);
    add(3, 9, 1, 0);
    add(4, 0, 2, 2);
    add(5, 0, 1, 1);
    assert_batches(&together, 11, 4, 2, 1);
}

TEST(batches_end_at_the_limit_of_sequences)
{
    for (size_t i = 0; i < MEMORIES; i++)
        add(i, 0, 1 + (i == 3), 1);
    assert_batches(&together, QN_GPU_MAX_SEQUENCES + 1, MEMORIES - QN_GPU_MAX_SEQUENCES);
}

/* The results of a batch are those of its logit rows; without any, requests are none. */
TEST(results_of_batches)
{
    memories[2].format = &gpu_formats[1];
    memories[3].format = &gpu_formats[2];
    step.step.requests = step.requests;
    add(0, 0, 4, 2);
    add(1, 0, 1, 1);
    add(2, 0, 5, 0);
    add(3, 0, 2, 1);
    const qn_gpu_batch first = batch_at(&together, 0, 0), second = batch_at(&together, 5, 3),
                       third = batch_at(&together, 10, 3);
    assert_int_equal(first.n_logits, 3);
    assert_ptr_equal(first.requests, step.requests);
    assert_ptr_equal(first.logits, step.logits);
    assert_int_equal(second.n_logits, 0);
    assert_null(second.requests);
    assert_int_equal(third.n_logits, 1);
    assert_ptr_equal(third.requests, step.requests + 3);
    assert_ptr_equal(third.logits, step.logits + 3 * N_VOCAB);
    step.step.logits = NULL;
    step.step.requests = NULL;
    const qn_gpu_batch neither = batch_at(&together, 0, 0);
    assert_true(!neither.logits && !neither.requests);
}

/* With `deterministic`, up to same_rows single rows with logits together; all else alone. */
TEST(deterministic_batches)
{
    const qn_gpu_batching alone = { .n_vocab = N_VOCAB, .deterministic = true, .same_rows = 3 };
    for (size_t i = 0; i < 5; i++)
        add(i, 0, 1, 1);
    add(5, 0, 70, 1);
    add(6, 0, 1, 0);
    add(7, 0, 1, 1);
    add(8, 0, 1, 1);
    add(9, 0, 2, 2);
    add(10, 0, 2, 2);
    assert_batches(&alone, 3, 2, 70, 1, 2, 2, 2);
    assert_batches(&together, step.step.n_rows);
}

TEST(decode_steps)
{
    const qn_gpu_batching alone = { .n_vocab = N_VOCAB, .deterministic = true, .same_rows = 64 };
    add(0, 0, 1, 1);
    add(1, 0, 1, 1);
    qn_gpu_batch b = batch_at(&together, 0, 0);
    assert_true(qn_gpu_is_decode(&together, &b) && qn_gpu_is_decode(&alone, &b));
    add(2, 0, 1, 0);
    b = batch_at(&together, 0, 0);
    assert_false(qn_gpu_is_decode(&together, &b)); /* a row without logits */
    b = batch_at(&together, 2, 2);
    assert_false(qn_gpu_is_decode(&together, &b));
    assert_true(qn_gpu_is_decode(&alone, &b));
    begin();
    add(0, 0, 2, 2);
    b = batch_at(&together, 0, 0);
    assert_false(qn_gpu_is_decode(&together, &b)); /* two rows of one sequence */
    assert_int_equal(qn_gpu_padded_rows(&together, 1), 1);
    assert_int_equal(qn_gpu_padded_rows(&alone, 1), 2);
    assert_int_equal(qn_gpu_padded_rows(&alone, 3), 4);
    assert_int_equal(qn_gpu_padded_rows(&together, 33), 48);
}

/* ---- Order ---- */

static bool has_many(const qn_gpu_piece *piece)
{
    return piece->n >= MANY;
}

static void check_piece(const qn_gpu_piece *piece, size_t memory, uint32_t row, uint32_t n, const qn_row *rows)
{
    assert_ptr_equal(piece->memory, &memories[memory]);
    assert_int_equal(piece->row, row);
    assert_int_equal(piece->n, n);
    assert_int_equal(piece->position, rows ? rows->position : 0);
    assert_ptr_equal(piece->rows, rows);
}

/* Pieces of few rows come first; rows of logits are found where they now are. */
TEST(pieces_of_few_rows_come_first)
{
    qn_gpu_piece pieces[5];
    uint32_t logit_rows[8];
    add(6, 3, 2, 0); /* before the batch */
    memories[6].format = &gpu_formats[1];
    add(0, 10, 70, 2);
    add(1, 20, 1, 1);
    add(2, 0, 64, 1);
    add(3, 9, 63, 3);
    add(4, 1, 2, 1);
    const qn_gpu_batch b = batch_at(&together, 2, 0);
    const qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, logit_rows);
    assert_int_equal(order.n_pieces, 5);
    assert_int_equal(order.n_rows, 200);
    assert_int_equal(order.n_few, 66);
    check_piece(&pieces[0], 1, 0, 1, b.rows + 70);
    check_piece(&pieces[1], 3, 1, 63, b.rows + 135);
    check_piece(&pieces[2], 4, 64, 2, b.rows + 198);
    check_piece(&pieces[3], 0, 66, 70, b.rows);
    check_piece(&pieces[4], 2, 136, 64, b.rows + 71);
    const uint32_t wanted[] = { 66 + 68, 66 + 69, 0, 136 + 63, 1 + 60, 1 + 61, 1 + 62, 64 + 1 };
    assert_int_equal(b.n_logits, COUNT(wanted));
    assert_memory_equal(logit_rows, wanted, sizeof wanted);
}

/* ---- Inputs ---- */

static uint8_t host[1 << 14];

static uint32_t word(size_t array, size_t i)
{
    uint32_t x;
    memcpy(&x, host + array + i * sizeof x, sizeof x);
    return x;
}

static uint64_t address(size_t array, size_t i)
{
    uint64_t x;
    memcpy(&x, host + array + i * sizeof x, sizeof x);
    return x;
}

/* A padded decode step: rows of padding are of no sequence, and their pieces have no rows and no items. */
TEST(inputs_of_a_padded_step)
{
    qn_gpu_piece pieces[4];
    for (size_t i = 0; i < 3; i++)
        add(2 * i, (uint32_t)(70 + i), 1, 1);
    const qn_gpu_batch b = batch_at(&together, 0, 0);
    qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, NULL);
    qn_gpu_pad(&order, qn_gpu_padded_rows(&together, order.n_rows), pieces);
    assert_true(order.n_pieces == 4 && order.n_rows == 4 && order.n_few == 4);
    check_piece(&pieces[3], 0, 3, 1, NULL);
    const qn_gpu_inputs in = qn_gpu_inputs_of(4, 4, 0, 0);
    assert_true(in.bytes <= sizeof host);
    memset(host, 0xaa, sizeof host);
    qn_gpu_fill_inputs(&in, pieces, 4, host);
    for (uint32_t i = 0; i < 4; i++) {
        const bool is_row = i < 3;
        assert_int_equal(address(in.kv_tables, i), is_row ? 1000 + 2 * i : 0);
        assert_int_equal(address(in.f16_tables, i), is_row ? 2000 + 2 * i : 0);
        assert_int_equal(word(in.state_from, i), is_row ? 3000 + 2 * i : 0);
        assert_int_equal(word(in.state_to, i), is_row ? 4000 + 2 * i : 0);
        assert_int_equal(word(in.open_chunks, i), is_row ? 5000 + 2 * i : 0);
        assert_int_equal(word(in.state_positions, i), is_row ? 64 * 2 * i : 0);
        assert_int_equal(word(in.first_positions, i), is_row ? 70 + i : 0);
        assert_int_equal(word(in.cu_seqlens, i), i);
        assert_int_equal(word(in.tokens, i), is_row ? 200 * i : 0);
        assert_int_equal(word(in.sources, i), 0);
        assert_int_equal(word(in.positions, i), is_row ? 70 + i : 0);
        assert_int_equal(word(in.sequences, i), is_row ? i : QN_GPU_NO_SEQUENCE);
    }
    assert_int_equal(word(in.cu_seqlens, 4), 3);
    for (size_t i = in.bytes; i < sizeof host; i++)
        assert_int_equal(host[i], 0xaa);
}

/* Rows of pieces in the order of the device. */
TEST(inputs_of_pieces)
{
    qn_gpu_piece pieces[2];
    uint32_t logit_rows[2];
    add(1, 64, 65, 1);
    add(2, 5, 3, 1);
    const qn_gpu_batch b = batch_at(&together, 0, 0);
    const qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, logit_rows);
    const qn_gpu_inputs in = qn_gpu_inputs_of(order.n_rows, order.n_pieces, b.n_logits, 0);
    assert_true(in.bytes <= sizeof host);
    qn_gpu_fill_inputs(&in, pieces, order.n_pieces, host);
    assert_true(word(in.cu_seqlens, 0) == 0 && word(in.cu_seqlens, 1) == 3 && word(in.cu_seqlens, 2) == 68);
    assert_true(word(in.first_positions, 0) == 5 && word(in.first_positions, 1) == 64);
    for (uint32_t row = 0; row < 68; row++) {
        const uint32_t i = row < 3 ? row : row - 3;
        assert_int_equal(word(in.tokens, row), (row < 3 ? 200 : 100) + i);
        assert_int_equal(word(in.sources, row), 7 * i);
        assert_int_equal(word(in.positions, row), (row < 3 ? 5 : 64) + i);
        assert_int_equal(word(in.sequences, row), row >= 3);
    }
    assert_true(logit_rows[0] == 67 && logit_rows[1] == 2);
}

/* Rows of a draft on a deterministic device are pieces, as rows of different sequences are. */
TEST(single_rows_of_a_sequence)
{
    static const qn_gpu_batching deterministic = { .n_vocab = N_VOCAB, .deterministic = true, .same_rows = 4 };
    qn_gpu_piece pieces[4];
    add(1, 70, 1, 1);
    add(2, 64, 5, 5);
    for (size_t i = 1; i < 6; i++)
        step.rows[i].is_single = true;
    add(3, 9, 3, 3);
    assert_batches(&deterministic, 4, 2, 3);
    const qn_gpu_batch b = batch_at(&deterministic, 0, 0), last = batch_at(&deterministic, 6, 6);
    assert_true(qn_gpu_is_decode(&deterministic, &b) && !qn_gpu_is_decode(&deterministic, &last));
    assert_int_equal(b.n_pieces, 4);
    const qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, NULL);
    assert_true(order.n_pieces == 4 && order.n_rows == 4);
    check_piece(&pieces[0], 1, 0, 1, step.rows);
    for (uint32_t i = 1; i < 4; i++)
        check_piece(&pieces[i], 2, i, 1, step.rows + i);
    assert_true(qn_gpu_has_turns(pieces, 4) && !qn_gpu_has_turns(pieces, 2));
}

/* Where rows read and keep hidden states for a draft head; single rows of a sequence as one piece does. */
TEST(inputs_of_a_draft_head)
{
    qn_gpu_piece pieces[4];
    gpu_formats[0].head_width = 2;
    for (size_t i = 0; i < MEMORIES; i++)
        memories[i].head_rows.address = 0x10000 * (i + 1);
    add(1, 0, 2, 2);
    add(2, 64, 3, 3);
    for (size_t i = 2; i < 5; i++)
        step.rows[i].is_single = true;
    const qn_gpu_batch b = batch_at(&together, 0, 0);
    const qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, NULL);
    const qn_gpu_inputs in = qn_gpu_inputs_of(order.n_rows, order.n_pieces, 0, order.n_rows);
    assert_true(order.n_pieces == 4 && in.bytes <= sizeof host);
    memories[2].head_rows.halves[0].begin = 60;
    memories[2].head_rows.halves[0].n = 4;
    qn_gpu_fill_hidden(&in, pieces, 4, false, host);
    const uint64_t row = 2 * sizeof(float), other = 0x30000;
    const uint64_t from[] = { 0, QN_GPU_ROW_BEFORE, other + 3 * row, QN_GPU_ROW_BEFORE, QN_GPU_ROW_BEFORE },
                   to[] = { 0x20000, 0x20000 + row, other + 4 * row, other + 5 * row, other + 6 * row };
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(address(in.hidden_from, i), from[i]);
        assert_int_equal(address(in.hidden_to, i), to[i]);
    }
    gpu_formats[0].head_width = 0;
}

/* The rows of a block attend to its last row, or to themselves. */
TEST(ends_of_blocks)
{
    static const uint32_t ends[2][5] = { { 63, 63, 66, 66, 66 }, { 62, 63, 64, 65, 66 } };
    qn_gpu_piece pieces[2];
    add(1, 62, 2, 2);
    add(2, 64, 3, 3);
    const qn_gpu_batch b = batch_at(&together, 0, 0);
    const qn_gpu_order order = qn_gpu_order_pieces(&b, has_many, pieces, NULL);
    const qn_gpu_inputs in = qn_gpu_inputs_of(order.n_rows, order.n_pieces, 0, order.n_rows);
    for (size_t is_causal = 0; is_causal < 2; is_causal++) {
        qn_gpu_fill_ends(&in, pieces, order.n_pieces, is_causal, host);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(word(in.ends, i), ends[is_causal][i]);
    }
}

/* Arrays of a step are aligned and none overlaps the next. */
TEST(arrays_of_inputs)
{
    const qn_gpu_inputs in = qn_gpu_inputs_of(7, 3, 5, 7);
    const struct {
        size_t at, bytes;
    } arrays[] = { { in.kv_tables, 24 },  { in.f16_tables, 24 },      { in.state_from, 12 },
                   { in.state_to, 12 },   { in.open_chunks, 12 },     { in.state_positions, 12 },
                   { in.cu_seqlens, 16 }, { in.first_positions, 12 }, { in.tokens, 28 },
                   { in.sources, 28 },    { in.positions, 28 },       { in.sequences, 28 },
                   { in.logit_rows, 20 }, { in.hidden_from, 56 },     { in.hidden_to, 56 },
                   { in.ends, 28 } };
    size_t end = 0;
    for (size_t i = 0; i < COUNT(arrays); i++) {
        assert_true(arrays[i].at >= end && arrays[i].at % 16 == 0);
        end = arrays[i].at + arrays[i].bytes;
    }
    assert_true(end <= in.bytes);
    assert_int_equal(in.sampling, in.bytes);
}
