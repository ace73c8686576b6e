/* Gated DeltaNet layers on the CPU: distribution of heads over the threads, and the update of a layer's state and open
 * chunk. The arithmetic is in kernels/deltanet/. */
#include "cpu/acts.h"
#include "cpu/follow.h"
#include "cpu/memory.h"

#include <math.h>
#include <string.h>

static const qn_recurrent_view *view_of(const qn_row *row)
{
    return &qn_cpu_memory_of(row)->recurrent;
}

/* The rows of one session in a step: contiguous, at consecutive positions. */
typedef struct seq_rows {
    size_t row, n;
    uint32_t position; /* position of the first row */
    uint32_t state_position;
    qn_recurrent_layer memory;
} seq_rows;

static seq_rows seq_rows_at(const qn_executor *ex, const qn_op *op, size_t row)
{
    const qn_row *rows = ex->step->rows;
    seq_rows seq = { .row = row,
                     .n = 1,
                     .position = rows[row].position,
                     .state_position = view_of(&rows[row])->state_position,
                     .memory = qn_recurrent_layer_of(view_of(&rows[row]), (size_t)op->layer) };
    while (row + seq.n < ex->step->n_rows && rows[row + seq.n].memory == rows[row].memory)
        seq.n++;
    return seq;
}

static size_t count_sequences(const qn_executor *ex)
{
    size_t n = 0;
    for (size_t row = 0; row < ex->step->n_rows; row++)
        n += row == 0 || ex->step->rows[row].memory != ex->step->rows[row - 1].memory;
    return n;
}

/* Returns the position at which the open chunk begins after the step. */
static size_t next_state_position(const seq_rows *seq)
{
    const size_t end = seq->position + seq->n;
    return end > (size_t)seq->state_position + QN_GDN_CHUNK ? (end - 1) / QN_GDN_CHUNK * QN_GDN_CHUNK
                                                            : seq->state_position;
}

/* Returns the place of a value head in grouped activations, and the value head of a place. */
static size_t grouped_head(const qn_recurrent_shape *shape, size_t v_head)
{
    return v_head % shape->n_k_heads * (shape->n_v_heads / shape->n_k_heads) + v_head / shape->n_k_heads;
}

static size_t value_head(const qn_recurrent_shape *shape, size_t grouped)
{
    const size_t rep = shape->n_v_heads / shape->n_k_heads;
    return grouped % rep * shape->n_k_heads + grouped / rep;
}

static size_t q_width(const qn_recurrent_shape *shape)
{
    return shape->n_k_heads * shape->head_k;
}

/* ---- Convolution, norms and gates ---- */

/* Returns the stored convolution input at a position before the step. */
static const float *stored_conv_input(const qn_recurrent_shape *shape, const qn_recurrent_view *view,
                                      const qn_recurrent_layer *layer, size_t position)
{
    const size_t width = qn_recurrent_width(shape), start = view->state_position;
    return position >= start ? layer->conv_inputs + (position - start) * width
                             : layer->history + (position + shape->taps - 1 - start) * width;
}

/* Finds the input rows of a row's taps: rows of this step, stored rows, or zeros before position 0. */
static void find_conv_inputs(const qn_executor *ex, const qn_op *op, size_t row,
                             const float *conv_inputs[QN_CONV_MAX_TAPS])
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const qn_row *r = &ex->step->rows[row];
    const qn_recurrent_layer layer = qn_recurrent_layer_of(view_of(r), (size_t)op->layer);
    const size_t taps = shape->taps;
    size_t n_in_step = 0; /* earlier rows of this session in this step */
    while (n_in_step + 1 < taps && n_in_step < row && ex->step->rows[row - n_in_step - 1].memory == r->memory)
        n_in_step++;
    for (size_t tap_distance = 0; tap_distance < taps; tap_distance++) {
        const float **input = &conv_inputs[taps - 1 - tap_distance];
        if (tap_distance <= n_in_step)
            *input = qn_buffer_row(ex, op->conv.qkv, row - tap_distance);
        else if (tap_distance > r->position)
            *input = ex->zeros;
        else
            *input = stored_conv_input(shape, view_of(r), &layer, r->position - tap_distance);
    }
}

