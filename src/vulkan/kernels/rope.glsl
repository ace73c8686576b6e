/* Bias, RMS norm, rope, scale and rotation of a head of a row: of queries, or of keys and values, which are stored in their
 * fp16 page. By a workgroup of NORM_LANES lanes or more, of which the order of sums does not depend. */
#define NORM_LANES 64

struct Rope {
    uvec2 x, y;          /* [rows][heads of `stride`], [rows][heads of dim]; y 0: the page */
    uvec2 bias, weight;  /* [heads][dim], [dim]; 0: none */
    uvec2 angles;        /* [rows]: cosines [n_rot / 2], sines [n_rot / 2] */
    uvec2 signs, matrix; /* rotation.glsl */
    uvec2 tables, positions, sequences, granules; /* of the page */
    uint shift, at;                               /* at: of the layer's rows in it */
    uint stride, dim, n_rot;
    uint is_interleaved; /* values 2i and 2i+1 are a pair; else i and i + n_rot/2 */
    float eps, scale, factor; /* factor: of the rotation */
};

/* What another workgroup may have written in the same launch. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Results { float at[]; };

/* Stores the head in its page. */
void store_head(Rope a, uint h, uint row)
{
    const uint sequence = Words(a.sequences).at[row], position = Words(a.positions).at[row], bytes = a.dim * 2;
    if (sequence == 0xffffffff)
        return;
    const uvec2 page = Addresses(Addresses(a.tables).at[sequence]).at[position / PAGE];
    const Place to =
        place_of(a.granules, a.shift, add_bytes(page, a.at + (h * PAGE + position % PAGE) * bytes), bytes);
    for (uint i = gl_LocalInvocationIndex; i < a.dim / 2; i += LANES)
        Words(address_at(to, 4 * i)).at[0] = floats_to_halves(vec2(head[2 * i], head[2 * i + 1]));
}

/* The sum of the first lanes' values, in every lane. */
float sum_of_norm_lanes(float x)
{
    const uint lane = gl_LocalInvocationIndex;
    lanes[lane] = x;
    barrier();
    for (uint half_ = NORM_LANES / 2; half_ > 0; half_ /= 2) {
        if (lane < half_) {
            precise const float sum = lanes[lane] + lanes[lane + half_];
            lanes[lane] = sum;
        }
        barrier();
    }
    return lanes[0];
}

void rope_head(Rope a, uint h, uint n_heads, uint row)
{
    const uint lane = gl_LocalInvocationIndex, pairs = a.n_rot / 2;
    Results from = Results(advance(advance(a.x, row, 4 * n_heads * a.stride), h, 4 * a.stride));
    Floats to = Floats(advance(advance(a.y, row, 4 * n_heads * a.dim), h, 4 * a.dim));
    precise float sum = 0;
    for (uint i = lane; i < a.dim && lane < NORM_LANES; i += NORM_LANES) {
        precise float value = from.at[i];
        if (!is_null(a.bias))
            value += Floats(a.bias).at[h * a.dim + i];
        head[i] = value;
        sum += value * value;
    }
    if (!is_null(a.weight)) {
        precise const float mean = sum_of_norm_lanes(sum) / float(a.dim) + a.eps;
        precise const float factor = 1.0 / sqrt(mean);
        for (uint i = lane; i < a.dim; i += LANES) {
            precise const float value = head[i] * factor * Floats(a.weight).at[i];
            head[i] = value;
        }
    }
    barrier();
    Floats cosines = Floats(advance(a.angles, row, 4 * a.n_rot)), sines = Floats(advance(uvec2(cosines), pairs, 4));
    for (uint i = lane; i < pairs; i += LANES) {
        const uint at = a.is_interleaved != 0 ? 2 * i : i, other = a.is_interleaved != 0 ? 2 * i + 1 : i + pairs;
        precise const float first = head[at] * cosines.at[i] - head[other] * sines.at[i];
        precise const float second = head[at] * sines.at[i] + head[other] * cosines.at[i];
        head[at] = first * a.scale;
        head[other] = second * a.scale;
    }
    for (uint i = a.n_rot + lane; i < a.dim; i += LANES)
        head[i] = head[i] * a.scale;
    barrier();
    rotate_heads(a.signs, a.matrix, a.dim, a.dim, a.factor);
    if (is_null(a.y))
        store_head(a, h, row);
    for (uint i = lane; i < a.dim && !is_null(a.y); i += LANES)
        to.at[i] = head[i];
}
