/* quern/cuda.h on the fake driver: handles with built-in code, contexts, addresses, and assertions on launches and
 * refusals. */
#ifndef QN_TESTS_HELPER_CUDA_API_H
#define QN_TESTS_HELPER_CUDA_API_H

#include "helper_cuda.h"

#include "cuda/api/api.h"

static qn_gpu_code fake_code = { .compiler = "nvcc of the test" };
static const qn_cuda_tools fake_tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &fake_code };
static char fake_contexts[] = "aab"; /* two of the first device, one of the second */

static inline qn_cu_context context(size_t i)
{
    return (qn_cu_context)(void *)&fake_contexts[i];
}

static qn_cuda_kernels *kernels; /* of the current test */

static inline int close_kernels(void)
{
    qn_cuda_kernels_close(kernels);
    return 0;
}

/* A handle with these cubins; the first context is current. */
static inline void open_fake_kernels(const qn_gpu_cubin *cubins, size_t n)
{
    fake_code.cubins = cubins;
    fake_code.n_cubins = n;
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    assert_ok(qn_cuda_kernels_open_with(&kernels, 0, driver, &fake_tools));
    fake.current = context(0);
}

static inline void *address(size_t at)
{
    return (void *)(uintptr_t)at;
}

/* Launch i of the last n. */
static inline const struct fake_launch *launched(int i, int n)
{
    assert_in_range(n, i + 1, fake.launches < FAKE_LAUNCHES ? fake.launches : FAKE_LAUNCHES);
    return &fake.log[(fake.launches - n + i) % FAKE_LAUNCHES];
}

static inline const void *arguments(int i, int n)
{
    return launched(i, n)->args;
}

/* The same, of a launch of this function. */
static inline const void *arguments_of(const char *function, int i, int n)
{
    assert_string_equal(launched(i, n)->function, function);
    return arguments(i, n);
}

/* Asserts what launch i of the last n is. Returns its arguments. */
static inline const void *expect_launch(int i, int n, const char *function, unsigned x, unsigned y, bool pdl)
{
    const struct fake_launch *l = launched(i, n);
    assert_string_equal(l->function, function);
    assert_int_equal(l->grid[0], x);
    assert_int_equal(l->grid[1], y);
    assert_int_equal(l->pdl, pdl);
    return l->args;
}

/* Asserts that a call failed with this text, and that no kernel was launched since `launches` were. */
static inline void expect_refusal(qn_status status, const char *text, int launches)
{
    assert_int_not_equal(status, QN_OK);
    assert_text(text);
    assert_int_equal(fake.launches, launches);
}

#define refused(call, text)                                                                                            \
    do {                                                                                                               \
        const int launches_before = fake.launches;                                                                     \
        label("%s: expected '%s'", #call, text);                                                                       \
        expect_refusal(call, text, launches_before);                                                                   \
    } while (0)

/* A call with one change of its valid arguments is refused: refused_with(rope, call_of(), n_heads = 0,
 * "n_heads: 0"). */
#define refused_with(function, valid, change, text)                                                                    \
    do {                                                                                                               \
        __typeof__(valid) call = valid;                                                                                \
        const int launches_before = fake.launches;                                                                     \
        call.change;                                                                                                   \
        label("%s with %s: expected '%s'", #function, #change, text);                                                  \
        expect_refusal(function(&call), text, launches_before);                                                        \
    } while (0)

#endif