static void l2_normalize_head(const qn_executor *ex, float *x, size_t n)
{
    const float scale = 1.0f / sqrtf(ex->kernels->norm.sum_squares(x, n) + 1e-6f);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* Items: rows. */
static void compute_gates(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    for (size_t row = range->begin; row < range->end; row++) {
        float *g = qn_buffer_row(ex, op->conv.alpha, row), *beta = qn_buffer_row(ex, op->conv.beta, row);
        for (size_t head = 0; head < ex->plan->recurrent.n_v_heads; head++) {
            g[head] = qn_gdn_log_decay(g[head], op->conv.bias[head], op->conv.factor[head]);
            beta[head] = qn_gdn_beta(beta[head]);
        }
    }
}

/* Items: the heads of all rows; of a row q heads, k heads, then v heads. */
static void convolve_heads(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t heads = 2 * shape->n_k_heads + shape->n_v_heads, width = qn_recurrent_width(shape);
    const float *conv_inputs[QN_CONV_MAX_TAPS] = { 0 };
    size_t found = SIZE_MAX;
    for (size_t unit = range->begin; unit < range->end; unit++) {
        const size_t row = unit / heads, head = unit % heads;
        const bool is_value = head >= 2 * shape->n_k_heads;
        const size_t v_head = is_value ? head - 2 * shape->n_k_heads : 0, n = is_value ? shape->head_v : shape->head_k;
        const size_t first = is_value ? 2 * q_width(shape) + v_head * n : head * n;
        const float *taps_in[QN_CONV_MAX_TAPS];
        float *y = qn_buffer_row(ex, op->conv.out, row) + first;
        if (row != found)
            find_conv_inputs(ex, op, row, conv_inputs);
        found = row;
        for (size_t t = 0; t < shape->taps; t++)
            taps_in[t] = conv_inputs[t] + first;
        ex->kernels->deltanet.conv(y, taps_in, op->conv.taps + first, width, shape->taps, n);
        if (!is_value)
            l2_normalize_head(ex, y, n);
    }
}

size_t qn_executor_conv(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    (void)op;
    works[0] =
        (qn_cpu_work){ .run = convolve_heads, .count = ex->step->n_rows * (2 * shape->n_k_heads + shape->n_v_heads) };
    works[1] = (qn_cpu_work){ .run = compute_gates, .count = ex->step->n_rows };
    return 2;
}

/* ---- Delta rule ---- */

/* Limit of heads in one call of qn_gdn_advance. */
enum { MAX_GROUP = 8 };

/* A unit of work: values [first, last) of a value head. Units with the same key head and the same values are
 * adjacent. */
typedef struct head_slice {
    size_t k_head, head, first, last;
} head_slice;

static head_slice slice_at(const qn_recurrent_shape *shape, size_t slices, size_t index)
{
    const size_t rep = shape->n_v_heads / shape->n_k_heads, k_head = index / (rep * slices),
                 slice = index / rep % slices;
    head_slice u = { .k_head = k_head, .head = index % rep * shape->n_k_heads + k_head };
    qn_team_range(shape->head_v, QN_GDN_UNIT, slice, slices, &u.first, &u.last);
    return u;
}

static const float *open_keys_of(const qn_recurrent_shape *shape, const seq_rows *seq, size_t k_head)
{
    return seq->memory.keys + k_head * shape->head_k * QN_GDN_CHUNK;
}

/* Returns the state of a head's values, [head_k][*row]. If the step folds, this is the place where it stores the new
 * state, with the present state copied there; else the present state, which is then only read. */
static float *state_of(const qn_executor *ex, const seq_rows *seq, const head_slice *u, size_t *row)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t at = u->head * shape->head_k * shape->head_v + u->first, n = u->last - u->first;
    const float *from = seq->memory.state ? seq->memory.state + at : ex->zeros;
    const size_t from_row = seq->memory.state ? shape->head_v : 0;
    float *to = seq->memory.state_to ? seq->memory.state_to + at : NULL;
    for (size_t k = 0; to && to != from && k < shape->head_k; k++)
        memcpy(to + k * shape->head_v, from + k * from_row, n * sizeof *to);
    *row = to ? shape->head_v : from_row;
    return to ? to : (float *)from;
}

static qn_gdn_head gdn_head_of(const qn_executor *ex, const qn_op *op, const seq_rows *seq, const head_slice *u)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t at = u->head * shape->head_v + u->first;
    qn_gdn_head head = {
        .v_new = seq->memory.v_new + u->head * QN_GDN_CHUNK * shape->head_v + u->first,
        .v_new_row = shape->head_v,
        .log_decay = seq->memory.log_decay + u->head * QN_GDN_CHUNK,
        .v = qn_buffer_row(ex, op->delta_rule.qkv, seq->row) + 2 * q_width(shape) + at,
        .g = qn_buffer_row(ex, op->delta_rule.g, seq->row) + u->head,
        .beta = qn_buffer_row(ex, op->delta_rule.beta, seq->row) + u->head,
        .o = qn_buffer_row(ex, op->delta_rule.out, seq->row) + at,
    };
    head.state = state_of(ex, seq, u, &head.state_row);
    return head;
}

