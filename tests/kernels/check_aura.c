/* AURA: rows, and attention over blocks. Every variant must equal the reference bit for bit; the reference of blocks is
 * compared with float64. The benchmark reads blocks from memory, and measures attention over fp16 for the same
 * positions as well. */
#include "check.h"
#include "problem.h"

#include "base/f16.h"
#include "base/address_space.h"
#include "base/memory.h"
#include "kernels/kernels.h"

enum { MAX_DIM = QN_AURA_MAX_DIM, BLOCK = QN_AURA_BLOCK, PAGES = QN_AURA_BLOCK_PAGES };

static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512 };
static const unsigned all_bits[] = { 2, 3, 4, 6, 8 };
enum { N_DIMS = QN_LENGTH(dims), N_BITS = QN_LENGTH(all_bits) };

static void delete_codec(void *codec)
{
    qn_aura_codec_delete(codec);
}

static qn_aura_codec *new_codec(size_t dim, unsigned bits)
{
    qn_aura_codec *codec;
    qn_assert_ok(qn_aura_codec_new(&codec, dim, bits, 11));
    qn_own(codec, 0, NULL, delete_codec);
    return codec;
}

/* ---- Rows ---- */

static void check_rows(const qn_aura_codec *codec)
{
    const size_t dim = codec->dim;
    static float matrix[MAX_DIM * MAX_DIM];
    static const char *const names[] = { "decoded", "gemv", "axpy" };
    float expected[QN_LENGTH(names)][MAX_DIM], expected_dot;
    uint8_t expected_codes[MAX_DIM];
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        const size_t mark = qn_mark();
        qn_kernels kernels;
        float x[MAX_DIM + 1], unit[MAX_DIM], *y[QN_LENGTH(names)];
        uint32_t words[MAX_DIM / 4];
        qn_kernels_init(&kernels, level->features);
        const qn_aura_kernels *k = &kernels.aura;
        qn_random_seed(dim * 10 + codec->bits);
        qn_random_floats(x, dim + 1, 1 / sqrtf((float)dim));
        qn_random_floats(unit, dim, 1 / sqrtf((float)dim));
        qn_random_floats(matrix, dim * dim, 1);
        x[1] = codec->boundaries[0]; /* on a boundary, and outside all of them */
        x[2] = 2;
        x[3] = -2;
        uint8_t *codes = qn_guarded(dim, qn_random_below(16));
        for (size_t j = 0; j < QN_LENGTH(names); j++)
            y[j] = qn_guarded_floats(dim);
        k->quantize(codes, x, codec);
        qn_aura_pack(words, codes, dim, codec->bits);
        k->decode(y[0], words, codec);
        k->gemv(y[1], matrix, x + 1, dim);
        memcpy(y[2], unit, dim * sizeof(float));
        k->axpy(y[2], x[4], x + 1, dim);
        const float dot = k->dot(x + 1, unit, dim);
        qn_case_begin("aura", level->name, "rows of %zu, %u bits", dim, codec->bits);
        for (size_t j = 0; j < QN_LENGTH(names); j++)
            qn_expect_level(level, y[j], expected[j], dim, names[j]);
        qn_expect_level(level, &dot, &expected_dot, 1, "dot");
        if (qn_is_reference(level)) {
            memcpy(expected_codes, codes, dim);
            for (size_t d = 0; d < dim; d++) {
                qn_expect(codes[d] == 0 || codec->boundaries[codes[d] - 1] < x[d], "code %zu is too high", d);
                qn_expect(codes[d] + 1u == 1u << codec->bits || codec->boundaries[codes[d]] >= x[d],
                          "code %zu is too low", d);
            }
        }
        qn_expect(!memcmp(codes, expected_codes, dim), "codes are not the reference's");
        qn_release_to(mark);
    }
}

/* ---- Blocks ---- */

enum { QUERIES = 11 }; /* a group of eight, a query without visible keys, a group of two */

