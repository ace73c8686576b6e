/* What GPU backends share of weights: which matrices are tiled together, which of them may compute later activations,
 * rows in fp16, embeddings by the host, and the buffer of all vectors. */
#include "helper_plan.h"

#include "base/f16.h"
#include "base/cpu.h"
#include "gguf/gguf.h"
#include "gpu/embeddings.h"
#include "gpu/f16_rows.h"
#include "gpu/tiling.h"
#include "gpu/vectors.h"
#include "model/model.h"

#include <math.h>

enum { TILE_ROWS = 16 };

static uint32_t layout_of(const qn_type_info *type)
{
    return type->type == QN_TYPE_F32 ? QN_TYPE_F16 : (uint32_t)type->type;
}

static const qn_gpu_tiling tiling = { .tile_rows = TILE_ROWS, .layout_of = layout_of };

/* ---- Groups ---- */

static qn_op_matrix matrix_of(qn_type type, size_t n_rows, int acts)
{
    return (qn_op_matrix){ .weights = { .type = qn_type_find(type), .n_rows = n_rows, .n_cols = 512 }, .acts = acts };
}

/* Matrices are together if they have activations and layout in common, in the order of the operation. */
TEST(matrices_are_grouped)
{
    const qn_op_matrices matrices = { .at = { matrix_of(QN_TYPE_F32, 40, 0), matrix_of(QN_TYPE_Q1_0, 16, 0),
                                              matrix_of(QN_TYPE_F16, 17, 0), matrix_of(QN_TYPE_Q1_0, 1, 1) },
                                      .n = 4 };
    qn_gpu_gemm gemms[QN_OP_MATRICES];
    assert_int_equal(qn_gpu_group_matrices(&tiling, &matrices, gemms), 3);
    assert_true(gemms[0].n_matrices == 2 && gemms[0].matrices[0] == 0 && gemms[0].matrices[1] == 2);
    assert_true(gemms[0].first_tiles[0] == 0 && gemms[0].first_tiles[1] == 3 && gemms[0].n_tiles == 3 + 2);
    assert_true(gemms[0].acts == 0 && gemms[0].layout == QN_TYPE_F16 && gemms[0].n_cols == 512);
    assert_true(gemms[1].n_matrices == 1 && gemms[1].matrices[0] == 1 && gemms[1].n_tiles == 1 && gemms[1].acts == 0);
    assert_true(gemms[2].n_matrices == 1 && gemms[2].matrices[0] == 3 && gemms[2].n_tiles == 1 && gemms[2].acts == 1);
    const qn_op_matrices none = { .n = 0 };
    assert_int_equal(qn_gpu_group_matrices(&tiling, &none, gemms), 0);
}

/* Every matrix of a model is tiled once, and no tile is of two. */
static void check_model(const char *golden, bool embeds, bool is_tied)
{
    char path[512];
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan = { 0 };
    qn_gpu_tiling with = tiling;
    size_t n_tables = 0;
    with.embeds = embeds;
    label("%s", golden);
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_model_build(file, &hparams, &plan));
    const qn_op *output = qn_gpu_output_of_table(&plan);
    assert_int_equal(output != NULL, is_tied);
    assert_true(!output || output->kind == QN_OP_LOGITS);
    for (size_t i = 0; i < plan.n_ops; i++) {
        const qn_op_matrices matrices = qn_gpu_tiled_matrices(&with, &plan, &plan.ops[i]);
        qn_gpu_gemm gemms[QN_OP_MATRICES];
        const size_t n = qn_gpu_group_matrices(&with, &matrices, gemms);
        bool found[QN_OP_MATRICES] = { false };
        for (size_t g = 0; g < n; g++) {
            size_t tile = 0;
            for (size_t m = 0; m < gemms[g].n_matrices; m++) {
                const qn_matrix *matrix = &matrices.at[gemms[g].matrices[m]].weights;
                assert_false(found[gemms[g].matrices[m]]);
                found[gemms[g].matrices[m]] = true;
                assert_int_equal(gemms[g].first_tiles[m], tile);
                tile += (matrix->n_rows + TILE_ROWS - 1) / TILE_ROWS;
                n_tables += matrix->data == plan.ops[0].embed.table.data;
            }
            assert_int_equal(gemms[g].n_tiles, tile);
        }
        for (size_t m = 0; m < matrices.n; m++)
            assert_true(found[m]);
        assert_int_equal(matrices.n, i == 0                            ? embeds && !is_tied
                                     : qn_op_matrices_of(&plan.ops[i]) ? qn_op_matrices_of(&plan.ops[i])->n
                                                                       : 0);
    }
    assert_int_equal(n_tables, is_tied || embeds);
    qn_plan_free(&plan);
    qn_gguf_close(file);
}

