/* The rotation of a head for AURA caches (kernels/aura/aura.h), by a workgroup in shared memory: y = H (S x), H a
 * normalised Walsh-Hadamard transform and S signs; or a matrix. */
#define MAX_HEAD 512 /* QN_VK_MAX_HEAD */

shared float head[MAX_HEAD];

void multiply_head_by_signs(uvec2 signs, uint dim)
{
    for (uint i = gl_LocalInvocationIndex; i < dim; i += LANES)
        head[i] = Floats(signs).at[i] * head[i];
    barrier();
}

/* factor: 1/sqrt(dim) */
void transform_head(uint dim, float factor)
{
    for (uint stride = 1; stride < dim; stride *= 2) {
        for (uint i = gl_LocalInvocationIndex; i < dim / 2; i += LANES) {
            const uint at = i / stride * 2 * stride + i % stride;
            precise const float a = head[at] + head[at + stride], b = head[at] - head[at + stride];
            head[at] = a;
            head[at + stride] = b;
        }
        barrier();
    }
    for (uint i = gl_LocalInvocationIndex; i < dim; i += LANES) {
        precise const float value = factor * head[i];
        head[i] = value;
    }
    barrier();
}

/* head = matrix^T head; matrix: [dim][dim]. */
void multiply_head(uvec2 matrix, uint dim)
{
    precise float sums[MAX_HEAD / LANES];
    for (uint i = 0; i < MAX_HEAD / LANES; i++) {
        const uint at = i * LANES + gl_LocalInvocationIndex;
        sums[i] = 0;
        for (uint j = 0; j < dim && at < dim; j++)
            sums[i] += Floats(matrix).at[j * dim + at] * head[j];
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < dim; i += LANES)
        head[i] = sums[i / LANES];
    barrier();
}

/* The head is complete before, and after. signs, matrix: one of them, or both 0: no rotation; matrix: of P^T for the
 * rotation P, of P for the inverse. */
void rotate_head(uvec2 signs, uvec2 matrix, uint dim, float factor)
{
    if (!is_null(signs)) {
        multiply_head_by_signs(signs, dim);
        transform_head(dim, factor);
    } else if (!is_null(matrix)) {
        multiply_head(matrix, dim);
    }
}

void rotate_head_back(uvec2 signs, uvec2 matrix, uint dim, float factor)
{
    if (!is_null(signs)) {
        transform_head(dim, factor);
        multiply_head_by_signs(signs, dim);
    } else if (!is_null(matrix)) {
        multiply_head(matrix, dim);
    }
}
