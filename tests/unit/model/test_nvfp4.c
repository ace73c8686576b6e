/* NVFP4: the scales of tensors are found, checked and multiplied into what operations read. */
#include "helper_assert.h"
#include "helper_files.h"

#include "base/team.h"
#include "model/model.h"
#include "plan/ops.h"
#include "quant/layout.h"

#include <math.h>

enum { LAYER_MATRICES = 7 }; /* attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down */

static uint8_t *data;
static size_t n_data;
static qn_gguf *file;
static qn_hparams hparams;
static qn_plan plan;

static void open_golden(void)
{
    data = read_file(QN_SOURCE_DIR "/tests/golden/qwen3.nvfp4.gguf", &n_data);
    assert_ok(qn_gguf_open_memory(data, n_data, "nvfp4.gguf", &file));
}

static void close_golden(void)
{
    qn_plan_free(&plan);
    qn_gguf_close(file);
    free(data);
}

/* The data of a tensor of one float, which tests change. */
static uint8_t *scale_of(const char *name)
{
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, name);
    assert_non_null(t);
    return data + (t->data - data);
}

TEST(scales_are_multiplied_in)
{
    qn_team *team;
    open_golden();
    const float q_scale = -3.5f;
    memcpy(scale_of("blk.0.attn_q.scale"), &q_scale, sizeof q_scale);
    assert_ok(qn_model_build(file, &hparams, &plan));
    assert_int_equal(plan.n_scaled, LAYER_MATRICES);
    assert_ok(qn_team_create(3, &team));
    assert_ok(qn_plan_load_scaled(&plan, team));
    qn_team_free(team);
    const qn_gguf_tensor *stored = qn_gguf_find_tensor(file, "blk.0.attn_q.weight");
    float *expected = malloc(stored->dims[0] * sizeof *expected), *row = malloc(stored->dims[0] * sizeof *row);
    assert_true(expected && row);
    int n_loaded = 0, n_q = 0;
    for (size_t i = 0; i < plan.n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan.ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++) {
            const qn_matrix *matrix = &matrices->at[m].weights;
            assert_true(matrix->type->type != QN_TYPE_NVFP4); /* what has no scale would be read */
            n_loaded += matrix->type->type == QN_TYPE_NVFP4_L;
            for (size_t s = 0; s < plan.n_scaled; s++) {
                if (plan.scaled[s].loaded != matrix->data || plan.scaled[s].stored != stored->data)
                    continue;
                n_q++;
                assert_true(plan.scaled[s].scale == q_scale);
                for (size_t r = 0; r < matrix->n_rows; r++) {
                    const size_t blocks = matrix->n_cols / QN_NVFP4_WEIGHTS;
                    qn_type_find(QN_TYPE_NVFP4)->to_float(stored->data + r * blocks * QN_NVFP4_BYTES, blocks, expected);
                    matrix->type->to_float(matrix->data + r * matrix->row_bytes, blocks, row);
                    for (size_t k = 0; k < matrix->n_cols; k++)
                        assert_true(row[k] == expected[k] * q_scale);
                }
            }
        }
    }
    assert_int_equal(n_loaded, LAYER_MATRICES);
    assert_int_equal(n_q, 1);
    free(expected);
    free(row);
    close_golden();
}

TEST(scales_are_checked)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, 2e35f };
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("%g", (double)bad[i]);
        open_golden();
        memcpy(scale_of("blk.0.ffn_down.scale"), &bad[i], sizeof bad[i]);
        assert_int_equal(qn_model_build(file, &hparams, &plan), QN_ERR_FORMAT);
        assert_non_null(strstr(qn_error_text(), "tensor 'blk.0.ffn_down.scale' is "));
        close_golden();
    }
}

/* A matrix is the tensor that it was read from, not the place of its bytes: two tensors at one address have two scales,
 * one tensor that is read twice has one, and a matrix of another type has none. */
TEST(scales_belong_to_tensors)
{
    static const uint8_t blocks[QN_NVFP4_BYTES];
    qn_matrix first = { .type = qn_type_find(QN_TYPE_NVFP4),
                        .data = blocks,
                        .n_rows = 1,
                        .n_cols = QN_NVFP4_WEIGHTS,
                        .row_bytes = sizeof blocks },
              second = first, again = first;
    const qn_matrix other = {
        .type = qn_type_find(QN_TYPE_F32), .data = blocks, .n_rows = 1, .n_cols = 1, .row_bytes = 4
    };
    qn_plan two = { 0 };
    assert_ok(qn_plan_add_scaled(&two, &first, 2, &first));
    assert_ok(qn_plan_add_scaled(&two, &second, 3, &second));
    assert_ok(qn_plan_add_scaled(&two, &first, 2, &again));
    assert_int_equal(two.n_scaled, 2);
    assert_true(qn_plan_scale_of(&two, &first) == 2 && qn_plan_scale_of(&two, &again) == 2);
    assert_true(qn_plan_scale_of(&two, &second) == 3);
    assert_true(qn_plan_scale_of(&two, &other) == 1);
    qn_plan_free(&two);
}