struct problem {
    qn_aura_codec *key_codec, *value_codec;
    uint8_t *keys[PAGES], *values[PAGES]; /* pages, in any order in memory */
    int16_t queries[QUERIES * MAX_DIM];
    float scales[QUERIES];
    uint16_t visible[QUERIES];
    size_t stored;
};

static void new_pages(struct problem *p)
{
    const size_t key_bytes = qn_aura_key_page_bytes(p->key_codec->dim, p->key_codec->bits);
    const size_t value_bytes = qn_aura_value_page_bytes(p->value_codec->dim, p->value_codec->bits);
    const size_t first_key = qn_random_below(PAGES), first_value = qn_random_below(PAGES);
    uint8_t *memory = qn_new(PAGES, key_bytes + value_bytes);
    memset(memory, 0xff, PAGES * (key_bytes + value_bytes));
    for (size_t i = 0; i < PAGES; i++) {
        p->keys[i] = memory + (first_key + 3 * i) % PAGES * key_bytes;
        p->values[i] = memory + PAGES * key_bytes + (first_value + 3 * i) % PAGES * value_bytes;
    }
}

/* The problem's pages that hold one of `stored` positions; the others are NULL. */
static qn_aura_block block_of(const struct problem *p, bool do_prefetch)
{
    qn_aura_block block = { .key_codec = p->key_codec, .value_codec = p->value_codec };
    for (size_t i = 0; i * QN_PAGE < p->stored; i++) {
        block.keys[i] = p->keys[i];
        block.values[i] = p->values[i];
        block.next_keys[i] = do_prefetch ? p->keys[i] : NULL;
    }
    return block;
}

/* Positions `stored` and later keep their poison: codes of all ones, NaN scales. */
static void problem_new(struct problem *p, size_t dim, unsigned key_bits, unsigned value_bits, size_t stored)
{
    qn_kernels kernels;
    qn_kernels_init(&kernels, 0);
    p->key_codec = new_codec(dim, key_bits);
    p->value_codec = new_codec(dim, value_bits);
    p->stored = stored;
    new_pages(p);
    for (size_t j = 0; j < stored; j++) {
        float key[MAX_DIM], value[MAX_DIM];
        qn_random_floats(key, dim, 2);
        qn_random_floats(value, dim, 1);
        qn_aura_store_position(&kernels.aura, p->key_codec, p->value_codec, p->keys[j / QN_PAGE],
                               p->values[j / QN_PAGE], j % QN_PAGE, key, value);
    }
    for (size_t q = 0; q < QUERIES; q++) {
        float query[MAX_DIM];
        qn_random_floats(query, dim, 1 / sqrtf((float)dim));
        qn_aura_quantize_query(p->queries + q * dim, &p->scales[q], query, p->key_codec);
        p->visible[q] = (uint16_t)(q == 8 ? 0 : q == 7 ? stored : 1 + qn_random_below(stored));
    }
}

/* Attention of one query in double over the decoded codes, in the rotated basis: the reference for out / l. */
static void attend_float64(const struct problem *p, size_t q, double *out)
{
    const qn_aura_codec *kc = p->key_codec, *vc = p->value_codec;
    double scores[BLOCK], largest = -INFINITY, sum = 0;
    uint8_t codes[MAX_DIM];
    float scale;
    for (size_t j = 0; j < p->visible[q]; j++) {
        qn_aura_load_key(p->keys[j / QN_PAGE], j % QN_PAGE, codes, &scale, kc->dim, kc->bits);
        scores[j] = 0;
        for (size_t d = 0; d < kc->dim; d++)
            scores[j] += (double)p->queries[q * kc->dim + d] * (double)kc->codebook[codes[d]];
        scores[j] *= (double)p->scales[q] / (double)kc->step * (double)scale;
        largest = scores[j] > largest ? scores[j] : largest;
    }
    for (size_t d = 0; d < vc->dim; d++)
        out[d] = 0;
    for (size_t j = 0; j < p->visible[q]; j++) {
        const double weight = exp(scores[j] - largest);
        sum += weight;
        qn_aura_load_value(p->values[j / QN_PAGE], j % QN_PAGE, codes, &scale, vc->dim, vc->bits);
        for (size_t d = 0; d < vc->dim; d++)
            out[d] += weight * (double)scale * (double)vc->codebook[codes[d]];
    }
    for (size_t d = 0; d < vc->dim; d++)
        out[d] /= sum;
}

