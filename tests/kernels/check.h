/* quern-check: compares every kernel variant with its reference, and measures its speed.
 *
 * The file of an operation iterates over the instruction sets that the CPU supports, generates shapes with a fixed seed
 * (tails, single elements, misaligned pointers, empty), poisons outputs and the bytes around them, and compares. The
 * references are compared with float64. */
#ifndef QN_CHECK_CHECK_H
#define QN_CHECK_CHECK_H

#include "base/cpu.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A failed allocation or device call of the checker itself is no result of a check: it ends the program with its error
 * text.
 *
 * qn_assert_ok - end the program unless the status is QN_OK.
 * qn_xcalloc - count zeroed objects of `size` bytes; release with free. */
void qn_assert_ok(qn_status status);
void *qn_xcalloc(size_t count, size_t size);

/* qn_levels - the levels of instruction sets that this CPU has, the reference first; returns their number. An operation
 * compares a case for each of them: the run counts the cases whose variant is a level's name, and fails for a level
 * with none. */
size_t qn_levels(qn_cpu_level levels[QN_CPU_MAX_LEVELS]);

/* Random numbers: one generator, reseeded for each case, so that a failing case can be reproduced alone.
 * qn_random_floats: normally distributed, times scale; qn_floats_of: n of them, which the caller frees. */
void qn_random_seed(uint64_t seed);
uint64_t qn_random(void);
size_t qn_random_below(size_t n);
float qn_random_normal(void);
void qn_random_floats(float *x, size_t n, float scale);
float *qn_floats_of(size_t n, float scale);

/* qn_relative_error - |found - expected| / |expected| of vectors (l2 norms); NaN if any element is NaN. */
double qn_relative_error(const float *found, const float *expected, size_t n);

/* ---- Memory with guards ---- */

/* `bytes` bytes that begin `shift` bytes past a 64-byte boundary, filled with poison (all ones: NaN as f32 and f16),
 * with guard bytes on both sides. */
typedef struct qn_guarded {
    uint8_t *data, *block;
    size_t bytes, shift;
} qn_guarded;

/* qn_guarded_new - ends the program if there is not enough memory. */
qn_guarded qn_guarded_new(size_t bytes, size_t shift);
/* qn_guarded_ok - true if the guards are unchanged. */
bool qn_guarded_ok(const qn_guarded *g);
void qn_guarded_free(qn_guarded *g);

/* ---- Results ---- */

/* qn_case_selected - true if the next case is to be run: every case, or with --every N every N-th. */
bool qn_case_selected(void);
/* qn_case_begin - begin a case, named "op variant" and its shape; following results are counted for it. */
void qn_case_begin(const char *op, const char *variant, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* qn_expect - one assertion about the case; the first failure of a case is printed with the case and counted. */
void qn_expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* qn_expect_same - n floats must have the same bits (+0 equals -0; NaN equals NaN of the same bits). */
void qn_expect_same(const float *found, const float *expected, size_t n, const char *what);
/* qn_expect_near - |found - expected| <= bound[i] for all i. */
void qn_expect_near(const float *found, const double *expected, const double *bound, size_t n, const char *what);

/* ---- Speed ---- */

/* qn_median - sort the values in ascending order and return the middle one. */
double qn_median(double *values, size_t n);

/* qn_bench - time work(context), the median of several runs of at least 20 ms each, and print a row. One call processes
 * `units` of `unit`. */
void qn_bench(const char *op, const char *variant, const char *shape, double units, const char *unit,
              void (*work)(void *context), void *context);

/* qn_report_ratio - print a row for a time measured by the caller: seconds, and its ratio to a reference time named
 * `of`. */
void qn_report_ratio(const char *op, const char *variant, const char *shape, double seconds, double ratio,
                     const char *of);

/* qn_bench_selected - whether a shape is to be timed: every one, or with --shape TEXT those whose name contains it. */
bool qn_bench_selected(const char *shape);

/* qn_report_rate - print a row for a time measured by the caller: seconds, rate in units per second, and the rate as a
 * fraction of `limit` unless that is 0. */
void qn_report_rate(const char *op, const char *variant, const char *shape, double seconds, double rate,
                    const char *unit, double limit);

/* ---- Backends that have kernels of their own (backends.c) ---- */

typedef struct qn_checked_operation {
    const char *name;
    void (*check)(bool bench);
} qn_checked_operation;

typedef struct qn_checked_backend {
    const char *name; /* of its devices */
    /* Opens a device for this run; false, with one line on standard error, if it is not available. `close` ends the
     * run. */
    bool (*open)(int ordinal);
    void (*close)(void);
    const qn_checked_operation *operations;
    size_t n_operations;
} qn_checked_backend;

extern const qn_checked_backend *const qn_checked_backends[]; /* NULL after the last */

/* ---- Operations of the CPU: check, then with `bench` time ---- */

void qn_check_peak(bool bench);
void qn_check_barrier(bool bench);
void qn_check_matmul(bool bench);
void qn_check_packed(bool bench);
void qn_check_quantize(bool bench);
void qn_check_norm(bool bench);
void qn_check_rope(bool bench);
void qn_check_attention(bool bench);
void qn_check_elementwise(bool bench);
void qn_check_hadamard(bool bench);
void qn_check_encode(bool bench);
void qn_check_sample(bool bench);
void qn_check_deltanet(bool bench);
void qn_check_aura(bool bench);

#endif
