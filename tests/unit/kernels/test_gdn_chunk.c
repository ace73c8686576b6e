/* qn_gdn_chunk and qn_gdn_step against the token recurrence in float64, against golden files, and against each other.
 * The single stages are tested in test_gdn_stages.c, rejected arguments in test_gdn_refuses.c. */
#include "helper_gdn.h"

/* The project's tolerance for f32. Measured: 3e-7; summing decays in f32 would cost 1e-4. */
#define BAR_F32 1e-5
/* The tolerance for bf16: a rounding is 1.7e-3 rms, and there are eight in sequence. */
#define BAR_BF16 1e-2
/* The tolerance for f16, whose significand has eleven bits instead of eight. */
#define BAR_F16 (BAR_BF16 / 8)
/* o is rounded to the type once, by at most half a unit in the last place. */
#define BAR_ONCE_BF16 0x1p-8
#define BAR_ONCE_F16 0x1p-11

static double chunk_bar(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? BAR_F32 : dtype == QN_DTYPE_F16 ? BAR_F16 : BAR_BF16;
}

static double step_bar(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? BAR_F32 : dtype == QN_DTYPE_F16 ? BAR_ONCE_F16 : BAR_ONCE_BF16;
}

static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
enum { N_TYPES = COUNT(types) };

static void run_chunk(gdn_problem *p)
{
    assert_ok(qn_gdn_chunk(&p->shape, p->q, p->k, p->v, p->g, p->beta, p->initial, p->final, p->o));
}

static void chunk_near_recurrence(gdn_problem *p, gdn_decay decay, gdn_keys keys, bool initial)
{
    const qn_gdn_shape *s = &p->shape;
    gdn_make(p, decay, keys, initial);
    label("type %d, T %zu, heads %zu/%zu, K %zu, V %zu, mapping %d, decay %d, keys %d", (int)p->dtype, s->tokens,
          s->k_heads, s->v_heads, s->head_k, s->head_v, (int)s->mapping, (int)decay, (int)keys);
    run_chunk(p);
    GDN_NEAR(p->o, p->o_true, chunk_bar(p->dtype));
    GDN_NEAR(p->final, p->final_true, chunk_bar(p->dtype));
    gdn_problem_free(p);
}

TEST(lengths)
{
    static const size_t tokens[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 200, 4097 };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t i = 0; i < COUNT(tokens); i++) {
            gdn_problem p = { .dtype = types[d],
                              .shape = { .batch = 1,
                                         .tokens = tokens[i],
                                         .k_heads = 1,
                                         .v_heads = 2,
                                         .head_k = 64,
                                         .head_v = 48,
                                         .scale = 0.125f } };
            chunk_near_recurrence(&p, i % 2 ? GDN_MIXED : GDN_MILD, GDN_RANDOM_KEYS, i % 3 == 0);
        }
}

TEST(decays_and_keys)
{
    for (size_t d = 0; d < N_TYPES; d++)
        for (int decay = GDN_NONE; decay <= GDN_ABSURD; decay++)
            for (int keys = GDN_RANDOM_KEYS; keys <= GDN_EQUAL_KEYS; keys++) {
                gdn_problem p = { .dtype = types[d],
                                  .shape = { .batch = 1,
                                             .tokens = 333,
                                             .k_heads = 1,
                                             .v_heads = 1,
                                             .head_k = 128,
                                             .head_v = 128,
                                             .scale = 0.088f } };
                chunk_near_recurrence(&p, (gdn_decay)decay, (gdn_keys)keys, true);
            }
}

TEST(sizes_and_mappings)
{
    static const size_t sizes[][2] = { { 16, 16 },   { 16, 256 },  { 256, 16 }, { 48, 80 },
                                       { 176, 112 }, { 256, 256 }, { 192, 128 } };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t i = 0; i < COUNT(sizes); i++) {
            gdn_problem p = { .dtype = types[d],
                              .shape = { .batch = 2,
                                         .tokens = 70,
                                         .k_heads = 2,
                                         .v_heads = 6,
                                         .head_k = sizes[i][0],
                                         .head_v = sizes[i][1],
                                         .scale = 0.1f,
                                         .mapping = i % 2 ? QN_GDN_TILED : QN_GDN_GROUPED,
                                         .normalize = i % 3 == 0 } };
            chunk_near_recurrence(&p, GDN_MILD, GDN_RANDOM_KEYS, i % 2);
        }
}