TEST(models_are_tiled)
{
    check_model("qwen3.q1_0", true, true);
    check_model("qwen3.q1_0", false, true);
    check_model("qwen35-rotated.pq2_0", true, false);
    check_model("qwen35-rotated.pq2_0", false, false);
}

/* ---- Fusion ---- */

static const struct shape dense = { .n_layers = 3,
                                    .interval = 1,
                                    .embd = 1024,
                                    .ff = 2048,
                                    .heads = 8,
                                    .kv = 2,
                                    .head_dim = 128,
                                    .type = QN_TYPE_Q1_0,
                                    .gates = QN_TYPE_F16 };

static bool may_fuse(const qn_plan *plan, size_t at)
{
    const qn_op_matrices matrices = qn_gpu_tiled_matrices(&tiling, plan, &plan->ops[at]);
    qn_gpu_gemm gemms[QN_OP_MATRICES];
    return qn_gpu_group_matrices(&tiling, &matrices, gemms) == 1 && qn_gpu_may_fuse(plan, at, &gemms[0]);
}

/* Which operations may compute activations, by the operation after each. */
static size_t count_fused(const qn_plan *plan, qn_op_kind writer)
{
    size_t n = 0;
    for (size_t i = 0; i + 1 < plan->n_ops; i++)
        n += plan->ops[i + 1].kind == writer && may_fuse(plan, i);
    return n;
}

TEST(matmuls_that_may_fuse)
{
    qn_plan plan = { 0 };
    build_plan(&plan, &dense);
    assert_int_equal(count_fused(&plan, QN_OP_SWIGLU), 3);
    /* In each layer the output of attention, before the norm of the FFN, and the FFN, before the next layer's. */
    assert_int_equal(count_fused(&plan, QN_OP_NORM), 3 + 2);
    assert_int_equal(count_fused(&plan, QN_OP_LOGIT_NORM), 0);
    for (size_t i = 0; i < plan.n_ops; i++)
        if (plan.ops[i].kind != QN_OP_MATMUL)
            assert_false(may_fuse(&plan, i));
    qn_plan_free(&plan);
}

static size_t find_op(const qn_plan *plan, qn_op_kind kind)
{
    size_t i = 0;
    while (i < plan->n_ops && plan->ops[i].kind != kind)
        i++;
    assert_true(i < plan->n_ops);
    return i;
}

/* Not if what the GEMM computes is not what the next operation reads, or if another one reads gate or up. */
TEST(matmuls_that_may_not_fuse)
{
    qn_plan plan = { 0 };
    build_plan(&plan, &dense);
    const size_t swiglu = find_op(&plan, QN_OP_SWIGLU);
    qn_op *matmul = &plan.ops[swiglu - 1], *norm = &plan.ops[swiglu - 2];
    assert_true(may_fuse(&plan, swiglu - 1) && may_fuse(&plan, swiglu - 3));
    const qn_op was = *matmul, was_norm = *norm;
    matmul->matmul.matrices.at[0].out = was.matmul.matrices.at[1].out;
    matmul->matmul.matrices.at[1].out = was.matmul.matrices.at[0].out;
    assert_false(may_fuse(&plan, swiglu - 1)); /* up before gate */
    *matmul = was;
    matmul->matmul.matrices.n = 1;
    assert_false(may_fuse(&plan, swiglu - 1)); /* up is computed elsewhere */
    *matmul = was;
    matmul->matmul.matrices.at[1].weights.type = qn_type_find(QN_TYPE_Q8_0);
    assert_false(may_fuse(&plan, swiglu - 1)); /* in two GEMMs */
    *matmul = was;
    norm->norm.in = plan.ops[swiglu].swiglu.gate;
    assert_false(may_fuse(&plan, swiglu - 1)); /* gate is read by a norm */
    assert_false(may_fuse(&plan, swiglu - 3)); /* and the norm reads no output of the matmul before it */
    *norm = was_norm;
    assert_true(may_fuse(&plan, swiglu - 1) && may_fuse(&plan, swiglu - 3));
    qn_plan_free(&plan);
}

