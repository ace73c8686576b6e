/* Attention over a KV cache of fp16 or fp32 elements: store, block, combine, normalize. */
#include "check.h"

#include "base/f16.h"
#include "base/memory.h"
#include "kernels/attention/attention.h"

enum { BLOCKS = 3, POSITIONS = BLOCKS * QN_KEY_BLOCK, PAGES = BLOCKS * QN_BLOCK_PAGES };

struct problem {
    bool is_f32;
    size_t head_dim, n_queries;
    uint8_t *keys, *values;
    size_t slots[2][PAGES]; /* of pages in keys and values */
    float *queries, *k, *v; /* the stored rows, before rounding */
    uint16_t visible[QN_QUERY_TILE];
    size_t n_stored;
};

static void shuffle(size_t *slots)
{
    for (size_t i = 0; i < PAGES; i++) {
        const size_t j = qn_random_below(i + 1);
        slots[i] = slots[j];
        slots[j] = i;
    }
}

static const char *type_name(bool is_f32)
{
    return is_f32 ? "f32" : "f16";
}

static size_t page_bytes(bool is_f32, size_t head_dim)
{
    return QN_PAGE * head_dim * (is_f32 ? sizeof(float) : sizeof(uint16_t));
}

static uint8_t *key_page(const struct problem *p, size_t page)
{
    return p->keys + p->slots[0][page] * page_bytes(p->is_f32, p->head_dim);
}

static uint8_t *value_page(const struct problem *p, size_t page)
{
    return p->values + p->slots[1][page] * page_bytes(p->is_f32, p->head_dim);
}

static const qn_attention_cache_kernels *kernels_of(const struct problem *p, const qn_attention_kernels *kernels)
{
    return p->is_f32 ? &kernels->f32 : &kernels->f16;
}

static void store(const struct problem *p, const qn_attention_kernels *kernels, size_t j)
{
    kernels_of(p, kernels)
        ->store(key_page(p, j / QN_PAGE), value_page(p, j / QN_PAGE), j % QN_PAGE, p->k + j * p->head_dim,
                p->v + j * p->head_dim, p->head_dim);
}

/* Pages are in any order in memory. Positions n_stored and later keep their poison, so that reading one as a value is
 * detected. */
static void problem_new(struct problem *p, const qn_attention_kernels *kernels, bool is_f32, size_t head_dim,
                        size_t n_queries, size_t n_stored)
{
    *p = (struct problem){ .is_f32 = is_f32,
                           .head_dim = head_dim,
                           .n_queries = n_queries,
                           .n_stored = n_stored,
                           .keys = qn_guarded(PAGES * page_bytes(is_f32, head_dim), 0),
                           .values = qn_guarded(PAGES * page_bytes(is_f32, head_dim), 0) };
    p->queries = qn_floats_of(n_queries * head_dim, 1 / sqrtf((float)head_dim));
    p->k = qn_floats_of(POSITIONS * head_dim, 2);
    p->v = qn_floats_of(POSITIONS * head_dim, 1);
    shuffle(p->slots[0]);
    shuffle(p->slots[1]);
    for (size_t j = 0; j < n_stored; j++)
        store(p, kernels, j);
}

static double rounded(const struct problem *p, float x)
{
    return (double)(p->is_f32 ? x : qn_f16_to_f32(qn_f32_to_f16(x)));
}

/* Softmax attention of one query over the first n positions but the first `left_out`, in double, on the contents of the
 * cache. */
static void attend_float64(const struct problem *p, const float *query, size_t left_out, size_t n, double *out)
{
    double scores[POSITIONS], largest = -INFINITY, total = 0;
    for (size_t j = left_out; j < n; j++) {
        scores[j] = 0;
        for (size_t d = 0; d < p->head_dim; d++)
            scores[j] += (double)query[d] * rounded(p, p->k[j * p->head_dim + d]);
        largest = scores[j] > largest ? scores[j] : largest;
    }
    for (size_t d = 0; d < p->head_dim; d++)
        out[d] = 0;
    for (size_t j = left_out; j < n; j++) {
        const double weight = exp(scores[j] - largest);
        total += weight;
        for (size_t d = 0; d < p->head_dim; d++)
            out[d] += weight * rounded(p, p->v[j * p->head_dim + d]);
    }
    for (size_t d = 0; d < p->head_dim; d++)
        out[d] /= total;
}