/* Packed sequences, one of them empty, and trailing tokens outside of all: each sequence has the same bits as alone. */
TEST(ragged)
{
    for (size_t d = 0; d < N_TYPES; d++) {
        gdn_problem p = { .dtype = types[d],
                          .ends = { 0, 5, 5, 69, 198 },
                          .shape = { .batch = 1,
                                     .tokens = 203,
                                     .k_heads = 2,
                                     .v_heads = 4,
                                     .head_k = 32,
                                     .head_v = 16,
                                     .scale = 0.2f,
                                     .mapping = QN_GDN_TILED,
                                     .n_sequences = 4 } };
        gdn_make(&p, GDN_MIXED, GDN_RANDOM_KEYS, true);
        label("ragged, type %d", (int)p.dtype);
        assert_int_equal(p.n_chunks, 1 + 0 + 1 + 3);
        run_chunk(&p);
        GDN_NEAR(p.o, p.o_true, chunk_bar(p.dtype));
        GDN_NEAR(p.final, p.final_true, chunk_bar(p.dtype));
        const size_t size = gdn_size(p.dtype), state = 4 * 32 * 16;
        for (size_t s = 0; s < 4; s++) {
            label("sequence %zu alone", s);
            size_t n;
            const size_t first = gdn_sequence(&p, s, &n);
            if (!n)
                continue;
            qn_gdn_shape alone = p.shape;
            alone.n_sequences = 0;
            alone.tokens = n;
            const qn_view o = gdn_new(p.dtype, n * 4 * 16), final = gdn_new(QN_DTYPE_F32, state);
            const qn_view q = { (char *)p.q.data + first * 2 * 32 * size, p.dtype, n * 2 * 32 };
            const qn_view k = { (char *)p.k.data + first * 2 * 32 * size, p.dtype, n * 2 * 32 };
            const qn_view v = { (char *)p.v.data + first * 4 * 16 * size, p.dtype, n * 4 * 16 };
            const qn_view g = { (float *)p.g.data + first * 4, QN_DTYPE_F32, n * 4 };
            const qn_view beta = { (float *)p.beta.data + first * 4, QN_DTYPE_F32, n * 4 };
            const qn_view initial = { (float *)p.initial.data + s * state, QN_DTYPE_F32, state };
            assert_ok(qn_gdn_chunk(&alone, q, k, v, g, beta, initial, final, o));
            assert_memory_equal(o.data, (char *)p.o.data + first * 4 * 16 * size, o.count * size);
            assert_memory_equal(final.data, (float *)p.final.data + s * state, state * sizeof(float));
            gdn_free(o);
            gdn_free(final);
        }
        gdn_problem_free(&p);
    }
}

/* Without a final state; and with the state updated in place, which must give the same bits as separate views. */
TEST(states_are_optional)
{
    for (size_t d = 0; d < N_TYPES; d++) {
        gdn_problem p = { .dtype = types[d],
                          .shape = { .batch = 1,
                                     .tokens = 100,
                                     .k_heads = 1,
                                     .v_heads = 2,
                                     .head_k = 32,
                                     .head_v = 32,
                                     .scale = 0.2f } };
        gdn_make(&p, GDN_MILD, GDN_RANDOM_KEYS, true);
        label("states, type %d", (int)p.dtype);
        run_chunk(&p);
        const qn_view o = gdn_new(p.dtype, p.o.count);
        assert_ok(qn_gdn_chunk(&p.shape, p.q, p.k, p.v, p.g, p.beta, p.initial, (qn_view){ 0 }, o));
        assert_memory_equal(o.data, p.o.data, o.count * gdn_size(o.dtype));
        assert_ok(qn_gdn_chunk(&p.shape, p.q, p.k, p.v, p.g, p.beta, p.initial, p.initial, o));
        assert_memory_equal(p.initial.data, p.final.data, p.final.count * sizeof(float));
        gdn_free(o);
        gdn_problem_free(&p);
    }
}

TEST(step_near_recurrence)
{
    static const size_t sizes[][2] = { { 128, 128 }, { 16, 48 }, { 256, 16 } };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t i = 0; i < 3; i++)
            for (int mapping = QN_GDN_GROUPED; mapping <= QN_GDN_TILED; mapping++) {
                gdn_problem p = { .dtype = types[d],
                                  .shape = { .batch = 5,
                                             .tokens = i ? 1 : 70,
                                             .k_heads = 2,
                                             .v_heads = 4,
                                             .head_k = sizes[i][0],
                                             .head_v = sizes[i][1],
                                             .scale = 0.1f,
                                             .mapping = (qn_gdn_mapping)mapping } };
                gdn_make(&p, GDN_MIXED, GDN_RANDOM_KEYS, true);
                label("step, type %d, K %zu, V %zu, mapping %d", (int)p.dtype, sizes[i][0], sizes[i][1], mapping);
                assert_ok(qn_gdn_step(&p.shape, p.q, p.k, p.v, p.g, p.beta, p.initial, p.o));
                GDN_NEAR(p.o, p.o_true, step_bar(p.dtype));
                GDN_NEAR(p.initial, p.final_true, BAR_F32);
                gdn_problem_free(&p);
            }
}

