/* Matmuls of few tokens that compute the activations of the next matmul: after a norm against separate launches, bit by
 * bit; after SwiGLU against float64; and the time of a layer's matmuls with and without. */
#include "cuda_matmul_problem.h"

#include "base/memory.h"

enum { MAX_TOKENS = QN_FEW_MAX_TOKENS };

/* ---- Results ---- */

/* Two matmuls: residual += out x, norm; gate and up of its result, SwiGLU. */
struct layer {
    struct gpu_weights out, gate_up;
    size_t width, ff; /* rows of out; of gate and of up */
    size_t block;     /* of the Hadamard transforms of both; 0: none */
    float *residual, *norm, *signs[2];
    uint64_t gx, gnorm, gsigns[2]; /* signs: of the rows of out, and of gate */
};

/* What a layer computes from the first tokens of x. */
struct results {
    size_t n_tokens;
    float *residual, *gate, *up; /* [n_tokens][width], [n_tokens][ff] */
    struct gpu_acts normed, swiglu;
};

static uint64_t outputs(struct gpu_weights *w, size_t matrix, size_t n_tokens, const float *before)
{
    const size_t n = w->n_rows[matrix], bytes = n_tokens * n * sizeof(float);
    const uint64_t out = before ? qn_gpu_from(before, bytes) : qn_gpu_new(bytes);
    w->matrix.outs[matrix] = (qn_matmul_out){ out, (uint32_t)(w->first_row[matrix] / QN_TILE_ROWS), (uint32_t)n,
                                              (uint32_t)n, before != NULL };
    return out;
}

static void quantize(const qn_matmul_next *to, uint64_t x, uint64_t x2, size_t n_tokens)
{
    qn_matmul_launch l;
    qn_assert_ok(qn_matmul_gpu_quantize(to->acts, to->op, x, x2, to->weight, 1e-6f, to->acts->n_cols, n_tokens, &l));
    qn_assert_ok(qn_matmul_gpu_quantize_rotated(&l, &to->rotation));
    qn_check_launch(&l);
}

static void matmul(const struct gpu_weights *w, const qn_matmul_acts *acts, size_t n_tokens, const qn_matmul_next *next)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    qn_matmul_launch l;
    qn_assert_ok(next ? qn_matmul_gpu_matmul_fused(&gpu, &w->matrix, acts, n_tokens, next, &l)
                      : qn_matmul_gpu_matmul(&gpu, &w->matrix, acts, n_tokens, &l));
    qn_check_launch(&l);
}

static struct results run(struct layer *layer, size_t n_tokens, bool fused)
{
    struct results r = { .n_tokens = n_tokens };
    struct gpu_acts x = qn_check_acts_new(QN_ACTS_HILO, layer->out.n_cols, n_tokens);
    r.normed = qn_check_acts_new(QN_ACTS_HILO, layer->width, n_tokens);
    r.swiglu = qn_check_acts_new(QN_ACTS_HILO, layer->ff, n_tokens);
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    r.normed.acts.planes = r.swiglu.acts.planes = x.acts.planes =
        qn_matmul_gpu_planes(&gpu, &layer->out.matrix.tiles, n_tokens);
    r.normed.acts.rms_norm = true;
    r.normed.acts.eps = 1e-6f;
    r.normed.acts.workspace = r.swiglu.acts.workspace = x.acts.workspace; /* whose slots the first launch prepares */
    const qn_matmul_next input = { QN_ACTS_OP_NONE, &x.acts, 0, { 0, 0 } };
    const qn_matmul_next norm = {
        QN_ACTS_OP_RMS_NORM, &r.normed.acts, layer->gnorm, { layer->gsigns[0], layer->block }
    };
    const qn_matmul_next swiglu = { QN_ACTS_OP_SWIGLU, &r.swiglu.acts, 0, { layer->gsigns[1], layer->block } };
    const uint64_t residual = outputs(&layer->out, 0, n_tokens, layer->residual);
    const uint64_t gate = outputs(&layer->gate_up, 0, n_tokens, NULL), up = outputs(&layer->gate_up, 1, n_tokens, NULL);
    quantize(&input, layer->gx, 0, n_tokens);
    matmul(&layer->out, &x.acts, n_tokens, fused ? &norm : NULL);
    if (!fused)
        quantize(&norm, residual, 0, n_tokens);
    matmul(&layer->gate_up, &r.normed.acts, n_tokens, fused ? &swiglu : NULL);
    if (!fused)
        quantize(&swiglu, gate, up, n_tokens);
    r.residual = qn_gpu_read(residual);
    r.gate = qn_gpu_read(gate);
    r.up = qn_gpu_read(up);
    return r;
}

