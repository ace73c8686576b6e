/* The rotation of heads for AURA caches (kernels/aura/aura.h), by a workgroup in shared memory: y = H (S x), H a
 * normalised Walsh-Hadamard transform and S signs; or a matrix. The file that includes it may have MAX_HEAD, the values of
 * all heads that it rotates together. */
#ifndef MAX_HEAD
#define MAX_HEAD 512 /* QN_VK_MAX_HEAD */
#endif

shared float head[MAX_HEAD]; /* n values: heads of dim */

void multiply_by_signs(uvec2 signs, uint dim, uint n)
{
    for (uint i = gl_LocalInvocationIndex; i < n; i += LANES)
        head[i] = Floats(signs).at[i % dim] * head[i];
    barrier();
}

/* factor: 1/sqrt(dim) */
void transform_heads(uint dim, uint n, float factor)
{
    for (uint stride = 1; stride < dim; stride *= 2) {
        for (uint i = gl_LocalInvocationIndex; i < n / 2; i += LANES) {
            const uint at = i / stride * 2 * stride + i % stride;
            precise const float a = head[at] + head[at + stride], b = head[at] - head[at + stride];
            head[at] = a;
            head[at + stride] = b;
        }
        barrier();
    }
    for (uint i = gl_LocalInvocationIndex; i < n; i += LANES) {
        precise const float value = factor * head[i];
        head[i] = value;
    }
    barrier();
}

/* head = matrix^T head, for each; matrix: [dim][dim]. */
void multiply_heads(uvec2 matrix, uint dim, uint n)
{
    precise float sums[(MAX_HEAD + LANES - 1) / LANES];
    for (uint i = 0; i * LANES < MAX_HEAD; i++) {
        const uint at = i * LANES + gl_LocalInvocationIndex;
        sums[i] = 0;
        for (uint j = 0; j < dim && at < n; j++)
            sums[i] += Floats(matrix).at[j * dim + at % dim] * head[at / dim * dim + j];
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < n; i += LANES)
        head[i] = sums[i / LANES];
    barrier();
}

/* The heads are complete before, and after. signs, matrix: one of them, or both 0: no rotation; matrix: of P^T for the
 * rotation P, of P for the inverse. */
void rotate_heads(uvec2 signs, uvec2 matrix, uint dim, uint n, float factor)
{
    if (!is_null(signs)) {
        multiply_by_signs(signs, dim, n);
        transform_heads(dim, n, factor);
    } else if (!is_null(matrix)) {
        multiply_heads(matrix, dim, n);
    }
}

void rotate_heads_back(uvec2 signs, uvec2 matrix, uint dim, uint n, float factor)
{
    if (!is_null(signs)) {
        transform_heads(dim, n, factor);
        multiply_by_signs(signs, dim, n);
    } else if (!is_null(matrix)) {
        multiply_heads(matrix, dim, n);
    }
}
