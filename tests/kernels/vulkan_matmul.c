/* Matmuls of all weight formats on a Vulkan device, against float64, and the same bits for a row among any others. The
 * activations are those that `prepare` has quantised, whose values are read from the device. */
#include "vulkan.h"

#include "problem.h"

enum { MAX_MATRICES = QN_VK_MATMUL_OUTS, MAX_TOKENS = 19, BLOCK = 128 /* columns */ };

/* Matrices of one type and one input. */
struct matrices {
    const qn_type_info *type;
    size_t n, n_rows[MAX_MATRICES], n_cols, n_tokens;
    bool accumulates;
    size_t planes; /* of the activations' integers */
    bool wraps;    /* more groups than a dimension of the grid has */
};

/* The device's copy: words of codes, then of scales, of tiles. */
struct packed {
    uint32_t *codes, *scales;
    uint32_t first_tiles[MAX_MATRICES];
    size_t n_tiles;
};

static struct packed pack(const struct matrices *m, uint8_t *const *data, size_t row_bytes, const qn_vk_format *format)
{
    struct packed p = { 0 };
    const size_t code_words = qn_vk_code_words(format, m->n_cols), scale_words = qn_vk_scale_words(format, m->n_cols);
    float *scratch = qn_floats(m->n_cols);
    for (size_t i = 0; i < MAX_MATRICES; i++) {
        p.first_tiles[i] = i < m->n ? (uint32_t)p.n_tiles : UINT32_MAX;
        p.n_tiles += i < m->n ? (m->n_rows[i] + QN_VK_TILE_ROWS - 1) / QN_VK_TILE_ROWS : 0;
    }
    p.codes = qn_new(p.n_tiles * QN_VK_TILE_ROWS * code_words, sizeof *p.codes);
    p.scales = qn_new(p.n_tiles * QN_VK_TILE_ROWS * scale_words + 1, sizeof *p.scales);
    for (size_t i = 0; i < m->n; i++)
        for (size_t row = 0; row < m->n_rows[i]; row++) {
            const size_t to = p.first_tiles[i] * QN_VK_TILE_ROWS + row;
            qn_vk_pack_row(m->type, data[i] + row * row_bytes, m->n_cols, scratch, p.codes + to * code_words,
                           p.scales + to * scale_words);
        }
    return p;
}

/* ---- Activations ---- */

/* Quantises rows. */
static const qn_vk_array *quantize(const struct matrices *m, const float *x)
{
    const qn_vk_array *codes = qn_vk_new_array(m->n_tokens * qn_vk_act_row_bytes(m->n_cols, m->planes));
    const qn_vk_prepare_args args = { .x = qn_vk_array_of(x)->at,
                                      .codes = codes->at,
                                      .width = (uint32_t)m->n_cols,
                                      .piece = 256,
                                      .dim = 32,
                                      .planes = (uint32_t)m->planes };
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_GATE, false, m->n_tokens, m->n_cols, args.piece), &args);
    return codes;
}

/* The integer of a column of a row (acts.glsl). */
static int integer_at(const int8_t *row, size_t n_blocks, size_t planes, size_t column)
{
    const size_t block = column / BLOCK, in = column % BLOCK;
    const int8_t *plane = row + (in / 16 * n_blocks + block) * 16 + in % 16;
    return planes == 2 ? 256 * plane[0] + plane[n_blocks * BLOCK] : plane[0];
}