/* The pages of a block that hold one of the first n positions; the others are NULL. The next block to prefetch is the
 * first. */
static qn_attention_block block_of(const struct problem *p, size_t block, size_t n, bool do_prefetch)
{
    qn_attention_block pages = { 0 };
    for (size_t i = 0; i < QN_BLOCK_PAGES; i++) {
        const size_t page = block * QN_BLOCK_PAGES + i;
        const bool is_seen = page * QN_PAGE < n, is_prefetched = do_prefetch && i * QN_PAGE < n;
        pages.keys[i] = is_seen ? key_page(p, page) : NULL;
        pages.values[i] = is_seen ? value_page(p, page) : NULL;
        pages.next_keys[i] = is_prefetched ? key_page(p, i) : NULL;
    }
    return pages;
}

/* All blocks, combined and normalised in `result`, without the first `left_out` positions. Nothing is written for
 * queries without visible keys. */
static void run_all(const qn_attention_kernels *kernels, struct problem *p, const size_t *n_visible, size_t left_out,
                    float *result)
{
    const size_t dim = p->head_dim, n = p->n_queries;
    float m[QN_QUERY_TILE], l[QN_QUERY_TILE], scores[QN_QUERY_TILE * QN_KEY_BLOCK];
    for (size_t block = 0; block < BLOCKS; block++) {
        float *o = qn_guarded_floats(n * dim), *block_m = qn_guarded(2 * n * sizeof(float), 0), *block_l = block_m + n;
        for (size_t q = 0; q < n; q++) {
            const size_t first = block * QN_KEY_BLOCK;
            p->visible[q] = (uint16_t)(n_visible[q] <= first                 ? 0
                                       : n_visible[q] - first < QN_KEY_BLOCK ? n_visible[q] - first
                                                                             : QN_KEY_BLOCK);
        }
        qn_attention_block pages = block_of(p, block, p->n_stored, block == 0);
        pages.first = block ? 0 : left_out;
        kernels_of(p, kernels)->block(p->queries, n, &pages, p->visible, dim, o, block_m, block_l, scores);
        for (size_t q = 0; q < n; q++) {
            if (block == 0) {
                memcpy(result + q * dim, o + q * dim, dim * sizeof(float));
                m[q] = block_m[q];
                l[q] = block_l[q];
            } else if (p->visible[q]) {
                kernels->combine(result + q * dim, &m[q], &l[q], o + q * dim, block_m[q], block_l[q], dim);
            } else {
                qn_expect(isnan(block_m[q]), "query %zu without visible keys was written", q); /* poison is NaN */
            }
        }
    }
    for (size_t q = 0; q < n; q++)
        kernels->normalize(result + q * dim, result + q * dim, l[q], dim);
}

static void check_shape(bool is_f32, size_t head_dim, size_t n_queries, size_t n_stored)
{
    size_t n_visible[QN_QUERY_TILE];
    const size_t left_out = n_stored > 1 ? (n_queries + n_stored) % 2 : 0;
    float *expected = qn_floats(n_queries * head_dim), *found = qn_floats(n_queries * head_dim);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        const size_t mark = qn_mark();
        qn_attention_kernels kernels;
        struct problem p;
        qn_random_seed(head_dim * 1000 + n_queries * 10 + n_stored);
        qn_attention_kernels_init(&kernels, level->features);
        problem_new(&p, &kernels, is_f32, head_dim, n_queries, n_stored);
        for (size_t q = 0; q < n_queries; q++)
            n_visible[q] = q + 1 == n_queries ? n_stored : left_out + 1 + qn_random_below(n_stored - left_out);
        qn_case_begin("attention", level->name, "%s head_dim %zu queries %zu positions %zu", type_name(is_f32),
                      head_dim, n_queries, n_stored);
        run_all(&kernels, &p, n_visible, left_out, found);
        qn_expect_level(level, found, expected, n_queries * head_dim, "element");
        for (size_t q = 0; qn_is_reference(level) && q < n_queries; q++) {
            double exact[512], bound[512];
            attend_float64(&p, p.queries + q * head_dim, left_out, n_visible[q], exact);
            /* Scores of magnitude up to about 10 carry head_dim roundings of 2^-24 each, which the exponential turns
             * into a relative error; the sums over positions add theirs. Values are of magnitude 1. */
            for (size_t d = 0; d < head_dim; d++)
                bound[d] = (double)(10 * head_dim + n_stored + 64) * 0x1p-24;
            qn_expect_near(expected + q * head_dim, exact, bound, head_dim, "element");
        }
        qn_release_to(mark);
    }
    qn_release();
}