/* ---- Rows in fp16 ---- */

/* Rounded to nearest, infinity and what is beyond fp16 saturated, NaN kept; the same for any number of threads. */
TEST(rows_in_f16)
{
    enum { ROWS = 7, COLS = 4 };
    float values[ROWS][COLS] = { { 1, -0.0f, 65504, 65520 },
                                 { INFINITY, -INFINITY, 1e30f, -1e30f },
                                 { NAN, 1e-8f, 0, 2 } };
    for (size_t i = 3 * COLS; i < ROWS * COLS; i++)
        values[i / COLS][i % COLS] = (float)i / 3;
    const qn_matrix matrix = { .type = qn_type_find(QN_TYPE_F32),
                               .data = (const uint8_t *)values,
                               .n_rows = ROWS,
                               .n_cols = COLS,
                               .row_bytes = sizeof *values };
    for (int threads = 1; threads <= 3; threads += 2) {
        qn_team *team;
        uint16_t *rows;
        label("%d threads", threads);
        assert_ok(qn_team_create(threads, &team));
        assert_ok(qn_gpu_f16_rows(&matrix, team, &rows));
        const uint16_t wanted[] = { 0x3c00, 0x8000, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7bff, 0xfbff };
        assert_memory_equal(rows, wanted, sizeof wanted);
        assert_true(isnan(qn_f16_to_f32(rows[8])));
        for (size_t i = 9; i < ROWS * COLS; i++)
            assert_int_equal(rows[i], qn_f32_to_f16(values[i / COLS][i % COLS]));
        qn_free(rows);
        qn_matrix large = matrix;
        large.n_cols = SIZE_MAX / 2;
        assert_fails(qn_gpu_f16_rows(&large, team, &rows), QN_ERR_MEMORY, "do not fit");
        assert_null(rows);
        qn_team_free(team);
    }
}

/* ---- Embeddings ---- */

/* Rows of the table, with the inverse of its rotation; few rows and many, by one thread and several. */
TEST(embeddings_by_the_host)
{
    enum { TOKENS = 21, COLS = 64, BLOCK = 32 };
    static const size_t counts[] = { 0, 1, 7, 8, TOKENS };
    float rows[TOKENS][COLS], signs[COLS], wanted[COLS], found[TOKENS * COLS + 1];
    int32_t tokens[TOKENS];
    qn_op op = { .kind = QN_OP_EMBED };
    const qn_plan plan = { .ops = &op, .n_ops = 1 };
    qn_hadamard_kernels hadamard, reference;
    unsigned cpu;
    assert_ok(qn_cpu_features(&cpu));
    qn_hadamard_kernels_init(&hadamard, cpu);
    qn_hadamard_init_ref(&reference);
    for (size_t i = 0; i < TOKENS * COLS; i++)
        rows[i / COLS][i % COLS] = (float)((i * 37) % 101) - 50;
    for (size_t i = 0; i < COLS; i++)
        signs[i] = i % 3 ? 1 : -1;
    for (int32_t i = 0; i < TOKENS; i++)
        tokens[i] = (i * 8) % TOKENS;
    op.embed.table = (qn_matrix){ .type = qn_type_find(QN_TYPE_F32),
                                  .data = (const uint8_t *)rows,
                                  .n_rows = TOKENS,
                                  .n_cols = COLS,
                                  .row_bytes = sizeof *rows };
    for (int i = 0; i < 3 * 2 * (int)COUNT(counts); i++) {
        const size_t n = counts[i % (int)COUNT(counts)];
        qn_team *team;
        op.embed.inverse = (qn_plan_rotation){ .block = i % 3 ? BLOCK : 0, .signs = i % 3 == 2 ? signs : NULL };
        assert_ok(qn_team_create(i % 2 ? 3 : 1, &team));
        label("%zu rows, rotation %d", n, i % 3);
        found[n * COLS] = 12345;
        qn_gpu_embed_rows(&plan, &hadamard, team, tokens, n, found);
        assert_true(found[n * COLS] == 12345);
        for (size_t row = 0; row < n; row++) {
            memcpy(wanted, rows[tokens[row]], sizeof wanted);
            for (size_t at = 0; op.embed.inverse.block && at < COLS; at += BLOCK)
                reference.block(wanted + at, BLOCK, NULL, op.embed.inverse.signs ? signs + at : NULL);
            assert_memory_equal(found + row * COLS, wanted, sizeof wanted);
        }
        qn_team_free(team);
    }
}