/* Returns the values of integers, having checked them, their sums, and the zeros after the last column. */
static double *values_of(const struct matrices *m, const qn_vk_array *codes, const float *x)
{
    const size_t n_blocks = (m->n_cols + BLOCK - 1) / BLOCK, bytes = qn_vk_act_row_bytes(m->n_cols, m->planes),
                 n = m->n_tokens * m->n_cols;
    const int8_t *rows = qn_vk_contents(codes);
    double *values = qn_doubles(n), *expected = qn_doubles(n), *bound = qn_doubles(n);
    float *found = qn_floats(n);
    for (size_t t = 0; t < m->n_tokens; t++)
        for (size_t group = 0; group < n_blocks * 4; group++) {
            struct {
                float scale;
                int32_t sum;
            } info;
            memcpy(&info, rows + t * bytes + n_blocks * m->planes * BLOCK + 8 * (group % 4 * n_blocks + group / 4),
                   sizeof info);
            for (size_t column = 32 * group; column < 32 * group + 32; column++) {
                const int q = integer_at(rows + t * bytes, n_blocks, m->planes, column);
                const size_t at = t * m->n_cols + column;
                info.sum -= q;
                qn_expect(column < m->n_cols || !q, "a value after the last column is %d", q);
                if (column >= m->n_cols)
                    continue;
                values[at] = (double)q * (double)info.scale;
                found[at] = (float)values[at];
                expected[at] = (double)x[at];
                bound[at] = (double)info.scale * (0.5 + 0x1p-6);
            }
            qn_expect(!info.sum, "the sum of group %zu is %d too large", group, info.sum);
        }
    qn_expect_near(found, expected, bound, n, "integer");
    return values;
}

static double *doubles_of(const float *x, size_t n)
{
    double *values = qn_doubles(n);
    for (size_t i = 0; i < n; i++)
        values[i] = (double)x[i];
    return values;
}

/* ---- Results ---- */

/* Results in float64 and their bounds, from weights as the type's to_float gives them; in fp16 they have 2^-11 more. */
static void expect_rows(const struct matrices *m, size_t matrix, const uint8_t *data, size_t row_bytes, const double *x,
                        const float *before, bool is_f16, double *expected, double *bound)
{
    float *weights = qn_floats(m->n_cols);
    for (size_t row = 0; row < m->n_rows[matrix]; row++) {
        m->type->to_float(data + row * row_bytes, m->n_cols / m->type->block_weights, weights);
        for (size_t t = 0; t < m->n_tokens; t++) {
            const size_t at = t * m->n_rows[matrix] + row;
            double sum = m->accumulates ? (double)before[at] : 0, size = fabs(sum);
            for (size_t i = 0; i < m->n_cols; i++) {
                const double term = (double)weights[i] * x[t * m->n_cols + i];
                sum += term;
                size += fabs(term);
            }
            expected[at] = sum;
            bound[at] = size * ((double)(m->n_cols / 64 + 40) * 0x1p-24 + (is_f16 ? 0x1p-11 : 0)) + 1e-5;
        }
    }
}

/* Runs the matmul for the first n_tokens tokens; ys [m->n] are their results. */
static void run(const struct matrices *m, const struct packed *p, const qn_vk_format *format, const qn_vk_array *acts,
                float *const *before, size_t n_tokens, float **ys)
{
    const qn_vk_array *outs[MAX_MATRICES];
    qn_vk_matmul_args args = { .codes = qn_vk_array_of(p->codes)->at,
                               .scales = qn_vk_array_of(p->scales)->at,
                               .acts = acts->at,
                               .n_cols = (uint32_t)m->n_cols,
                               .n_tokens = (uint32_t)n_tokens,
                               .n_tiles = (uint32_t)p->n_tiles,
                               .accumulate = m->accumulates ? (1u << m->n) - 1 : 0 };
    for (size_t i = 0; i < MAX_MATRICES; i++) {
        args.first_tiles[i] = p->first_tiles[i];
        if (i >= m->n)
            continue;
        outs[i] =
            m->accumulates ? qn_vk_array_of(before[i]) : qn_vk_new_array(m->n_tokens * m->n_rows[i] * sizeof(float));
        args.outs[i] = outs[i]->at;
        args.n_rows[i] = args.strides[i] = (uint32_t)m->n_rows[i];
    }
    const qn_vk_matmul_kind kind = { .planes = (uint32_t)m->planes };
    const qn_vk_launch launch = qn_vk_matmul(format, &qn_vk_device_info()->features, &kind, &args);
    qn_expect(!m->wraps || n_tokens > 1 || launch.groups[1] > 1, "groups of one dimension alone");
    qn_vk_launch_now(launch, &args);
    for (size_t i = 0; i < m->n; i++)
        ys[i] = qn_vk_contents(outs[i]);
}