/* ---- Comparisons ---- */

/* Activations on the host: the integers of a token's column k, [n_blocks * QN_ACTS_HILO_COLS] of each token; scales for
 * codes times 64, [n_blocks] of each token; sums of squares [n_blocks][capacity]. */
struct host_acts {
    int *codes;
    float *scale;
    const float *sumsq;
    size_t n_blocks, capacity;
};

static struct host_acts host_acts_of(const struct gpu_acts *a, size_t n_tokens)
{
    const uint8_t *bytes = qn_check_acts_read(a);
    const float *scales = qn_gpu_read(a->scale);
    struct host_acts h = { .n_blocks = qn_round_up(a->acts.n_cols, QN_TILE_COLS) / QN_ACTS_HILO_COLS,
                           .capacity = a->acts.capacity };
    h.sumsq = scales + h.n_blocks * h.capacity;
    h.codes = qn_new(n_tokens * h.n_blocks * QN_ACTS_HILO_COLS, sizeof *h.codes);
    h.scale = qn_floats(n_tokens * h.n_blocks);
    for (size_t i = 0; i < n_tokens * h.n_blocks; i++) {
        const size_t token = i / h.n_blocks, first = i % h.n_blocks * QN_ACTS_HILO_COLS;
        for (size_t k = 0; k < QN_ACTS_HILO_COLS; k++)
            h.codes[i * QN_ACTS_HILO_COLS + k] = qn_check_hilo_code(a, bytes, token, first + k);
        h.scale[i] = qn_check_hilo_scale(a, bytes, scales, token, first);
        qn_check_plane_sums(a, bytes, token, first);
    }
    return h;
}

/* The tokens of both have the same bits. Of a smaller number of tokens the capacity is the same. */
static void expect_same_acts(const char *what, const struct gpu_acts *a, const struct gpu_acts *b, size_t n_tokens)
{
    const struct host_acts x = host_acts_of(a, n_tokens), y = host_acts_of(b, n_tokens);
    for (size_t block = 0; block < x.n_blocks; block++)
        for (size_t token = 0; token < n_tokens; token++) {
            const size_t at = block * x.capacity + token, of_token = token * x.n_blocks + block;
            qn_expect(!memcmp(x.codes + of_token * QN_ACTS_HILO_COLS, y.codes + of_token * QN_ACTS_HILO_COLS,
                              QN_ACTS_HILO_COLS * sizeof *x.codes),
                      "%s: codes of token %zu, block %zu differ", what, token, block);
            qn_expect(!memcmp(&x.scale[of_token], &y.scale[of_token], sizeof(float)),
                      "%s: scale of token %zu, block %zu is %g, expected %g", what, token, block,
                      (double)x.scale[of_token], (double)y.scale[of_token]);
            qn_expect(!a->acts.rms_norm || !memcmp(&x.sumsq[at], &y.sumsq[at], sizeof(float)),
                      "%s: sum of squares of token %zu, block %zu is %g, expected %g", what, token, block,
                      (double)x.sumsq[at], (double)y.sumsq[at]);
        }
}

/* Gate and up of other launches; the fused matmul divides K in other places, so that sums differ by roundings of f32:
 * 1e-5 of the block's amax, which the many terms of a sum stay far below, and half a code; smaller blocks are zeros.
 * Columns beyond the matrix are zeros. */