static void check_exact(const struct problem *p, const float *out, const float *l)
{
    const size_t dim = p->key_codec->dim;
    for (size_t q = 0; q < QUERIES; q++) {
        double exact[MAX_DIM], error = 0, square = 0;
        if (!p->visible[q])
            continue;
        attend_float64(p, q, exact);
        for (size_t d = 0; d < dim; d++) {
            const double off = (double)out[q * dim + d] / (double)l[q] - exact[d];
            error += off * off;
            square += exact[d] * exact[d];
        }
        /* Centroids are rounded to 8191 steps and weights to at least 1023: 3e-4. Scores are off by 1e-5 of |q| |k|,
         * which is up to 50 here. */
        qn_expect(sqrt(error / square) < 1e-3, "query %zu is off by %g of its norm", q, sqrt(error / square));
    }
}

static void check_block(size_t dim, unsigned key_bits, unsigned value_bits, size_t stored)
{
    static struct problem p;
    static float expected[QUERIES * MAX_DIM], expected_ml[2 * QUERIES];
    bool do_prefetch = true;
    qn_random_seed(dim * 1000 + key_bits * 100 + value_bits * 10 + stored);
    problem_new(&p, dim, key_bits, value_bits, stored);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        const size_t mark = qn_mark();
        qn_kernels kernels;
        float *out = qn_guarded_floats(QUERIES * dim), *ml = qn_guarded(2 * QUERIES * sizeof *ml, 4);
        do_prefetch = !do_prefetch;
        const qn_aura_block block = block_of(&p, do_prefetch);
        qn_kernels_init(&kernels, level->features);
        kernels.aura.block(p.queries, p.scales, QUERIES, &block, p.visible, out, ml, ml + QUERIES);
        qn_case_begin("aura", level->name, "block of dim %zu, %u and %u bits, %zu positions", dim, key_bits, value_bits,
                      stored);
        qn_expect_level(level, out, expected, QUERIES * dim, "output");
        qn_expect_level(level, ml, expected_ml, 2 * QUERIES, "m, l");
        if (qn_is_reference(level)) {
            check_exact(&p, out, ml + QUERIES);
            qn_expect(isnan(out[8 * dim]) && isnan(ml[8]), "a query without visible keys was written");
        }
        qn_release_to(mark);
    }
    qn_release();
}

/* ---- Speed ---- */

enum { BENCH_DIM = 128, BENCH_BYTES = 256 << 20 };

struct timed {
    const qn_kernels *kernels;
    const qn_aura_codec *codec; /* or NULL: fp16 */
    uint8_t *memory;
    size_t n_queries, page_bytes, n_blocks, next;
    int16_t queries[8 * BENCH_DIM];
    float floats[8 * BENCH_DIM], scales[8], out[8 * BENCH_DIM], m[8], l[8], scores[8 * BENCH_DIM * 2];
    uint16_t visible[8];
};

/* One block, the next one on each call: BENCH_BYTES of blocks exceed the caches. A page's values follow its keys in
 * memory. */
static void timed_block(void *context)
{
    struct timed *t = context;
    qn_aura_block codes = { .key_codec = t->codec, .value_codec = t->codec };
    qn_attention_block f16;
    const size_t next = (t->next + 1) % t->n_blocks;
    for (size_t i = 0; i < PAGES; i++) {
        codes.keys[i] = t->memory + (t->next * PAGES + i) * 2 * t->page_bytes;
        codes.values[i] = codes.keys[i] + t->page_bytes;
        codes.next_keys[i] = t->memory + (next * PAGES + i) * 2 * t->page_bytes;
        f16.keys[i] = codes.keys[i];
        f16.values[i] = codes.values[i];
        f16.next_keys[i] = codes.next_keys[i];
    }
    t->next = next;
    if (t->codec)
        t->kernels->aura.block(t->queries, t->scales, t->n_queries, &codes, t->visible, t->out, t->m, t->l);
    else
        t->kernels->attention.f16.block(t->floats, t->n_queries, &f16, t->visible, BENCH_DIM, t->out, t->m, t->l,
                                        t->scores);
}