static void check(const struct matrices *m)
{
    const qn_vk_format format = qn_vk_format_of(m->type);
    const size_t row_bytes = m->n_cols / m->type->block_weights * m->type->block_bytes;
    const float *x = qn_floats_of(m->n_tokens * m->n_cols, 1);
    uint8_t *data[MAX_MATRICES];
    float *before[MAX_MATRICES], *all[MAX_MATRICES], *one[MAX_MATRICES], *few[MAX_MATRICES];
    const size_t n_few = m->n_tokens < QN_VK_FEW_ROWS ? m->n_tokens : QN_VK_FEW_ROWS;
    qn_case_begin("matmul", "vulkan", "%s %zu x %zu, %zu tokens, %zu matrices%s%s", m->type->name, m->n_cols,
                  m->n_rows[0], m->n_tokens, m->n, m->accumulates ? ", added" : "", m->planes == 2 ? ", hi/lo" : "");
    for (size_t i = 0; i < m->n; i++) {
        data[i] = qn_new(m->n_rows[i] * row_bytes, 1);
        before[i] = qn_floats_of(m->n_tokens * m->n_rows[i], 1);
        qn_random_blocks(m->type, data[i], m->n_rows[i] * row_bytes / m->type->block_bytes, 4);
    }
    const struct packed p = pack(m, data, row_bytes, &format);
    const bool is_f16 = qn_vk_is_f16(m->type);
    const qn_vk_array *acts = is_f16 ? qn_vk_array_of(x) : quantize(m, x);
    const double *values = is_f16 ? doubles_of(x, m->n_tokens * m->n_cols) : values_of(m, acts, x);
    run(m, &p, &format, acts, before, m->n_tokens, all);
    run(m, &p, &format, acts, before, 1, one);
    run(m, &p, &format, acts, before, n_few, few);
    for (size_t i = 0; i < m->n; i++) {
        const size_t n = m->n_tokens * m->n_rows[i];
        double *expected = qn_doubles(n), *bound = qn_doubles(n);
        expect_rows(m, i, data[i], row_bytes, values, before[i], is_f16, expected, bound);
        qn_expect_near(all[i], expected, bound, n, "result");
        qn_expect_same(one[i], all[i], m->n_rows[i], "result of one token");
        qn_expect_same(few[i], all[i], n_few * m->n_rows[i], "result of a few tokens");
    }
    qn_release();
}

/* ---- Epilogues ---- */

struct fused {
    const qn_type_info *type;
    size_t n_cols, n_rows, n_tokens;
    qn_vk_matmul_kind kind;
};

/* signs: of a transform of blocks of `rotated`; 0: none. */
static const qn_vk_array *prepare(qn_vk_prepare_op op, const qn_vk_array *x, const qn_vk_array *x2,
                                  const qn_vk_array *weight, size_t width, size_t n_tokens, uint32_t planes,
                                  uint32_t rotated, uint64_t signs)
{
    const size_t bytes = n_tokens * qn_vk_act_row_bytes(width, planes);
    const qn_vk_array *codes = qn_vk_array_of(qn_new(bytes, 1)); /* zeros: sums of squares may be absent */
    const qn_vk_prepare_args args = { .x = x->at,
                                      .x2 = x2 ? x2->at : 0,
                                      .weight = weight->at,
                                      .codes = codes->at,
                                      .width = (uint32_t)width,
                                      .piece = rotated ? rotated : 256,
                                      .dim = 32,
                                      .eps = 1e-5f,
                                      .signs = signs,
                                      .factor = 0.125f,
                                      .planes = planes };
    qn_vk_launch_now(qn_vk_prepare(op, rotated != 0, n_tokens, width, args.piece), &args);
    return codes;
}

static void compare(const qn_vk_array *found, const qn_vk_array *expected, const char *what)
{
    qn_expect(!memcmp(qn_vk_contents(found), qn_vk_contents(expected), found->bytes),
              "%s: other bits than without epilogue", what);
}

