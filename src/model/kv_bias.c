/* Computes the norms of biases and of the rows that they are added to, and describes them. */
#include "model/kv_bias.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/real.h"
#include "cache/sequence.h"

#include <math.h>

/* Number of rows of a head whose weights are read. The rows are spread evenly over slow and fast pairs, in both layouts
 * of pairs. */
enum { SAMPLED_ROWS = 16 };

enum { QUERIES, KEYS, VALUES };

/* Ratios above these are too large, even if no other bias is. */
static const double query_most = 1.2, key_most = 1, value_most = 1.5;

/* Divisor of a query bias's ratio that makes its effect comparable to a key bias's. */
static const double query_unit = 1.7;

/* ---- Norms ---- */

/* Computes the squares [n_cols] of the norm's weights. */
static void find_squares(const qn_biased_projection *p, double *squares)
{
    const size_t n = p->weights->n_cols;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        squares[i] = (double)p->norm[i] * p->norm[i];
        sum += squares[i];
    }
    for (size_t i = 0; p->rotated && i < n; i++)
        squares[i] = sum / (double)n;
}

/* Returns the expected square of the norm of n_rows outputs, those of rows from `first` on. row [n_cols] is scratch. */
static double expected_square(const qn_matrix *weights, const double *squares, size_t first, size_t n_rows, float *row)
{
    const qn_type_info *type = weights->type;
    const size_t step = n_rows > SAMPLED_ROWS ? n_rows / SAMPLED_ROWS : 1;
    double sum = 0, n = 0;
    for (size_t r = 0; r < n_rows; r += step, n++) {
        type->to_float(weights->data + (first + r) * weights->row_bytes, weights->n_cols / type->block_weights, row);
        for (size_t i = 0; i < weights->n_cols; i++)
            sum += squares[i] * row[i] * row[i];
    }
    return sum / n * (double)n_rows;
}

/* Returns sin(n a) / (n sin a): the mean of e^(2 i a t) over n adjacent t, relative to the value in the middle. */
static double mean_of_turns(double a, double n)
{
    return fabs(qn_real_sin(a)) > 1e-9 ? qn_real_sin(n * a) / (n * qn_real_sin(a)) : 1;
}

/* Returns the mean square, over n_ctx positions, of a pair of norm 1 after subtraction of its mean over page 0. */
static double left_of_pair(double frequency, uint32_t n_ctx)
{
    const double n = n_ctx, half = frequency / 2, first = mean_of_turns(half, QN_PAGE), all = mean_of_turns(half, n);
    const double square = 1 + first * first - 2 * first * all * qn_real_cos((n - QN_PAGE) * half);
    return square > 0 ? square : 0;
}

static double square_of_pair(const qn_attention_shape *h, const float *bias, size_t pair)
{
    const bool adjacent = h->rope == QN_ROPE_TYPE_NORM;
    const double x = (double)bias[adjacent ? 2 * pair : pair],
                 y = (double)bias[adjacent ? 2 * pair + 1 : pair + h->n_rot / 2];
    return x * x + y * y;
}

/* Returns the square of the part of a head's bias that remains after subtraction of page 0's mean key. Dimensions from
 * n_rot on are the same at all positions, so nothing of them remains. */
static double key_bias_square(const qn_plan *plan, const float *bias, uint32_t n_ctx)
{
    double sum = 0;
    for (size_t pair = 0; pair < plan->heads.n_rot / 2; pair++)
        sum += square_of_pair(&plan->heads, bias, pair) * left_of_pair(plan->frequencies[pair], n_ctx);
    return sum;
}

static double bias_square(const float *bias, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)bias[i] * bias[i];
    return sum;
}

/* Returns the larger number; NaN if either is NaN. */
static double larger(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static float largest_ratio(const qn_plan *plan, const qn_biased_projection *p, bool is_keys, uint32_t n_ctx,
                           double *squares, float *row)
{
    const size_t dim = plan->heads.head_dim;
    const double scale = qn_plan_scale_of(plan, p->weights);
    double largest = 0;
    find_squares(p, squares);
    for (size_t head = 0; head < p->n_heads; head++) {
        const float *bias = p->bias + head * dim;
        const double square = is_keys ? key_bias_square(plan, bias, n_ctx) : bias_square(bias, dim);
        const double expected = expected_square(p->weights, squares, head * dim, dim, row) * scale * scale;
        const double ratio = square ? square / expected : 0;
        largest = larger(largest, ratio);
    }
    return (float)sqrt(largest);
}

qn_status qn_kv_bias_find(const qn_plan *plan, const qn_biased_projection qkv[3], uint32_t n_ctx, qn_kv_bias *out)
{
    const size_t width = qkv->weights->n_cols;
    double *squares;
    float *row;
    QN_TRY(qn_alloc(&squares, width, sizeof *squares, "norms of biases"));
    const qn_status status = qn_alloc(&row, width, sizeof *row, "norms of biases");
    for (size_t i = 0; status == QN_OK && i < 3; i++)
        out->ratios[i] = largest_ratio(plan, &qkv[i], i == KEYS, n_ctx, squares, row);
    if (status == QN_OK)
        qn_free(row);
    qn_free(squares);
    return status;
}

/* ---- What is too large ---- */

/* Compares with the limits. The error factors of queries and keys multiply. NaN is too large. */
bool qn_kv_bias_is_large(const qn_kv_bias *bias)
{
    const double q = (double)bias->ratios[QUERIES] / query_unit, k = (double)bias->ratios[KEYS] / key_most;
    return !((1 + q * q) * (1 + k * k) <= 2 && (double)bias->ratios[QUERIES] <= query_most &&
             (double)bias->ratios[VALUES] <= value_most);
}

static size_t count_large(const qn_plan *plan)
{
    size_t n = 0;
    for (size_t layer = 0; plan->kv_bias && layer < plan->n_layers; layer++)
        n += qn_kv_bias_is_large(&plan->kv_bias[layer]);
    return n;
}

bool qn_plan_has_large_kv_bias(const qn_plan *plan)
{
    return count_large(plan) > 0;
}

/* Returns the largest ratio in the layers with large biases. */
static double largest_of(const qn_plan *plan, size_t i)
{
    double largest = 0;
    for (size_t layer = 0; layer < plan->n_layers; layer++)
        if (qn_kv_bias_is_large(&plan->kv_bias[layer]))
            largest = larger(largest, (double)plan->kv_bias[layer].ratios[i]);
    return largest;
}

/* Appends the layers as "0, 2-5": adjacent ones are joined. */
static void append_layers(const qn_plan *plan, qn_text_buffer *to)
{
    const char *separator = "";
    for (size_t layer = 0, n; layer < plan->n_layers; layer += n + 1) {
        for (n = 0; layer + n < plan->n_layers && qn_kv_bias_is_large(&plan->kv_bias[layer + n]);)
            n++;
        if (n)
            qn_append(to, "%s%zu", separator, layer);
        if (n > 1)
            qn_append(to, "-%zu", layer + n - 1);
        separator = n ? ", " : separator;
    }
}

void qn_plan_describe_kv_bias(const qn_plan *plan, char *text, size_t size)
{
    qn_text_buffer to = qn_append_to(text, size);
    const size_t n = count_large(plan);
    if (!n)
        return;
    qn_append(&to,
              "biases of queries, keys and values are up to %.3g, %.3g and %.3g times the norm without them (layer%s ",
              largest_of(plan, QUERIES), largest_of(plan, KEYS), largest_of(plan, VALUES), n > 1 ? "s" : "");
    append_layers(plan, &to);
    qn_append(&to, " of %zu)", plan->n_layers);
}
