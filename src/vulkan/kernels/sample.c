/* Parameters and launches of sampling. */
#include "vulkan/kernels/sample.h"

#include <math.h>

static const uint32_t argmax_code[] = {
#include "vulkan/kernels/spirv/sample_argmax.inc"
};
static const uint32_t histogram_code[] = {
#include "vulkan/kernels/spirv/sample_histogram.inc"
};
static const uint32_t draw_code[] = {
#include "vulkan/kernels/spirv/sample_draw.inc"
};

static const qn_vk_shader argmax = { "sample_argmax", argmax_code, sizeof argmax_code, sizeof(qn_vk_sample_args) };
static const qn_vk_shader histogram = { "sample_histogram", histogram_code, sizeof histogram_code,
                                        sizeof(qn_vk_sample_args) };
static const qn_vk_shader draw = { "sample_draw", draw_code, sizeof draw_code, sizeof(qn_vk_sample_args) };

_Static_assert(sizeof(qn_vk_sample_params) == 88, "PARAMS_BYTES of sample.glsl");
_Static_assert(sizeof(qn_vk_sample_state) == 7168, "STATE_BYTES");
_Static_assert(sizeof(qn_vk_sample_result) == 16, "RESULT_BYTES");

qn_vk_sample_kind qn_vk_sample_kind_of(const qn_sample_request *request)
{
    const qn_sampling *s = &request->sampling;
    if (request->logprobs || qn_sample_is_on_host(s, false))
        return QN_VK_SAMPLE_NONE;
    if (qn_sample_is_greedy(s))
        return QN_VK_SAMPLE_ARGMAX;
    const bool has_filters = s->top_n_sigma > 0 || (s->typical_p > 0 && s->typical_p < 1) || s->xtc_probability > 0;
    return has_filters ? QN_VK_SAMPLE_NONE : QN_VK_SAMPLE_DRAW;
}

/* The bin at a distance, which may be off by the rounding of distances and of the exponential: far less than the
 * margin. */
static uint32_t edge_of(double distance, double margin, double bins_per_unit, uint32_t beyond)
{
    const double bin = (distance + margin) * bins_per_unit;
    return bin <= 0 ? 0 : bin < QN_VK_SAMPLE_BINS ? (uint32_t)bin : beyond;
}

qn_vk_sample_params qn_vk_sample_params_of(const qn_sample_request *request, size_t n)
{
    enum { LAST = QN_VK_SAMPLE_BINS - 1 };
    const qn_sampling *s = &request->sampling;
    const qn_vk_sample_kind kind = qn_vk_sample_kind_of(request);
    const size_t k = qn_sample_top_k(s, n);
    const int bits = qn_sample_weight_bits(n);
    /* e^-u is below one unit for u > bits * ln 2; another ln 2 is far more than any rounding error. */
    const double bins_per_unit = QN_VK_SAMPLE_BINS / ((bits + 1) * 0.6931471805599453), margin = 1e-3,
                 distance = s->min_p > 0 ? -log((double)s->min_p) : 0;
    return (qn_vk_sample_params){ .random = request->random,
                                  .penalties = { s->repeat_penalty, s->frequency_penalty, s->presence_penalty },
                                  .inverse = kind == QN_VK_SAMPLE_DRAW ? 1 / s->temperature : 1,
                                  .top_p = s->top_p,
                                  .min_p = s->min_p,
                                  .bins_per_unit = (float)bins_per_unit,
                                  .weight_bits = (uint32_t)bits,
                                  .first_edge = edge_of(distance, -margin, bins_per_unit, QN_VK_SAMPLE_BINS),
                                  .last_edge = edge_of(distance, margin, bins_per_unit, LAST),
                                  .kind = kind == QN_VK_SAMPLE_NONE ? QN_VK_SAMPLE_ARGMAX : kind,
                                  .top_k = k < n ? (uint32_t)k : 0 };
}

uint32_t qn_vk_sample_slices(size_t n)
{
    enum { OF_SLICE = 1024 };
    const size_t slices = (n + OF_SLICE - 1) / OF_SLICE;
    return (uint32_t)(slices < QN_VK_SAMPLE_SLICES ? slices : QN_VK_SAMPLE_SLICES);
}

static qn_vk_launch launch(const qn_vk_shader *shader, uint32_t lanes, uint32_t most_lanes, size_t x, size_t y)
{
    return (qn_vk_launch){ .shader = shader,
                           .constants = { lanes < most_lanes ? lanes : most_lanes },
                           .groups = { (uint32_t)x, (uint32_t)y, 1 } };
}

size_t qn_vk_sample(const qn_vk_features *features, bool has_draws, size_t n, size_t n_rows,
                    qn_vk_launch launches[QN_VK_SAMPLE_LAUNCHES])
{
    enum { LANES_OF_SLICE = 256, LANES_OF_ROW = 1024 };
    const uint32_t slices = qn_vk_sample_slices(n);
    size_t n_launches = 0;
    launches[n_launches++] = launch(&argmax, features->lanes, LANES_OF_SLICE, slices, n_rows);
    if (has_draws)
        launches[n_launches++] = launch(&histogram, features->lanes, LANES_OF_SLICE, slices, n_rows);
    launches[n_launches++] = launch(&draw, features->lanes, has_draws ? LANES_OF_ROW : LANES_OF_SLICE, n_rows, 1);
    return n_launches;
}