/* The same bits as the matmul, and then the kernel that computes the activations. */
static void check_epilogue(const struct fused *f)
{
    const bool is_norm = f->kind.epilogue == QN_VK_EPILOGUE_NORM;
    const struct matrices m = {
        .type = f->type, .n = is_norm ? 1 : 2, .n_rows = { f->n_rows, f->n_rows }, .n_cols = f->n_cols
    };
    const qn_vk_format format = qn_vk_format_of(f->type);
    const size_t row_bytes = f->n_cols / f->type->block_weights * f->type->block_bytes, n = f->n_tokens * f->n_rows;
    const qn_vk_array *x = qn_vk_array_of(qn_floats_of(f->n_tokens * f->n_cols, 2)), *outs[2][2],
                      *weight = qn_vk_array_of(qn_floats_of(f->n_cols + f->n_rows, 1));
    const float *before = qn_floats_of(n, 1);
    uint8_t *data[MAX_MATRICES] = { 0 };
    qn_case_begin("matmul", "vulkan", "%s %zu x %zu, %zu tokens, epilogue %d to %u planes%s%s", f->type->name,
                  f->n_cols, f->n_rows, f->n_tokens, f->kind.epilogue, f->kind.next_planes,
                  f->kind.is_normed ? ", normed" : "", f->kind.rotated ? ", rotated" : "");
    for (size_t i = 0; i < m.n; i++) {
        data[i] = qn_new(f->n_rows * row_bytes, 1);
        qn_random_blocks(f->type, data[i], f->n_rows * row_bytes / f->type->block_bytes, 4);
    }
    const struct packed p = pack(&m, data, row_bytes, &format);
    const qn_vk_array *acts = prepare(f->kind.is_normed ? QN_VK_PREPARE_NORM : QN_VK_PREPARE_GATE, x, NULL, weight,
                                      f->n_cols, f->n_tokens, f->kind.planes, 0, 0);
    const qn_vk_array *next = NULL;
    qn_vk_matmul_args args = { .codes = qn_vk_array_of(p.codes)->at,
                               .scales = qn_vk_array_of(p.scales)->at,
                               .acts = acts->at,
                               .n_cols = (uint32_t)f->n_cols,
                               .n_tokens = (uint32_t)f->n_tokens,
                               .n_tiles = (uint32_t)p.n_tiles,
                               .accumulate = is_norm,
                               .eps = 1e-5f };
    qn_vk_rotated *rotated = qn_new(1, sizeof *rotated);
    const qn_vk_array *arrived = qn_vk_array_of(qn_new(f->n_rows, sizeof(uint32_t)));
    *rotated = (qn_vk_rotated){ .arrived = arrived->at,
                                .y = qn_vk_new_array(f->n_rows * sizeof(float))->at,
                                .signs = qn_vk_array_of(qn_floats_of(f->n_rows, 1))->at,
                                .factor = 0.125f };
    const uint64_t rotated_at = qn_vk_array_of(rotated)->at;
    for (int run = 0; run < (f->kind.rotated ? 3 : 2); run++) { /* with counters twice: they are 0 again */
        const int with = run > 0;
        qn_vk_matmul_kind kind = f->kind;
        kind.epilogue = with ? f->kind.epilogue : QN_VK_EPILOGUE_NONE;
        for (size_t i = 0; i < MAX_MATRICES; i++) {
            args.first_tiles[i] = p.first_tiles[i];
            if (i < m.n) {
                outs[with][i] = qn_vk_array_of(before);
                args.outs[i] = outs[with][i]->at;
                args.n_rows[i] = args.strides[i] = (uint32_t)f->n_rows;
            }
        }
        if (with && f->kind.rotated)
            args.outs[QN_VK_OUT_ROTATED] = rotated_at;
        next = qn_vk_array_of(qn_new(f->n_tokens * qn_vk_act_row_bytes(f->n_rows, f->kind.next_planes), 1));
        args.outs[QN_VK_OUT_ACTS] = next->at;
        args.outs[QN_VK_OUT_WEIGHT] = weight->at;
        qn_vk_launch_now(qn_vk_matmul(&format, &qn_vk_device_info()->features, &kind, &args), &args);
    }
    const qn_vk_array *expected =
        prepare(is_norm ? QN_VK_PREPARE_NORM : QN_VK_PREPARE_SWIGLU, outs[0][0], is_norm ? NULL : outs[0][1], weight,
                f->n_rows, f->n_tokens, f->kind.next_planes, f->kind.rotated, rotated->signs);
    compare(next, expected, "activations");
    if (is_norm)
        compare(outs[1][0], outs[0][0], "results");
    const uint32_t *counters = qn_vk_contents(arrived);
    for (size_t i = 0; i < f->n_rows; i++)
        qn_expect(!counters[i], "counter %zu is %u", i, counters[i]);
    qn_release();
}