static void expect_swiglu(const struct layer *layer, const struct results *fused, const struct results *separate)
{
    const size_t ff = layer->ff;
    const struct host_acts h = host_acts_of(&fused->swiglu, fused->n_tokens);
    for (size_t token = 0; token < fused->n_tokens; token++)
        for (size_t block = 0; block < h.n_blocks; block++) {
            const size_t first = block * QN_ACTS_HILO_COLS;
            double expected[QN_ACTS_HILO_COLS] = { 0 }, amax = 0;
            for (size_t i = 0, k = first; i < QN_ACTS_HILO_COLS && k < ff; i++, k++) {
                const double gate = (double)separate->gate[token * ff + k];
                expected[i] = gate / (1 + exp(-gate)) * (double)separate->up[token * ff + k];
            }
            if (first < ff)
                qn_check_hadamard_f64(expected, layer->signs[1] + first,
                                      ff - first < QN_ACTS_HILO_COLS ? ff - first : QN_ACTS_HILO_COLS, layer->block);
            for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++)
                amax = fmax(amax, fabs(expected[i]));
            const size_t at = token * h.n_blocks + block;
            for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++) {
                const double found = 64.0 * h.codes[at * QN_ACTS_HILO_COLS + i] * (double)h.scale[at];
                qn_expect(fabs(found - expected[i]) <= amax * (0.51 / QN_HILO_MAX + 1e-5) + 1e-30,
                          "token %zu, column %zu: %g, expected %g", token, first + i, found, expected[i]);
            }
        }
}

/* The input of gate and up, from the residual stream of a token. */
static void normalize_f64(const struct layer *layer, const float *x, double *values)
{
    double sumsq = 0;
    for (size_t k = 0; k < layer->width; k++)
        sumsq += (double)x[k] * (double)x[k];
    for (size_t k = 0; k < layer->width; k++)
        values[k] = (double)x[k] * (double)layer->norm[k] / sqrt(sumsq / (double)layer->width + 1e-6);
    qn_check_hadamard_f64(values, layer->signs[0], layer->width, layer->block);
}

/* gate and up of the values on which they depend, in float64. Errors: half a code of each value, and f32 as in
 * cuda_matmul.c. */
static void expect_gate_up(const struct layer *layer, const struct results *r)
{
    float *weights = qn_floats(layer->width);
    double *values = qn_new(r->n_tokens * layer->width, sizeof *values);
    for (size_t token = 0; token < r->n_tokens; token += 3)
        normalize_f64(layer, r->residual + token * layer->width, values + token * layer->width);
    for (size_t m = 0; m < 2; m++)
        for (size_t row = 0; row < layer->ff; row += 1 + row % 3) {
            qn_check_weights_row(&layer->gate_up, m, row, weights);
            for (size_t token = 0; token < r->n_tokens; token += 3) {
                const double *x = values + token * layer->width;
                double sum = 0, allowed = 0;
                for (size_t begin = 0; begin < layer->width; begin += QN_ACTS_HILO_COLS) {
                    double amax = 0, size = 0;
                    for (size_t k = begin; k < layer->width && k < begin + QN_ACTS_HILO_COLS; k++) {
                        sum += x[k] * (double)weights[k];
                        allowed += 3e-5 * fabs(x[k] * (double)weights[k]);
                        amax = fmax(amax, fabs(x[k]));
                        size += fabs((double)weights[k]);
                    }
                    allowed += size * amax * (0.51 / QN_HILO_MAX);
                }
                const double found = (double)(m ? r->up : r->gate)[token * layer->ff + row];
                qn_expect(fabs(found - sum) <= allowed, "matrix %zu, token %zu, row %zu: %g, expected %g, within %g", m,
                          token, row, found, sum, allowed);
            }
        }
}

static struct layer layer_new(const qn_type_info *type, size_t cols, size_t width, size_t ff, size_t block)
{
    struct layer l = { .out = qn_check_weights_new(type, cols, 1, &width, 100),
                       .gate_up = qn_check_weights_new(type, width, 2, (size_t[]){ ff, ff }, 100),
                       .width = width,
                       .ff = ff,
                       .block = block,
                       .signs = { qn_signs_of(width), qn_signs_of(ff) } };
    l.gx = qn_gpu_floats_of(MAX_TOKENS * cols, 1);
    l.residual = qn_floats_of(MAX_TOKENS * width, 10);
    l.norm = qn_floats_of(width, 1);
    l.gnorm = qn_gpu_copy(l.norm);
    for (size_t i = 0; i < 2; i++)
        l.gsigns[i] = qn_gpu_copy(l.signs[i]);
    return l;
}

