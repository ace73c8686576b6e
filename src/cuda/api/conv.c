/* The causal convolution of quern/cuda.h: checks of the arguments, then the launches of cuda/kernels/conv/conv.h. */
#include "cuda/api/api.h"

#include "base/memory.h"
#include "cuda/kernels/conv/conv.h"

typedef struct conv_call {
    const qn_cuda_conv_shape *shape;
    size_t rows, n_sequences, element;
    size_t state; /* elements of a state */
    qn_dtype dtype;
    qn_conv_args args;
    bool is_aligned;
} conv_call;

static qn_status check_sizes(conv_call *c, bool has_bias)
{
    const qn_cuda_conv_shape *s = c->shape;
    const size_t max_taps = QN_CONV_GPU_MAX_TAPS - has_bias;
    if (!qn_mul_size(s->batch, s->tokens, &c->rows) || c->rows > INT32_MAX / 2)
        return qn_fail(QN_ERR_INVALID, "%zu sequences of %zu tokens: expected at most %d tokens in all", s->batch,
                       s->tokens, INT32_MAX / 2);
    c->n_sequences = s->n_sequences ? s->n_sequences : s->batch;
    if (c->n_sequences >= INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu sequences, expected less than %d", c->n_sequences, INT32_MAX);
    if (!s->channels || s->channels > UINT16_MAX * QN_CONV_GPU_THREADS)
        return qn_fail(QN_ERR_INVALID, "channels: %zu, expected 1 to %d", s->channels,
                       UINT16_MAX * QN_CONV_GPU_THREADS);
    if (!s->taps || s->taps > max_taps)
        return qn_fail(QN_ERR_INVALID, "taps: %zu, expected 1 to %zu%s", s->taps, max_taps,
                       has_bias ? " with a bias" : "");
    c->state = (s->taps - 1) * s->channels;
    return s->n_sequences ? qn_api_check_seqlens(s->cu_seqlens, s->n_sequences, s->batch) : QN_OK;
}

static void expect_aligned(conv_call *c, qn_cuda_view view, size_t distance)
{
    if (qn_api_address(view) % QN_API_ALIGNMENT || distance * c->element % QN_API_ALIGNMENT)
        c->is_aligned = false;
}

static qn_status begin(conv_call *c, const qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                       qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view y)
{
    *c = (conv_call){ .shape = shape, .dtype = x.dtype };
    qn_conv_args *a = &c->args;
    if (!kernels || !shape)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "shape" : "kernels");
    const bool has_bias = qn_api_given(bias);
    QN_TRY(check_sizes(c, has_bias));
    QN_TRY(qn_api_check_float_type("x", x));
    c->element = c->dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    QN_TRY(qn_api_check_rows("x", x, c->dtype, c->rows, shape->channels, c->element, &a->x_stride));
    QN_TRY(qn_api_check_array("weights", weights, QN_DTYPE_F32, shape->channels * shape->taps));
    if (has_bias)
        QN_TRY(qn_api_check_array("bias", bias, QN_DTYPE_F32, shape->channels));
    QN_TRY(qn_api_check_rows("y", y, c->dtype, c->rows, shape->channels, c->element, &a->y_stride));
    QN_TRY(qn_api_check_indices(shape->state_indices, c->n_sequences, &a->state_indices));
    a->x = qn_api_address(x);
    a->y = qn_api_address(y);
    a->weights = qn_api_address(weights);
    a->bias = has_bias ? qn_api_address(bias) : 0;
    a->cu_seqlens = shape->n_sequences ? qn_api_address(shape->cu_seqlens) : 0;
    a->wide_seqlens = shape->n_sequences && shape->cu_seqlens.dtype == QN_DTYPE_I64;
    a->rows = (uint32_t)c->rows;
    a->tokens = (uint32_t)shape->tokens;
    a->sequences = (uint32_t)c->n_sequences;
    a->channels = (uint32_t)shape->channels;
    a->taps = (uint32_t)shape->taps;
    a->dtype = (uint32_t)c->dtype;
    a->silu = !shape->linear;
    c->is_aligned = shape->channels % QN_CONV_GPU_CHANNELS == 0;
    expect_aligned(c, x, a->x_stride);
    expect_aligned(c, y, a->y_stride);
    return QN_OK;
}