/* Values beyond the type's range are stored as its largest finite ones. A NaN value reaches the queries that attend to
 * its position, and no other query of the tile. */
static void check_not_finite(bool is_f32)
{
    enum { DIM = 32, QUERIES = 12, POSITION = 5 };
    for (const qn_cpu_level *level = qn_levels(); level->name; level++)
        for (int kind = 0; kind < 2; kind++) {
            qn_attention_kernels kernels;
            struct problem p;
            size_t n_visible[QUERIES];
            float found[QUERIES * DIM];
            qn_random_seed(3);
            qn_attention_kernels_init(&kernels, level->features);
            problem_new(&p, &kernels, is_f32, DIM, QUERIES, QUERIES);
            p.v[POSITION * DIM + 20] = kind ? -INFINITY : NAN;
            store(&p, &kernels, POSITION);
            for (size_t q = 0; q < QUERIES; q++)
                n_visible[q] = q + 1;
            qn_case_begin("attention", level->name, kind ? "%s a value of -infinity" : "%s a value that is NaN",
                          type_name(is_f32));
            run_all(&kernels, &p, n_visible, 0, found);
            for (size_t q = 0; q < QUERIES; q++)
                for (size_t d = 0; d < DIM; d++)
                    qn_expect(isfinite(found[q * DIM + d]) == (kind == 1 || q < POSITION),
                              "element %zu of query %zu is %g", d, q, (double)found[q * DIM + d]);
            qn_release();
        }
}

struct timed {
    const qn_attention_kernels *kernels;
    struct problem *p;
    qn_attention_block block;
    float *out, *scores;
    float m[QN_QUERY_TILE], l[QN_QUERY_TILE];
};

static void timed_block(void *context)
{
    struct timed *t = context;
    kernels_of(t->p, t->kernels)
        ->block(t->p->queries, t->p->n_queries, &t->block, t->p->visible, t->p->head_dim, t->out, t->m, t->l,
                t->scores);
}

static void bench_block(bool is_f32, size_t n_queries, const qn_cpu_level *level)
{
    qn_attention_kernels kernels;
    struct problem p;
    qn_attention_kernels_init(&kernels, level->features);
    problem_new(&p, &kernels, is_f32, 128, n_queries, QN_KEY_BLOCK);
    for (size_t q = 0; q < n_queries; q++)
        p.visible[q] = QN_KEY_BLOCK;
    struct timed timed = { .kernels = &kernels,
                           .p = &p,
                           .block = block_of(&p, 0, QN_KEY_BLOCK, false),
                           .out = qn_floats(n_queries * 128),
                           .scores = qn_floats(n_queries * QN_KEY_BLOCK) };
    const char *shape = qn_text("%s head_dim 128 queries %zu keys %d", type_name(is_f32), n_queries, QN_KEY_BLOCK);
    qn_bench("attention", level->name, shape, 4.0 * 128 * QN_KEY_BLOCK * (double)n_queries, "FLOP", timed_block,
             &timed);
    qn_release();
}

void qn_check_attention(bool bench)
{
    static const size_t dims[] = { 16, 32, 64, 80, 96, 128, 256, 512 }, queries[] = { 1, 2, 5, 8, 9, QN_QUERY_TILE };
    static const size_t stored[] = { 1, 15, 16, 17, 255, 256, 257, 600, POSITIONS };
    for (size_t d = 0; d < QN_LENGTH(dims); d++)
        for (size_t q = 0; q < QN_LENGTH(queries); q++)
            for (size_t s = 0; s < QN_LENGTH(stored); s++)
                if ((d + q + s) % 4 == 0 && dims[d] * queries[q] * stored[s] < 4 << 20) { /* the reference is slow */
                    check_shape(false, dims[d], queries[q], stored[s]);
                    check_shape(true, dims[d], queries[q], stored[s]);
                }
    check_not_finite(false);
    check_not_finite(true);
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        bench_block(false, 1, level);
        bench_block(false, QN_QUERY_TILE, level);
        bench_block(true, 1, level);
        bench_block(true, QN_QUERY_TILE, level);
    }
}