struct heads {
    uint32_t dim, n_kv;
    bool is_interleaved;
};

/* Rope of queries, which have gates, of keys and of values in the epilogue: the bits of rope in a kernel of its own. */
static void check_heads(const struct heads *h)
{
    enum { MATRICES = 3, ROT = 32, N_COLS = 1024 };
    const uint32_t heads[MATRICES] = { 3 * h->n_kv, h->n_kv, h->n_kv },
                   strides[MATRICES] = { 2 * h->dim, h->dim, h->dim };
    struct matrices m = {
        .type = qn_type_find(QN_TYPE_Q1_0), .n = MATRICES, .n_cols = N_COLS, .n_tokens = 1, .planes = 1
    };
    const qn_vk_format format = qn_vk_format_of(m.type);
    const qn_vk_features *features = &qn_vk_device_info()->features;
    const size_t row_bytes = N_COLS / m.type->block_weights * m.type->block_bytes;
    uint8_t *data[MAX_MATRICES] = { 0 };
    size_t n_rows = 0;
    qn_case_begin("matmul", "vulkan", "rope of %u heads of %u%s", heads[0], h->dim,
                  h->is_interleaved ? ", interleaved" : "");
    for (size_t i = 0; i < MATRICES; i++) {
        m.n_rows[i] = heads[i] * strides[i];
        n_rows += m.n_rows[i];
        data[i] = qn_new(m.n_rows[i] * row_bytes, 1);
        qn_random_blocks(m.type, data[i], m.n_rows[i] * row_bytes / m.type->block_bytes, 4);
    }
    const struct packed p = pack(&m, data, row_bytes, &format);
    qn_vk_matmul_args args = { .codes = qn_vk_array_of(p.codes)->at,
                               .scales = qn_vk_array_of(p.scales)->at,
                               .acts = quantize(&m, qn_floats_of(N_COLS, 1))->at,
                               .n_cols = N_COLS,
                               .n_tokens = 1,
                               .n_tiles = (uint32_t)p.n_tiles };
    qn_vk_heads *fused = qn_new(1, sizeof *fused);
    const qn_vk_array *found[MATRICES], *expected[MATRICES];
    const uint64_t angles = qn_vk_array_of(qn_floats_of(ROT, 1))->at,
                   norm = qn_vk_array_of(qn_floats_of(h->dim, 1))->at,
                   signs = h->dim & (h->dim - 1) ? 0 : qn_vk_array_of(qn_floats_of(h->dim, 1))->at;
    fused->arrived = qn_vk_array_of(qn_new(n_rows / QN_VK_HEADS_UNIT, sizeof(uint32_t)))->at;
    args.first_tiles[MATRICES] = UINT32_MAX;
    for (size_t i = 0; i < MATRICES; i++) {
        found[i] = qn_vk_new_array(heads[i] * h->dim * sizeof(float));
        expected[i] = qn_vk_new_array(heads[i] * h->dim * sizeof(float));
        args.outs[i] = qn_vk_new_array(m.n_rows[i] * sizeof(float))->at;
        args.first_tiles[i] = p.first_tiles[i];
        args.n_rows[i] = args.strides[i] = (uint32_t)m.n_rows[i];
        fused->of[i] = (qn_vk_rope_args){ .x = args.outs[i],
                                          .y = found[i]->at,
                                          .bias = i ? 0 : qn_vk_array_of(qn_floats_of(heads[i] * h->dim, 1))->at,
                                          .weight = i < 2 ? norm : 0,
                                          .angles = angles,
                                          .signs = signs,
                                          .stride = strides[i],
                                          .dim = h->dim,
                                          .n_rot = i < 2 ? ROT : 0,
                                          .is_interleaved = h->is_interleaved,
                                          .eps = 1e-5f,
                                          .scale = 0.125f,
                                          .factor = 0.125f };
    }
    qn_vk_matmul_kind kind = { .planes = 1 };
    qn_vk_launch_now(qn_vk_matmul(&format, features, &kind, &args), &args);
    for (size_t i = 0; i < MATRICES; i++) {
        qn_vk_rope_args rope = fused->of[i];
        rope.y = expected[i]->at;
        qn_vk_launch_now(qn_vk_rope(1, heads[i]), &rope);
    }
    args.outs[QN_VK_OUT_HEADS] = qn_vk_array_of(fused)->at;
    kind.epilogue = QN_VK_EPILOGUE_HEADS;
    for (int i = 0; i < 2; i++) /* the counters are 0 again */
        qn_vk_launch_now(qn_vk_matmul(&format, features, &kind, &args), &args);
    for (size_t i = 0; i < MATRICES; i++)
        compare(found[i], expected[i], "rope");
    qn_release();
}