/* ---- Vectors ---- */

/* Checks that a vector was copied to its address, which no other one has. */
static size_t check_vector(const uint8_t *host, uint64_t base, uint64_t address, const void *data, size_t bytes)
{
    if (!data) {
        assert_int_equal(address, 0);
        return 0;
    }
    assert_int_equal(address % 256, 0);
    assert_memory_equal(host + (address - base), data, bytes);
    return (bytes + 255) / 256 * 256;
}

TEST(vectors_are_in_one_buffer)
{
    const uint64_t base = 1 << 20;
    char path[512];
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan = { 0 };
    uint64_t frequencies;
    snprintf(path, sizeof path, "%s/tests/golden/qwen35-rotated.pq2_0.gguf", QN_SOURCE_DIR);
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_model_build(file, &hparams, &plan));
    qn_op_addresses *ops = calloc(plan.n_ops, sizeof *ops);
    uint64_t *signs = calloc(plan.n_acts, sizeof *signs);
    assert_true(ops && signs);
    qn_gpu_vectors v = { 0 };
    size_t total = 0, n_signs = 0;
    for (int pass = 0; pass < 2; pass++) {
        v.used = 0;
        for (size_t i = 0; i < plan.n_ops; i++)
            qn_gpu_place_op_vectors(&v, &plan, &plan.ops[i], &ops[i]);
        qn_gpu_place_plan_vectors(&v, &plan, signs, &frequencies);
        if (pass == 0)
            v = (qn_gpu_vectors){ .host = malloc(v.used), .address = base };
        assert_non_null(v.host);
    }
    for (size_t i = 0; i < plan.n_ops; i++) {
        const qn_op *op = &plan.ops[i];
        if (op->kind == QN_OP_NORM || op->kind == QN_OP_LOGIT_NORM)
            total += check_vector(v.host, base, ops[i].norm.weight, op->norm.weight,
                                  plan.acts[op->norm.acts.at[0]].width * sizeof(float));
        else if (op->kind == QN_OP_EMBED)
            total += check_vector(v.host, base, ops[i].embed.inverse, op->embed.inverse.signs,
                                  op->embed.table.n_cols * sizeof(float));
        else if (op->kind == QN_OP_GATED_NORM)
            total += check_vector(v.host, base, ops[i].gated_norm.weight, op->gated_norm.weight,
                                  plan.recurrent.head_v * sizeof(float));
        else if (op->kind == QN_OP_CONV) {
            const size_t width = qn_recurrent_width(&plan.recurrent) * sizeof(float),
                         gates = plan.recurrent.n_v_heads * sizeof(float);
            total += check_vector(v.host, base, ops[i].conv.taps, op->conv.taps, plan.recurrent.taps * width);
            total += check_vector(v.host, base, ops[i].conv.bias, op->conv.bias, gates);
            total += check_vector(v.host, base, ops[i].conv.factor, op->conv.factor, gates);
        } else if (op->kind == QN_OP_QK_NORM_ROPE_STORE) {
            const size_t dim = plan.heads.head_dim * sizeof(float);
            total += check_vector(v.host, base, ops[i].qk_norm_rope_store.q_norm, op->qk_norm_rope_store.q_norm, dim);
            total += check_vector(v.host, base, ops[i].qk_norm_rope_store.k_norm, op->qk_norm_rope_store.k_norm, dim);
            assert_true(!op->qk_norm_rope_store.q_bias && !ops[i].qk_norm_rope_store.q_bias);
        }
    }
    for (size_t i = 0; i < plan.n_acts; i++) {
        n_signs += signs[i] != 0;
        total += check_vector(v.host, base, signs[i], plan.acts[i].rotation.block ? plan.acts[i].rotation.signs : NULL,
                              plan.acts[i].width * sizeof(float));
    }
    assert_true(n_signs > 0 && n_signs < plan.n_acts);
    total += check_vector(v.host, base, frequencies, plan.frequencies, plan.heads.n_rot / 2 * sizeof(double));
    assert_int_equal(v.used, total); /* none overlaps */
    free(v.host);
    free(ops);
    free(signs);
    qn_plan_free(&plan);
    qn_gguf_close(file);
}
