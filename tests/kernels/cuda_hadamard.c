/* Walsh-Hadamard transforms on the GPU: bit for bit the CPU's reference, for every block size, with and without signs,
 * in place and out of place. */
#include "cuda.h"

#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/hadamard/hadamard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_BYTES = 256 << 20 };

static void run(const qn_hadamard_gpu *plan)
{
    qn_gpu_launch(&plan->tiles, &plan->tiles_args);
    if (plan->has_cross)
        qn_gpu_launch(&plan->cross, &plan->cross_args);
}

static float *floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x) {
        fprintf(stderr, "quern-check: no memory for %zu floats\n", n);
        exit(1);
    }
    return x;
}

static float *random_signs(size_t n)
{
    float *signs = floats(n);
    for (size_t i = 0; i < n; i++)
        signs[i] = qn_random() & 1 ? 1 : -1;
    return signs;
}

struct shape {
    size_t n, n_blocks, sign_blocks;
    bool before, after, in_place;
};

static void check_shape(const qn_hadamard_kernels *reference, const struct shape *s)
{
    const size_t n_values = s->n * s->n_blocks, n_signs = s->n * s->sign_blocks;
    float *x = floats(n_values), *found = floats(n_values);
    float *signs[2] = { random_signs(n_signs), random_signs(n_signs) };
    qn_random_floats(x, n_values, 3);
    qn_gpu_guarded from = qn_gpu_from(x, n_values * sizeof *x), to = qn_gpu_new(n_values * sizeof *x);
    qn_gpu_guarded before = qn_gpu_from(signs[0], n_signs * sizeof *x),
                   after = qn_gpu_from(signs[1], n_signs * sizeof *x);
    const qn_gpu_guarded *y = s->in_place ? &from : &to;
    qn_hadamard_gpu plan;
    qn_case_begin("hadamard", "cuda", "%zu blocks of %zu%s%s%s, signs repeat after %zu", s->n_blocks, s->n,
                  s->before ? ", signs before" : "", s->after ? ", signs after" : "", s->in_place ? ", in place" : "",
                  n_signs);
    const qn_status status = qn_hadamard_gpu_plan(y->data, from.data, s->before ? before.data : 0,
                                                  s->after ? after.data : 0, n_signs, s->n, n_values, &plan);
    qn_expect(status == QN_OK, "%s", qn_error_text());
    if (!status) {
        run(&plan);
        qn_gpu_read(y, found);
        for (size_t b = 0; b < s->n_blocks; b++) {
            const size_t sign = b % s->sign_blocks * s->n;
            reference->block(x + b * s->n, s->n, s->before ? signs[0] + sign : NULL, s->after ? signs[1] + sign : NULL);
        }
        qn_expect_same(found, x, n_values, "value");
        qn_expect(qn_gpu_guards_intact(&from) && qn_gpu_guards_intact(&to), "bytes outside the blocks were written");
    }
    qn_gpu_free(&from);
    qn_gpu_free(&to);
    qn_gpu_free(&before);
    qn_gpu_free(&after);
    free(x);
    free(found);
    free(signs[0]);
    free(signs[1]);
}

struct timed {
    qn_hadamard_gpu *plans;
};

static void timed_copy(void *context, size_t copy)
{
    const struct timed *t = context;
    run(&t->plans[copy]);
}

static void bench_blocks(size_t n, size_t bytes, bool pdl)
{
    const size_t n_copies = qn_gpu_bench_copies(2 * bytes);
    qn_gpu_guarded memory = qn_gpu_new(2 * bytes * n_copies);
    qn_hadamard_gpu *plans = malloc(n_copies * sizeof *plans);
    char shape[64];
    bool ok = plans != NULL;
    for (size_t i = 0; ok && i < n_copies; i++) {
        const uint64_t x = memory.data + 2 * i * bytes;
        ok = qn_hadamard_gpu_plan(x + bytes, x, 0, 0, n, n, bytes / sizeof(float), &plans[i]) == QN_OK;
        plans[i].tiles.pdl = plans[i].cross.pdl = pdl;
    }
    snprintf(shape, sizeof shape, "%zu KiB in blocks of %zu%s", bytes >> 10, n, pdl ? ", overlapped" : "");
    if (ok) {
        qn_cuda_memset(qn_gpu(), qn_gpu_stream(), memory.data, 0x3c, memory.bytes); /* small floats, no NaN */
        qn_gpu_bench("hadamard", "cuda", shape, 2.0 * (double)bytes, "B", qn_gpu_read_rate(), timed_copy,
                     &(struct timed){ plans }, n_copies);
    }
    qn_expect(ok, "%s", qn_error_text());
    free(plans);
    qn_gpu_free(&memory);
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