static void check_all_heads(void)
{
    static const struct heads heads[] = { { 64, 1, false }, { 32, 1, true }, { 96, 2, false } };
    for (size_t i = 0; i < QN_LENGTH(heads); i++)
        if (qn_case_selected())
            check_heads(&heads[i]);
}

static void check_epilogues(void)
{
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PTQ1_0, QN_TYPE_Q8_0 };
    static const size_t tokens[] = { 1, 3, QN_VK_FEW_ROWS };
    for (size_t i = 0; i < QN_LENGTH(types); i++)
        for (size_t t = 0; t < QN_LENGTH(tokens); t++) {
            const bool is_norm = (i + t) % 2;
            if (!qn_case_selected())
                continue;
            check_epilogue(&(struct fused){
                .type = qn_type_find(types[i]),
                .n_cols = i % 2 ? 2560 : 4096,
                .n_rows = t ? 128 : 384,
                .n_tokens = tokens[t],
                .kind = { .epilogue = is_norm ? QN_VK_EPILOGUE_NORM : QN_VK_EPILOGUE_SWIGLU,
                          .is_normed = t != 1,
                          .planes = 1 + (uint32_t)(i == 3),
                          .next_planes = 1 + (uint32_t)(t == 2),
                          .rotated = t == 0 && i > 0 ? 128 : 0 },
            });
        }
}

/* ---- Speed ---- */

/* A matrix in many copies, so that none is found in a cache. */
static void bench_matrix(const qn_type_info *type, size_t n_cols, size_t n_rows, size_t n_tokens)
{
    enum { MAX_COPIES = 16, CACHE_BYTES = 200 << 20 };
    const qn_vk_format format = qn_vk_format_of(type);
    const size_t tiles = (n_rows + QN_VK_TILE_ROWS - 1) / QN_VK_TILE_ROWS,
                 codes = tiles * QN_VK_TILE_ROWS * qn_vk_code_words(&format, n_cols) * sizeof(uint32_t),
                 scales = tiles * QN_VK_TILE_ROWS * qn_vk_scale_words(&format, n_cols) * sizeof(uint32_t),
                 fitting = CACHE_BYTES / (codes + scales), copies = fitting < MAX_COPIES ? fitting + 1 : MAX_COPIES;
    const qn_vk_matmul_kind kind = { .planes = 1 };
    qn_vk_matmul_args args[MAX_COPIES];
    const qn_vk_array *acts = qn_vk_new_array(n_tokens * qn_vk_act_row_bytes(n_cols, 1)),
                      *out = qn_vk_new_array(n_tokens * n_rows * sizeof(float));
    for (size_t i = 0; i < copies; i++) {
        const uint64_t at = qn_vk_new_array(codes + scales)->at;
        args[i] = (qn_vk_matmul_args){ .codes = at,
                                       .scales = at + codes,
                                       .acts = acts->at,
                                       .outs = { out->at },
                                       .first_tiles = { 0, UINT32_MAX, UINT32_MAX, UINT32_MAX },
                                       .n_rows = { (uint32_t)n_rows },
                                       .strides = { (uint32_t)n_rows },
                                       .n_cols = (uint32_t)n_cols,
                                       .n_tokens = (uint32_t)n_tokens,
                                       .n_tiles = (uint32_t)tiles };
    }
    qn_vk_bench_launches("matmul", qn_text("%s %zu x %zu, %zu tokens", type->name, n_cols, n_rows, n_tokens),
                         n_tokens > 8 ? 2.0 * (double)(n_rows * n_cols * n_tokens) : (double)(codes + scales),
                         n_tokens > 8 ? "FLOP" : "B",
                         qn_vk_matmul(&format, &qn_vk_device_info()->features, &kind, args), args, copies);
    qn_release();
}