/* Computes units [begin, end) of a sequence. Units that share a key head and a slice go into one call. */
static void advance_units(const qn_executor *ex, const qn_op *op, const seq_rows *seq, size_t slices, size_t begin,
                          size_t end, int thread)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t width = qn_recurrent_width(shape), rep = shape->n_v_heads / shape->n_k_heads;
    const float *qkv = qn_buffer_row(ex, op->delta_rule.qkv, seq->row);
    for (size_t n; begin < end; begin += n) {
        const size_t same_key_head = rep - begin % rep, most = same_key_head < MAX_GROUP ? same_key_head : MAX_GROUP;
        const head_slice u = slice_at(shape, slices, begin);
        qn_gdn_head heads[MAX_GROUP];
        n = end - begin < most ? end - begin : most;
        for (size_t i = 0; i < n; i++) {
            const head_slice of = slice_at(shape, slices, begin + i);
            heads[i] = gdn_head_of(ex, op, seq, &of);
        }
        qn_gdn_advance(&ex->kernels->deltanet,
                       &(qn_gdn_group){
                           .head_k = shape->head_k,
                           .n_values = u.last - u.first,
                           .heads = heads,
                           .n_heads = n,
                           .keys = open_keys_of(shape, seq, u.k_head),
                           .open_tokens = seq->position - seq->state_position,
                           .n = seq->n,
                           .q = qkv + u.k_head * shape->head_k,
                           .k = qkv + q_width(shape) + u.k_head * shape->head_k,
                           .qk_stride = width,
                           .v_stride = width,
                           .gate_stride = shape->n_v_heads,
                           .o_stride = shape->n_v_heads * shape->head_v,
                           .scale = (float)(1 / sqrt((double)shape->head_k)),
                           .next = begin + n < shape->n_v_heads * slices
                                       ? open_keys_of(shape, seq, slice_at(shape, slices, begin + n).k_head)
                                       : NULL,
                       },
                       qn_thread_scratch(ex, thread));
    }
}

/* Slices of a head's values: with more threads than heads each head is divided. */
static size_t head_slices(const qn_executor *ex)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t n_threads = (size_t)qn_team_size(ex->team), n_heads = count_sequences(ex) * shape->n_v_heads;
    const size_t most = shape->head_v / QN_GDN_UNIT, wanted = (n_threads + n_heads - 1) / n_heads;
    return wanted < most ? wanted : most;
}

/* For the gated norm of one row: the values of units [begin, end) are there. */
static void arrive_units(const qn_executor *ex, size_t slices, size_t begin, size_t end, int thread)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    for (size_t index = begin; ex->follower && index < end; index++) {
        const head_slice u = slice_at(shape, slices, index);
        const size_t head = ex->follower->gated_norm.grouped ? grouped_head(shape, u.head) : u.head;
        qn_follow_acts(ex, head * shape->head_v + u.first, u.last - u.first, 1, thread);
    }
}

/* Items: slices of the value heads of all sequences, as numbered by slice_at. */
static void advance_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t slices = head_slices(ex), units = ex->plan->recurrent.n_v_heads * slices;
    const size_t begin = range->begin, end = range->end;
    size_t first = 0;
    for (size_t row = 0; row < ex->step->n_rows && first < end; first += units) {
        const seq_rows seq = seq_rows_at(ex, op, row);
        if (first + units > begin)
            advance_units(ex, op, &seq, slices, begin > first ? begin - first : 0,
                          end - first < units ? end - first : units, range->thread);
        row += seq.n;
    }
    arrive_units(ex, slices, begin, end, range->thread);
}

size_t qn_executor_delta_rule(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t count = count_sequences(ex) * shape->n_v_heads * head_slices(ex),
                 rep = shape->n_v_heads / shape->n_k_heads;
    (void)op;
    /* Items with the same keys stay together where there are enough of them. A prompt's items compute long and read
     * little: who is free takes the next. */
    works[0] = (qn_cpu_work){ .run = advance_slices,
                              .count = count,
                              .unit = count / rep >= 2 * (size_t)qn_team_size(ex->team) ? rep : 1,
                              .spread = ex->step->n_rows >= QN_GDN_CHUNK ? QN_SPREAD_SINGLE : QN_SPREAD_EVEN,
                              .item_bytes = shape->head_k * shape->head_v / head_slices(ex) * sizeof(float) };
    return 1;
}

/* ---- Gated norm, and the open chunk ---- */