/* Checks a view of states. With indices the check requires only one state: only the device knows the indices. */
static qn_status check_states(conv_call *c, const char *name, qn_cuda_view states, uint64_t *address, uint64_t *stride)
{
    uint32_t distance;
    const size_t n = c->args.state_indices ? c->n_sequences != 0 : c->n_sequences;
    QN_TRY(qn_api_check_rows(name, states, c->dtype, c->state ? n : 0, c->state, c->element, &distance));
    expect_aligned(c, states, distance);
    *address = qn_api_address(states);
    *stride = distance;
    return QN_OK;
}

qn_status qn_cuda_conv_scan(qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                            qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view initial, qn_cuda_view final,
                            qn_cuda_view y, qn_stream stream)
{
    conv_call c;
    qn_launch launches[2];
    size_t n = 0;
    QN_TRY(begin(&c, kernels, shape, x, weights, bias, y));
    if (qn_api_given(initial))
        QN_TRY(check_states(&c, "initial", initial, &c.args.initial, &c.args.initial_stride));
    if (qn_api_given(final))
        QN_TRY(check_states(&c, "final", final, &c.args.final, &c.args.final_stride));
    QN_TRY(qn_api_check_in_place("final", final, (uint32_t)c.args.final_stride, "initial", initial,
                                 (uint32_t)c.args.initial_stride));
    if (c.rows)
        QN_TRY(qn_conv_gpu_scan(&c.args, c.is_aligned, qn_api_info(kernels)->n_sms, &launches[n++]));
    if (qn_api_given(final) && c.n_sequences && c.state)
        QN_TRY(qn_conv_gpu_final(&c.args, c.is_aligned, &launches[n++]));
    return n ? qn_api_run(kernels, stream, launches, n, &c.args) : QN_OK;
}

qn_status qn_cuda_conv_step(qn_cuda_kernels *kernels, const qn_cuda_conv_shape *shape, qn_cuda_view x,
                            qn_cuda_view weights, qn_cuda_view bias, qn_cuda_view state, qn_cuda_view y,
                            qn_stream stream)
{
    conv_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, x, weights, bias, y));
    if (shape->tokens != 1 || shape->n_sequences)
        return qn_fail(QN_ERR_INVALID, "tokens, n_sequences: %zu, %zu, expected 1 and 0 for a step", shape->tokens,
                       shape->n_sequences);
    QN_TRY(check_states(&c, "state", state, &c.args.initial, &c.args.initial_stride));
    QN_TRY(qn_api_check_in_place("y", y, c.args.y_stride, "x", x, c.args.x_stride));
    if (!c.rows)
        return QN_OK;
    QN_TRY(qn_conv_gpu_step(&c.args, c.is_aligned, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &c.args);
}

qn_status qn_cuda_conv_prepare(qn_cuda_kernels *kernels)
{
    static const uint32_t taps[2] = { QN_CONV_GPU_FEW_TAPS, QN_CONV_GPU_MAX_TAPS };
    qn_launch launches[10];
    size_t n = 0;
    for (int is_aligned = 0; is_aligned < 2; is_aligned++) {
        for (size_t i = 0; i < 2; i++) {
            qn_conv_args args = { .rows = 1, .sequences = 1, .channels = 1, .taps = taps[i] };
            QN_TRY(qn_conv_gpu_scan(&args, is_aligned, 1, &launches[n++]));
            QN_TRY(qn_conv_gpu_step(&args, is_aligned, &launches[n++]));
        }
        const qn_conv_args args = { .rows = 1, .sequences = 1, .channels = 1, .taps = 1 };
        QN_TRY(qn_conv_gpu_final(&args, is_aligned, &launches[n++]));
    }
    return qn_api_load(kernels, launches, n);
}
