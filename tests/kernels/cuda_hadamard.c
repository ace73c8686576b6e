/* Walsh-Hadamard transforms on the GPU: bit for bit the CPU's reference, for every block size, with and without signs,
 * in place and out of place. */
#include "cuda.h"

#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/hadamard/hadamard.h"

enum { BENCH_BYTES = 256 << 20 };

static void run(const qn_hadamard_gpu *plan)
{
    qn_gpu_launch(&plan->tiles, &plan->tiles_args);
    if (plan->has_cross)
        qn_gpu_launch(&plan->cross, &plan->cross_args);
}

struct shape {
    size_t n, n_blocks, sign_blocks;
    bool before, after, in_place;
};

static void check_shape(const qn_hadamard_kernels *reference, const struct shape *s)
{
    const size_t n_values = s->n * s->n_blocks, n_signs = s->n * s->sign_blocks;
    const float *signs[2] = { qn_signs_of(n_signs), qn_signs_of(n_signs) };
    float *x = qn_floats_of(n_values, 3);
    const uint64_t from = qn_gpu_copy(x), y = s->in_place ? from : qn_gpu_floats(n_values);
    qn_hadamard_gpu plan;
    qn_case_begin("hadamard", "cuda", "%zu blocks of %zu%s%s%s, signs repeat after %zu", s->n_blocks, s->n,
                  s->before ? ", signs before" : "", s->after ? ", signs after" : "", s->in_place ? ", in place" : "",
                  n_signs);
    qn_assert_ok(qn_hadamard_gpu_plan(y, from, s->before ? qn_gpu_copy(signs[0]) : 0,
                                      s->after ? qn_gpu_copy(signs[1]) : 0, n_signs, s->n, n_values, &plan));
    run(&plan);
    for (size_t b = 0; b < s->n_blocks; b++) {
        const size_t sign = b % s->sign_blocks * s->n;
        reference->block(x + b * s->n, s->n, s->before ? signs[0] + sign : NULL, s->after ? signs[1] + sign : NULL);
    }
    qn_expect_same(qn_gpu_read(y), x, n_values, "value");
    qn_release();
}

static void run_plan(void *context, size_t copy)
{
    run(&((const qn_hadamard_gpu *)context)[copy]);
}

static void bench_blocks(size_t n, size_t bytes, bool pdl)
{
    const size_t n_copies = qn_gpu_bench_copies(2 * bytes);
    const uint64_t memory = qn_gpu_new(2 * bytes * n_copies);
    qn_hadamard_gpu *plans = qn_new(n_copies, sizeof *plans);
    for (size_t i = 0; i < n_copies; i++) {
        const uint64_t x = memory + 2 * i * bytes;
        qn_assert_ok(qn_hadamard_gpu_plan(x + bytes, x, 0, 0, n, n, bytes / sizeof(float), &plans[i]));
        plans[i].tiles.pdl = plans[i].cross.pdl = pdl;
    }
    qn_gpu_fill(memory, 0x3c); /* small floats, no NaN */
    qn_gpu_bench("hadamard", "cuda", qn_text("%zu KiB in blocks of %zu%s", bytes >> 10, n, pdl ? ", overlapped" : ""),
                 2.0 * (double)bytes, "B", qn_gpu_read_rate(), run_plan, plans, n_copies);
    qn_release();
}

void qn_check_cuda_hadamard(bool bench)
{
    qn_hadamard_kernels reference;
    qn_hadamard_init_ref(&reference);
    for (size_t n = 1; n <= QN_HADAMARD_MAX_BLOCK; n *= 2)
        for (unsigned with = 0; with < 8; with++) {
            qn_random_seed(n * 8 + with);
            /* One block, a few blocks that do not fill a tile, and more than a tile. Signs repeat after 1 to 5
             * blocks. */
            const size_t counts[] = { 1, 3, n < 4096 ? 3 * 4096 / n + 1 : 2 };
            for (size_t i = 0; i < 3; i++)
                check_shape(&reference,
                            &(struct shape){ n, counts[i], 1 + qn_random_below(5), with & 1, with & 2, with & 4 });
        }
    if (!bench)
        return;
    bench_blocks(1024, 5120 * sizeof(float), false);
    bench_blocks(1024, 5120 * sizeof(float), true);
    bench_blocks(1024, 512 * 5120 * sizeof(float), false);
    for (size_t n = 128; n <= 65536; n *= 8)
        bench_blocks(n, BENCH_BYTES, false);
}