/* Updates channels [first, first + n) of the stored convolution inputs. If a new chunk begins, the last rows before it
 * become the history of its state; then the new rows are appended. */
static void append_conv_inputs(const qn_executor *ex, const qn_op *op, const seq_rows *seq, size_t first, size_t n)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t width = qn_recurrent_width(shape), n_history = shape->taps - 1, end = seq->position + seq->n;
    const size_t before = seq->state_position, after = next_state_position(seq);
    float *stored = seq->memory.conv_inputs + first, *history = after != before ? seq->memory.history_to + first : NULL;
    for (size_t r = 0; after != before && r < n_history; r++) {
        const size_t p = after - n_history + r;
        const float *from = p < seq->position
                                ? stored + (p - before) * width
                                : qn_buffer_row(ex, op->gated_norm.conv_in, seq->row + p - seq->position) + first;
        memcpy(history + r * width, from, n * sizeof *history);
    }
    for (size_t p = seq->position > after ? seq->position : after; p < end; p++)
        memcpy(stored + (p - after) * width,
               qn_buffer_row(ex, op->gated_norm.conv_in, seq->row + p - seq->position) + first, n * sizeof *stored);
}

/* Appends part `part` of n_k_heads of a sequence's rows to its open chunk. */
static void append_part(const qn_executor *ex, const qn_op *op, const seq_rows *seq, size_t part)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t open_tokens = seq->position - seq->state_position, width = qn_recurrent_width(shape);
    const float *keys = qn_buffer_row(ex, op->gated_norm.conv_out, seq->row) + q_width(shape);
    size_t begin, end;
    qn_gdn_append_keys(seq->memory.keys + part * shape->head_k * QN_GDN_CHUNK, shape->head_k, open_tokens,
                       keys + part * shape->head_k, width, seq->n);
    qn_team_range(shape->n_v_heads, 1, part, shape->n_k_heads, &begin, &end);
    for (size_t h = begin; h < end; h++)
        qn_gdn_append_decay(seq->memory.log_decay + h * QN_GDN_CHUNK, open_tokens,
                            qn_buffer_row(ex, op->gated_norm.g, seq->row) + h, shape->n_v_heads, seq->n);
    qn_team_range(width, QN_GDN_UNIT, part, shape->n_k_heads, &begin, &end);
    append_conv_inputs(ex, op, seq, begin, end - begin);
}

/* Items: the parts of all sequences. */
static void append_open_chunks(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t parts = ex->plan->recurrent.n_k_heads;
    size_t first = 0;
    for (size_t row = 0; row < ex->step->n_rows && first < range->end; first += parts) {
        const seq_rows seq = seq_rows_at(ex, op, row);
        for (size_t part = 0; part < parts; part++)
            if (first + part >= range->begin && first + part < range->end)
                append_part(ex, op, &seq, part);
        row += seq.n;
    }
}

/* Computes values [from, from + n) of head `head` of the activations. */
static void gated_norm_head(const qn_executor *ex, const qn_op *op, size_t row, size_t head, size_t from, size_t n,
                            float *values)
{
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t dim = shape->head_v, v_head = op->gated_norm.grouped ? value_head(shape, head) : head;
    const float *o = qn_buffer_row(ex, op->gated_norm.in, row) + v_head * dim;
    const float scale = qn_rms_scale(&ex->kernels->norm, o, dim, op->gated_norm.eps);
    ex->kernels->norm.scale(values, o + from, op->gated_norm.weight + from, scale, n);
    ex->kernels->elementwise.swiglu(values, qn_buffer_row(ex, op->gated_norm.gate, row) + v_head * dim + from, values,
                                    n);
}

static void gated_norm_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t dim = ex->plan->recurrent.head_v;
    const qn_op_acts *acts = &op->gated_norm.acts;
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice unit = qn_act_slice_at(ex, acts, index, range->thread);
        for (size_t i = 0, n; i < unit.n; i += n) {
            const size_t from = (unit.first + i) % dim;
            n = dim - from < unit.n - i ? dim - from : unit.n - i;
            gated_norm_head(ex, op, unit.row, (unit.first + i) / dim, from, n, unit.values + i);
        }
        qn_act_slice_write(ex, acts, &unit);
    }
}

size_t qn_executor_gated_norm(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] =
        (qn_cpu_work){ .run = gated_norm_slices, .count = qn_act_slices(ex, &op->gated_norm.acts, ex->step->n_rows) };
    works[1] = (qn_cpu_work){ .run = append_open_chunks,
                              .count = count_sequences(ex) * ex->plan->recurrent.n_k_heads,
                              .late = true };
    return 2;
}