static void bench_block(unsigned bits, size_t n_queries, const qn_cpu_level *level)
{
    static struct timed t;
    qn_kernels kernels;
    qn_aura_codec *codec = bits ? new_codec(BENCH_DIM, bits) : NULL;
    qn_kernels_init(&kernels, level->features);
    t = (struct timed){ .kernels = &kernels, .codec = codec, .n_queries = n_queries };
    t.page_bytes = codec ? qn_aura_key_page_bytes(BENCH_DIM, bits) : sizeof(uint16_t) * QN_PAGE * BENCH_DIM;
    const size_t block_bytes = 2 * PAGES * t.page_bytes;
    t.n_blocks = BENCH_BYTES / block_bytes;
    t.memory = qn_new(t.n_blocks, block_bytes);
    qn_advise_huge(t.memory, t.n_blocks * block_bytes);
    memset(t.memory, 0x33, t.n_blocks * block_bytes); /* 4e-8 as fp32, 0.2 as fp16, codes all alike: values do not
                                                       * affect speed */
    qn_random_seed(1);
    qn_random_floats(t.floats, n_queries * BENCH_DIM, 0.1f);
    for (size_t q = 0; q < n_queries; q++) {
        t.visible[q] = BLOCK;
        if (codec)
            qn_aura_quantize_query(t.queries + q * BENCH_DIM, &t.scales[q], t.floats + q * BENCH_DIM, codec);
    }
    const char *shape =
        bits ? qn_text("%u bits, %zu queries", bits, n_queries) : qn_text("f16, %zu queries", n_queries);
    qn_bench("aura", level->name, shape, (double)block_bytes, "B", timed_block, &t);
    qn_release();
}

struct timed_encode {
    const qn_kernels *kernels;
    const qn_aura_codec *codec;
    float x[BENCH_DIM];
};

static void timed_encode(void *context)
{
    const struct timed_encode *t = context;
    uint8_t codes[BENCH_DIM];
    float scale;
    qn_aura_encode_row(&t->kernels->aura, t->codec, t->x, codes, &scale);
}

static void bench_encode(unsigned bits, const qn_cpu_level *level)
{
    qn_kernels kernels;
    qn_aura_codec *codec = new_codec(BENCH_DIM, bits);
    struct timed_encode t = { .kernels = &kernels, .codec = codec };
    qn_kernels_init(&kernels, level->features);
    qn_random_floats(t.x, BENCH_DIM, 1);
    qn_bench("aura", level->name, qn_text("encode a row, %u bits", bits), BENCH_DIM, "value", timed_encode, &t);
    qn_release();
}

void qn_check_aura(bool bench)
{
    static const size_t stored[] = { 256, 1, 15, 16, 17, 33, 100, 255, 240 };
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = 0; i < N_BITS; i++) {
            check_rows(new_codec(dims[d], all_bits[i]));
            qn_release();
            for (size_t j = 0; j < N_BITS; j++)
                check_block(dims[d], all_bits[i], all_bits[j], stored[(d + 2 * i + j) % 9]);
        }
    for (const qn_cpu_level *level = qn_levels() + 1; bench && level->name; level++) {
        for (size_t n = 1; n <= 8; n *= 2) {
            bench_block(0, n, level);
            for (size_t j = 0; j < N_BITS; j++)
                bench_block(all_bits[j], n, level);
        }
        for (size_t j = 0; j < N_BITS; j++)
            bench_encode(all_bits[j], level);
    }
}