/* The matmuls of a layer of a 27B model, in the order of a token and with its epilogues, for more copies of the weights
 * than caches hold: all of them in turn, and each by itself, whose code then stays in caches. */
static void bench_layers(const qn_type_info *type, uint32_t n_tokens)
{
    enum { COPIES = 12, OF_LAYER = 4, MOST = 17408 };
    static const struct {
        uint32_t n_cols, n_rows; /* of each matrix */
        qn_vk_epilogue epilogue;
        bool is_normed;
    } shapes[OF_LAYER] = { { 5120, 16480, QN_VK_EPILOGUE_NONE, true },
                           { 6144, 5120, QN_VK_EPILOGUE_NORM, false },
                           { 5120, MOST, QN_VK_EPILOGUE_SWIGLU, true },
                           { MOST, 5120, QN_VK_EPILOGUE_NORM, false } };
    const char *name = qn_text("layers of 27B %s, %u tokens", type->name, n_tokens);
    const qn_vk_format format = qn_vk_format_of(type);
    qn_vk_matmul_args args[COPIES * OF_LAYER];
    qn_vk_step steps[COPIES * OF_LAYER];
    double bytes = 0;
    if (!qn_bench_selected(name))
        return;
    const uint64_t acts = qn_vk_array_of(qn_new(n_tokens * qn_vk_act_row_bytes(MOST, 1), 1))->at,
                   next = qn_vk_new_array(n_tokens * qn_vk_act_row_bytes(MOST, 1))->at,
                   out = qn_vk_array_of(qn_floats(n_tokens * MOST))->at, weight = qn_vk_array_of(qn_floats(MOST))->at;
    for (size_t i = 0; i < COPIES * OF_LAYER; i++) {
        const uint32_t n_cols = shapes[i % OF_LAYER].n_cols, n_rows = shapes[i % OF_LAYER].n_rows;
        const bool is_pair = shapes[i % OF_LAYER].epilogue == QN_VK_EPILOGUE_SWIGLU;
        const uint32_t tiles = (is_pair ? 2 : 1) * n_rows / QN_VK_TILE_ROWS;
        const size_t rows = (size_t)tiles * QN_VK_TILE_ROWS,
                     codes = rows * qn_vk_code_words(&format, n_cols) * sizeof(uint32_t),
                     scales = rows * qn_vk_scale_words(&format, n_cols) * sizeof(uint32_t);
        const uint64_t at = qn_vk_new_array(codes + scales)->at;
        const qn_vk_matmul_kind kind = { shapes[i % OF_LAYER].epilogue, shapes[i % OF_LAYER].is_normed, 1, 1, 0 };
        args[i] = (qn_vk_matmul_args){ .codes = at,
                                       .scales = at + codes,
                                       .acts = acts,
                                       .outs = { out, out, next, weight },
                                       .first_tiles = { 0, is_pair ? tiles / 2 : UINT32_MAX, UINT32_MAX, UINT32_MAX },
                                       .n_rows = { n_rows, n_rows },
                                       .strides = { n_rows, n_rows },
                                       .n_cols = n_cols,
                                       .n_tokens = n_tokens,
                                       .n_tiles = tiles,
                                       .accumulate = kind.epilogue == QN_VK_EPILOGUE_NORM };
        steps[i] = (qn_vk_step){ qn_vk_matmul(&format, &qn_vk_device_info()->features, &kind, &args[i]), &args[i] };
        bytes += (double)(codes + scales);
    }
    qn_vk_bench_steps("matmul", name, bytes / COPIES, "B", steps, COPIES * OF_LAYER, COPIES);
    for (size_t s = 0; s < OF_LAYER; s++) {
        qn_vk_step of_shape[COPIES];
        for (size_t i = 0; i < COPIES; i++)
            of_shape[i] = steps[i * OF_LAYER + s];
        qn_vk_bench_steps("matmul", qn_text("%s: %u x %u", name, shapes[s].n_cols, shapes[s].n_rows), 1, "launch",
                          of_shape, COPIES, COPIES);
    }
    qn_release();
}