/* shape.normalize has the same bits as qn_l2_norm before the call. */
TEST(normalized_inside_and_before)
{
    for (size_t d = 0; d < N_TYPES; d++) {
        gdn_problem p = { .dtype = types[d],
                          .shape = { .batch = 1,
                                     .tokens = 90,
                                     .k_heads = 2,
                                     .v_heads = 2,
                                     .head_k = 48,
                                     .head_v = 32,
                                     .scale = 0.2f,
                                     .normalize = true } };
        gdn_make(&p, GDN_MILD, GDN_RANDOM_KEYS, true);
        for (size_t i = 0; i < p.q.count; i++) {
            gdn_set(p.q, i, 3 * gdn_get(p.q, i));
            gdn_set(p.k, i, 0.2 * gdn_get(p.k, i));
        }
        label("normalized, type %d", (int)p.dtype);
        gdn_solve(&p);
        run_chunk(&p);
        GDN_NEAR(p.o, p.o_true, chunk_bar(p.dtype));
        const qn_view q = gdn_new(p.dtype, p.q.count), k = gdn_new(p.dtype, p.k.count), o = gdn_new(p.dtype, p.o.count);
        assert_ok(qn_l2_norm(p.q, 180, 48, 1e-6f, q));
        assert_ok(qn_l2_norm(p.k, 180, 48, 1e-6f, k));
        p.shape.normalize = false;
        assert_ok(qn_gdn_chunk(&p.shape, q, k, p.v, p.g, p.beta, p.initial, p.final, o));
        assert_memory_equal(o.data, p.o.data, o.count * gdn_size(o.dtype));
        gdn_free(q);
        gdn_free(k);
        gdn_free(o);
        gdn_problem_free(&p);
    }
}

/* ---- Golden files: tools/make_gdn_golden.py documents their contents ---- */

static void read_exactly(FILE *file, void *data, size_t size, size_t count)
{
    assert_int_equal(fread(data, size, count, file), count);
}

static void golden_file(const char *name)
{
    char path[1000];
    uint32_t head[10];
    snprintf(path, sizeof path, "%s/tests/golden/gdn_%s.bin", QN_SOURCE_DIR, name);
    label("golden %s", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    read_exactly(file, head, sizeof head[0], 10);
    gdn_problem p = { .dtype = QN_DTYPE_BF16,
                      .shape = { .batch = head[0],
                                 .tokens = head[1],
                                 .k_heads = head[2],
                                 .v_heads = head[3],
                                 .head_k = head[4],
                                 .head_v = head[5],
                                 .mapping = head[6] ? QN_GDN_TILED : QN_GDN_GROUPED,
                                 .normalize = head[7],
                                 .n_sequences = head[8],
                                 .scale = 1 / sqrtf((float)head[4]) } };
    assert_in_range(head[8], 0, 7);
    if (head[8])
        read_exactly(file, p.ends, sizeof p.ends[0], head[8] + 1);
    gdn_allocate(&p, head[9]);
    read_exactly(file, p.q.data, 2, p.q.count);
    read_exactly(file, p.k.data, 2, p.k.count);
    read_exactly(file, p.v.data, 2, p.v.count);
    read_exactly(file, p.g.data, 4, p.g.count);
    read_exactly(file, p.beta.data, 4, p.beta.count);
    if (head[9])
        read_exactly(file, p.initial.data, 4, p.initial.count);
    float *o = malloc(p.o.count * sizeof *o), *final = malloc(p.final.count * sizeof *final);
    read_exactly(file, o, sizeof *o, p.o.count);
    read_exactly(file, final, sizeof *final, p.final.count);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    const size_t used = head[8] ? p.ends[head[8]] : p.rows;
    for (size_t i = 0; i < p.o.count; i++)
        p.o_true[i] = i < used * head[3] * head[5] ? (double)o[i] : (double)NAN;
    for (size_t i = 0; i < p.final.count; i++)
        p.final_true[i] = (double) final[i];
    for (size_t d = 0; d < N_TYPES; d++) {
        if (types[d] == QN_DTYPE_F16)
            continue; /* f16 cannot represent all bf16 inputs */
        gdn_problem typed = p;
        typed.dtype = types[d];
        typed.o = gdn_new(types[d], p.o.count);
        const qn_view from[] = { p.q, p.k, p.v };
        qn_view *const to[] = { &typed.q, &typed.k, &typed.v };
        for (int x = 0; x < 3; x++) {
            *to[x] = gdn_new(types[d], from[x].count);
            for (size_t i = 0; i < from[x].count; i++)
                gdn_set(*to[x], i, gdn_get(from[x], i));
        }
        run_chunk(&typed);
        GDN_NEAR(typed.o, p.o_true, chunk_bar(types[d]));
        GDN_NEAR(typed.final, p.final_true, chunk_bar(types[d]));
        if (p.initial.data)
            memcpy(p.final.data, p.initial.data, p.final.count * sizeof(float));
        else
            memset(p.final.data, 0, p.final.count * sizeof(float));
        gdn_poison(typed.o);
        assert_ok(qn_gdn_step(&p.shape, typed.q, typed.k, typed.v, p.g, p.beta, p.final, typed.o));
        GDN_NEAR(typed.o, p.o_true, p.shape.normalize ? chunk_bar(types[d]) : step_bar(types[d]));
        GDN_NEAR(p.final, p.final_true, p.shape.normalize ? chunk_bar(types[d]) : BAR_F32);
        for (int x = 0; x < 3; x++)
            gdn_free(*to[x]);
        gdn_free(typed.o);
    }
    free(o);
    free(final);
    gdn_problem_free(&p);
}

TEST(golden)
{
    golden_file("grouped");
    golden_file("tiled");
    golden_file("ragged");
}
