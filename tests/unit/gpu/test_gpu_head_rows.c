/* Hidden states that a sequence keeps for a draft head on a GPU: which rows steps read and write, against a model that
 * moves rows about, for random steps, truncations and drafts. */
#include "helper_assert.h"
#include "helper_test.h"

#include "base/splitmix.h"
#include "gpu/head_rows.h"

#include <string.h>

enum { WIDTH = 3, MOST = 70, STEPS = 20000, NONE = -1 };

/* The position whose hidden state a row of the item has; of `draft`, which chain and position. */
static struct {
    int rows[QN_GPU_HEAD_ROWS];
} item;

static const uint64_t base = 4096;

static size_t row_of(uint64_t address)
{
    const uint64_t bytes = WIDTH * sizeof(float);
    assert_true(address >= base && (address - base) % bytes == 0 && (address - base) / bytes < QN_GPU_HEAD_ROWS);
    return (size_t)((address - base) / bytes);
}

static uint32_t below(uint64_t *random, uint32_t n)
{
    return (uint32_t)(qn_splitmix(random) % n);
}

/* All reads of a step come before its writes, in any order: no row that is read is written. */
static void step(qn_gpu_head_rows *rows, uint32_t position, uint32_t n)
{
    uint64_t from[MOST], to[MOST];
    qn_gpu_head_rows_step(rows, WIDTH, position, n, from, to);
    if (from[0])
        assert_int_equal(item.rows[row_of(from[0])], (int)position - 1);
    for (uint32_t i = 1; i < n; i++)
        assert_int_equal(from[i], QN_GPU_ROW_BEFORE);
    for (uint32_t i = 0; i < n; i++) {
        assert_true((to[i] != 0) == (i + QN_GPU_HEAD_KEPT >= n));
        assert_true(!to[i] || to[i] != from[0]);
        if (to[i])
            item.rows[row_of(to[i])] = (int)(position + i);
    }
}

/* A chain of n draft steps after `length` rows. */
static void draft(qn_gpu_head_rows *rows, uint32_t length, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from, to;
        qn_gpu_head_rows_draft(rows, WIDTH, length + i, length, &from, &to);
        assert_int_equal(row_of(to), 2 * QN_GPU_HEAD_KEPT);
        assert_true(i ? from == to : from != to);
        if (!i && from)
            assert_int_equal(item.rows[row_of(from)], (int)length - 1);
        item.rows[row_of(to)] = NONE;
    }
}

TEST(rows_are_those_before)
{
    uint64_t random = 7;
    qn_gpu_head_rows rows = { .address = base };
    uint32_t length = 0;
    memset(&item, 0xff, sizeof item);
    for (size_t i = 0; i < STEPS; i++) {
        const uint32_t n = 1 + below(&random, below(&random, 4) ? 8 : MOST);
        uint64_t from, to;
        if (below(&random, 3) == 0)
            draft(&rows, length, 1 + below(&random, 8));
        /* The state before the next row is there after a step, and after up to 15 of its rows were refused. */
        step(&rows, length, n);
        const uint32_t refused = n > 1 ? below(&random, n < QN_GPU_HEAD_KEPT ? n : QN_GPU_HEAD_KEPT) : 0;
        length += n - refused;
        qn_gpu_head_rows after = rows;
        qn_gpu_head_rows_draft(&after, WIDTH, length, length, &from, &to);
        assert_true(from != 0);
        assert_int_equal(item.rows[row_of(from)], (int)length - 1);
        if (below(&random, 50) == 0)
            length = below(&random, length + 1); /* a session goes back */
        if (length > 10000)
            length = 0;
    }
}

/* A deterministic device evaluates the rows of a draft in batches. All of them may be refused but the first. */
TEST(rows_of_several_batches_are_kept)
{
    uint64_t random = 11;
    qn_gpu_head_rows rows = { .address = base };
    uint32_t length = 0;
    memset(&item, 0xff, sizeof item);
    for (size_t i = 0; i < STEPS; i++) {
        const uint32_t n = 1 + below(&random, QN_GPU_HEAD_KEPT);
        for (uint32_t done = 0, m; done < n; done += m) {
            m = 1 + below(&random, n - done);
            step(&rows, length + done, m);
        }
        for (uint32_t left = length + 1; left <= length + n; left++) {
            qn_gpu_head_rows after = rows;
            uint64_t from, to;
            qn_gpu_head_rows_draft(&after, WIDTH, left, left, &from, &to);
            assert_true(from != 0);
            assert_int_equal(item.rows[row_of(from)], (int)left - 1);
        }
        length += 1 + below(&random, n);
        if (length > 10000)
            length = 0;
    }
}

TEST(the_first_row_has_none)
{
    qn_gpu_head_rows rows = { .address = base };
    uint64_t from[2], to[2];
    qn_gpu_head_rows_step(&rows, WIDTH, 0, 2, from, to);
    assert_true(!from[0] && from[1] == QN_GPU_ROW_BEFORE && to[0] && to[1]);
    rows = (qn_gpu_head_rows){ .address = base };
    qn_gpu_head_rows_step(&rows, WIDTH, 64, 1, from, to); /* as after a prefix of another sequence */
    assert_true(!from[0] && to[0]);
}