/* The tokens of every number of tokens have the bits that they have among 64. */
static void check_layer(const qn_type_info *type, size_t cols, size_t width, size_t ff, size_t block)
{
    static const size_t tokens[] = { 1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 63, 64 };
    struct layer layer = layer_new(type, cols, width, ff, block);
    const struct results most = run(&layer, MAX_TOKENS, true);
    for (size_t i = 0; i < QN_LENGTH(tokens); i++) {
        const size_t n = tokens[i];
        qn_case_begin("matmul", "cuda", "%s fused, cols %zu width %zu ff %zu, Hadamard blocks of %zu, tokens %zu",
                      type->name, cols, width, ff, block, n);
        const struct results fused = run(&layer, n, true), separate = run(&layer, n, false);
        qn_expect(!memcmp(fused.residual, separate.residual, n * width * sizeof(float)), "residual streams differ");
        qn_expect(!memcmp(fused.residual, most.residual, n * width * sizeof(float)),
                  "residual stream of other tokens differs");
        expect_same_acts("norm", &fused.normed, &separate.normed, n);
        expect_same_acts("norm among 64 tokens", &fused.normed, &most.normed, n);
        expect_same_acts("SwiGLU among 64 tokens", &fused.swiglu, &most.swiglu, n);
        expect_gate_up(&layer, &separate);
        expect_swiglu(&layer, &fused, &separate);
    }
    qn_release();
}

/* ---- Speed ---- */

/* Rows and columns of a layer's matmuls: the first, the output projection, gate and up, down. */
struct sizes {
    const char *name;
    size_t rows[4], cols[4];
};

enum { LAYER_LAUNCHES = 8 };

/* The launches of a layer's matmuls with weights from `at` on; the activations are those of the layer before and
 * after. */
static size_t layer_launches(const qn_type_info *type, const struct sizes *sizes, uint64_t at, struct gpu_acts acts[4],
                             uint64_t memory, size_t n_tokens, bool fused, size_t block, qn_matmul_launch *to)
{
    static const int ops[4] = { QN_ACTS_OP_RMS_NORM, QN_ACTS_OP_NONE, QN_ACTS_OP_RMS_NORM, QN_ACTS_OP_SWIGLU };
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    size_t n = 0, bytes;
    for (size_t i = 0; i < 4; i++) {
        const uint32_t rows = (uint32_t)(i == 2 ? sizes->rows[i] / 2 : sizes->rows[i]);
        qn_tiled_matrix m = { .tiles = qn_matmul_gpu_tile_layout(type),
                              .address = at,
                              .n_tiles = qn_matmul_gpu_tile_count(sizes->rows[i]),
                              .n_cols = sizes->cols[i],
                              .n_outs = i == 2 ? 2 : 1,
                              .outs = { { memory, 0, rows, rows, i % 2 },
                                        { memory, (uint32_t)qn_matmul_gpu_tile_count(rows), rows, rows, 0 } } };
        const size_t after = (i + 1) % 4;
        const qn_matmul_rotation rotation = { memory, block };
        const qn_matmul_next next = { ops[after], &acts[after].acts, memory, rotation };
        if (!fused || i == 1) {
            qn_assert_ok(qn_matmul_gpu_quantize(&acts[i].acts, ops[i], memory, memory, memory, 1e-6f, sizes->cols[i],
                                                n_tokens, &to[n]));
            qn_assert_ok(qn_matmul_gpu_quantize_rotated(&to[n++], &rotation));
        }
        qn_assert_ok(fused && i ? qn_matmul_gpu_matmul_fused(&gpu, &m, &acts[i].acts, n_tokens, &next, &to[n++])
                                : qn_matmul_gpu_matmul(&gpu, &m, &acts[i].acts, n_tokens, &to[n++]));
        qn_assert_ok(qn_matmul_gpu_bytes(&m.tiles, m.n_tiles, m.n_cols, &bytes));
        at += qn_round_up(bytes, 256);
    }
    return n;
}