static void bench_all(void)
{
    static const size_t shapes[][2] = {
        { 4096, 4096 }, { 4096, 24576 }, { 12288, 4096 }, { 5120, 34816 }, { 17408, 5120 }
    };
    static const size_t tokens[] = { 1, 8, 32, 512 };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_PQ2_0 };
    for (size_t t = 0; t < QN_LENGTH(types); t++)
        for (uint32_t n = 1; n <= QN_VK_FEW_ROWS; n *= QN_VK_FEW_ROWS)
            bench_layers(qn_type_find(types[t]), n);
    for (size_t t = 0; t < QN_LENGTH(types); t++)
        for (size_t s = 0; s < QN_LENGTH(shapes); s++)
            for (size_t n = 0; n < QN_LENGTH(tokens); n++)
                bench_matrix(qn_type_find(types[t]), shapes[s][0], shapes[s][1], tokens[n]);
}

void qn_check_vulkan_matmul(bool bench)
{
    static const size_t tokens[] = { 1, 2, 8, MAX_TOKENS };
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    qn_random_seed(2);
    for (size_t i = 0; i < n_types; i++) {
        const size_t unit = types[i].block_weights;
        const size_t columns[] = { unit > 1 ? unit : 33, 2048 + unit * 3 };
        for (size_t c = 0; c < QN_LENGTH(columns); c++)
            for (size_t t = 0; t < QN_LENGTH(tokens); t++) {
                if (!qn_case_selected())
                    continue;
                check(&(struct matrices){ .type = &types[i],
                                          .n = 1 + (i + t) % MAX_MATRICES,
                                          .n_rows = { 9, 1, 4, 7 },
                                          .n_cols = columns[c],
                                          .n_tokens = tokens[t],
                                          .accumulates = (c + t) % 2,
                                          .planes = 1 + (t + c / 2) % 2 });
            }
    }
    const struct matrices large[] = {
        /* More tiles than a dimension of the grid has groups. Not of integers, of which a group has eight: SwiftShader
         * takes minutes for a million rows. */
        { .type = qn_type_find(QN_TYPE_F16),
          .n = 1,
          .n_rows = { 4 * 32768 + 5 },
          .n_cols = 128,
          .n_tokens = 1,
          .planes = 1,
          .wraps = true },
        /* Workgroups of 4 x 2 squares, and of 2 x 2. */
        { .type = qn_type_find(QN_TYPE_Q1_0), .n = 1, .n_rows = { 4101 }, .n_cols = 128, .n_tokens = 500, .planes = 1 },
        { .type = qn_type_find(QN_TYPE_Q2_0),
          .n = 1,
          .n_rows = { 2053 },
          .n_cols = 256,
          .n_tokens = 500,
          .accumulates = true,
          .planes = 1 },
    };
    for (size_t i = 0; i < QN_LENGTH(large); i++)
        if (qn_case_selected())
            check(&large[i]);
    check_epilogues();
    check_all_heads();
    if (bench)
        bench_all();
}
