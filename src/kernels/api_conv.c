/* The public causal convolution: checks the arguments, then applies the kernel of kernels/deltanet/ row by row. Input
 * rows are converted to f32 in a ring buffer of `taps` rows, the filter's window. */
#include "quern/kernels.h"

#include "base/memory.h"
#include "kernels/api_check.h"

#include <string.h>

/* One call. filters, ones, ring and out are one allocation. */
typedef struct convolution {
    const qn_conv_shape *shape;
    qn_sequences sequences;
    qn_dtype dtype;
    size_t row_bytes;
    qn_view x, weights, bias, initial, final, y;
    float *filters; /* [n_rows, channels]: a row of biases if there is a bias, then the taps */
    float *ones;    /* [channels]: the input of the bias row */
    float *ring;    /* [taps, channels]: the last inputs, f32 */
    float *out;     /* [channels] */
    size_t n_rows;  /* taps, plus one with a bias */
} convolution;

static qn_status conv_init(convolution *c, const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias,
                           qn_view y)
{
    *c = (convolution){ .shape = shape, .dtype = x.dtype, .x = x, .weights = weights, .bias = bias, .y = y };
    QN_TRY(qn_api_ready());
    if (!shape)
        return qn_fail(QN_ERR_INVALID, "shape: NULL");
    QN_TRY(qn_check_sequences(shape->batch, shape->tokens, shape->n_sequences, shape->cu_seqlens, &c->sequences));
    if (!shape->channels)
        return qn_fail(QN_ERR_INVALID, "channels: 0, expected at least 1");
    const size_t n_bias = !qn_view_absent(bias), most = QN_CONV_MAX_TAPS - n_bias;
    if (!shape->taps || shape->taps > most)
        return qn_fail(QN_ERR_INVALID, "taps: %zu, expected 1 to %zu%s", shape->taps, most,
                       n_bias ? " with a bias" : "");
    c->n_rows = shape->taps + n_bias;
    QN_TRY(qn_check_float_type("x", x));
    QN_TRY(qn_check_view("x", x, c->dtype, c->sequences.rows, shape->channels, 1));
    QN_TRY(qn_check_view("weights", weights, QN_DTYPE_F32, shape->channels, shape->taps, 1));
    if (n_bias)
        QN_TRY(qn_check_view("bias", bias, QN_DTYPE_F32, shape->channels, 1, 1));
    QN_TRY(qn_check_view("y", y, c->dtype, c->sequences.rows, shape->channels, 1));
    return qn_view_bytes(c->dtype, shape->channels, &c->row_bytes);
}

static qn_status check_state(const convolution *c, const char *name, qn_view state)
{
    return qn_check_view(name, state, c->dtype, c->sequences.n, c->shape->taps - 1, c->shape->channels);
}

/* Transposes the filters. The kernel has no bias, so it is passed as one more tap, whose input is always 1. */
static qn_status transpose_filters(convolution *c)
{
    const size_t channels = c->shape->channels, taps = c->shape->taps, n_bias = c->n_rows - taps;
    QN_TRY(qn_alloc(&c->filters, channels, (c->n_rows + n_bias + taps + 1) * sizeof *c->filters, "convolution"));
    c->ones = c->filters + c->n_rows * channels;
    c->ring = c->ones + n_bias * channels;
    c->out = c->ring + taps * channels;
    for (size_t i = 0; n_bias && i < channels; i++)
        c->ones[i] = 1;
    if (n_bias)
        memcpy(c->filters, c->bias.data, channels * sizeof *c->filters);
    for (size_t t = 0; t < taps; t++)
        for (size_t i = 0; i < channels; i++)
            c->filters[(n_bias + t) * channels + i] = ((const float *)c->weights.data)[i * taps + t];
    return QN_OK;
}

static char *row_at(const convolution *c, qn_view view, size_t row)
{
    return (char *)view.data + row * c->row_bytes;
}

/* Returns the ring slot of an input row; row 0 is taps-1 tokens before the sequence's first. */
static float *ring_row(const convolution *c, size_t at)
{
    return c->ring + at % c->shape->taps * c->shape->channels;
}

static void scan(const convolution *c, size_t sequence)
{
    const qn_gdn_row_kernels *rows = &qn_api_kernels.gdn_rows;
    const size_t channels = c->shape->channels, before = c->shape->taps - 1, n_bias = c->n_rows - c->shape->taps;
    const float *inputs[QN_CONV_MAX_TAPS] = { c->ones };
    size_t n;
    const size_t first = qn_sequence_at(&c->sequences, sequence, &n);
    for (size_t i = 0; i < before; i++) {
        if (qn_view_absent(c->initial))
            memset(ring_row(c, i), 0, channels * sizeof(float));
        else
            rows->to_f32(ring_row(c, i), row_at(c, c->initial, sequence * before + i), c->dtype, channels);
    }
    for (size_t t = 0; t < n; t++) {
        rows->to_f32(ring_row(c, before + t), row_at(c, c->x, first + t), c->dtype, channels);
        for (size_t i = 0; i < c->shape->taps; i++)
            inputs[n_bias + i] = ring_row(c, t + i);
        qn_api_kernels.deltanet.conv(c->out, inputs, c->filters, channels, c->n_rows, channels);
        rows->from_f32(row_at(c, c->y, first + t), c->out, c->dtype, channels);
    }
    for (size_t i = 0; i < before && !qn_view_absent(c->final); i++)
        rows->from_f32(row_at(c, c->final, sequence * before + i), ring_row(c, n + i), c->dtype, channels);
}

static qn_status run(convolution *c)
{
    QN_TRY(transpose_filters(c));
    for (size_t i = 0; i < c->sequences.n; i++)
        scan(c, i);
    qn_free(c->filters);
    return QN_OK;
}

qn_status qn_conv_scan(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view initial,
                       qn_view final, qn_view y)
{
    convolution c;
    QN_TRY(conv_init(&c, shape, x, weights, bias, y));
    if (!qn_view_absent(initial))
        QN_TRY(check_state(&c, "initial", initial));
    if (!qn_view_absent(final))
        QN_TRY(check_state(&c, "final", final));
    c.initial = initial;
    c.final = final;
    return run(&c);
}

qn_status qn_conv_step(const qn_conv_shape *shape, qn_view x, qn_view weights, qn_view bias, qn_view state, qn_view y)
{
    convolution c;
    QN_TRY(conv_init(&c, shape, x, weights, bias, y));
    if (shape->tokens != 1 || shape->n_sequences)
        return qn_fail(QN_ERR_INVALID, "tokens, n_sequences: %zu, %zu, expected 1 and 0 for a step", shape->tokens,
                       shape->n_sequences);
    QN_TRY(check_state(&c, "state", state));
    c.initial = state;
    c.final = state;
    return run(&c);
}