static void bench_layer(const qn_type_info *type, const struct sizes *sizes, size_t n_tokens, bool fused, size_t block)
{
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    size_t layer = 0, widest = 0, bytes, each = 0;
    struct gpu_acts acts[4];
    for (size_t i = 0; i < 4; i++) {
        qn_assert_ok(qn_matmul_gpu_bytes(&tiles, qn_matmul_gpu_tile_count(sizes->rows[i]), sizes->cols[i], &bytes));
        layer += qn_round_up(bytes, 256);
        widest = sizes->rows[i] > widest ? sizes->rows[i] : widest;
        acts[i] = qn_check_acts_new(QN_ACTS_HILO, sizes->cols[i], n_tokens);
        acts[i].acts.planes = qn_matmul_gpu_planes(&gpu, &tiles, n_tokens);
        acts[i].acts.rms_norm = i % 2 == 0;
        acts[i].acts.eps = 1e-6f;
        acts[i].acts.workspace = acts[0].acts.workspace;
    }
    const size_t n_copies = qn_gpu_bench_copies(layer);
    const uint64_t weights = qn_gpu_random(layer * n_copies), memory = qn_gpu_random(n_tokens * widest * sizeof(float));
    qn_matmul_launch *launches = qn_new(n_copies * LAYER_LAUNCHES, sizeof *launches);
    for (size_t i = 0; i < 4; i++)
        quantize(&(qn_matmul_next){ QN_ACTS_OP_RMS_NORM, &acts[i].acts, memory, { 0, 0 } }, memory, 0, n_tokens);
    for (size_t i = 0; i < 4; i++)
        acts[i].acts.prepares_slots = 0; /* they are prepared */
    for (size_t copy = 0; copy < n_copies; copy++)
        each = layer_launches(type, sizes, weights + copy * layer, acts, memory, n_tokens, fused, block,
                              launches + copy * each);
    qn_check_bench(qn_text("%s %s tokens %zu, %s, Hadamard %zu", type->name, sizes->name, n_tokens,
                           fused ? "fused" : "norms, SwiGLU", block),
                   (double)layer, "B", qn_gpu_read_rate(), launches, each, n_copies);
    qn_release();
}

static void bench(void)
{
    static const struct sizes sizes[] = { { "27b layer", { 16384, 5120, 34816, 5120 }, { 5120, 6144, 5120, 17408 } },
                                          { "8b layer", { 6144, 4096, 24576, 4096 }, { 4096, 4096, 4096, 12288 } } };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_PQ2_0 };
    static const size_t tokens[] = { 4, 8, 16, 32, 64 };
    for (size_t t = 0; t < 2; t++)
        for (size_t s = 0; s < 2; s++)
            for (size_t n = 0; n < QN_LENGTH(tokens); n++)
                for (int i = 0; i < 4; i++)
                    bench_layer(qn_type_find(types[t]), &sizes[s], tokens[n], i % 2, i < 2 ? 0 : QN_ACTS_HILO_COLS);
}

void qn_check_cuda_matmul_fused(bool with_bench)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        const size_t block = types[t].block_weights;
        if (qn_matmul_gpu_tile_layout(&types[t]).bits > 2)
            continue;
        qn_random_seed(9000 + t);
        if (qn_case_selected())
            check_layer(&types[t], 3 * block, 2 * block, 100, 0);
        if (qn_case_selected()) /* rows that several blocks share, and a block with several parts */
            check_layer(&types[t], 13 * 256, 3 * 256, 1000, 8);
        if (qn_case_selected()) /* rows not a multiple of 256, if the type allows that */
            check_layer(&types[t], 5 * 256, 11 * block, 260, 0);
        for (size_t hadamard = 1; hadamard <= QN_ACTS_HILO_COLS; hadamard *= 2)
            if (qn_case_selected() && (hadamard == QN_ACTS_HILO_COLS || t == 0))
                check_layer(&types[t], 3 * 256, 5 * 256, 7 * 128, hadamard);
    }
    if (with_bench)
        bench();
}
