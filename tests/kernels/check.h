/* quern-check: compares every kernel variant with its reference, and measures its speed.
 *
 * The file of an operation iterates over the instruction sets that the CPU supports, generates shapes with a fixed seed
 * (tails, single elements, misaligned pointers, empty), poisons outputs and the bytes around them, and compares. The
 * references are compared with float64. */
#ifndef QN_CHECK_CHECK_H
#define QN_CHECK_CHECK_H

#include "base/cpu.h"
#include "base/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* QN_LENGTH - The number of elements of an array. */
#define QN_LENGTH(array) (sizeof(array) / sizeof *(array))

/* A failed allocation or device call of the checker itself is not a failed check: it ends the program with its error
 * text. */

/* qn_assert_ok - Ends the program unless the status is QN_OK. */
void qn_assert_ok(qn_status status);

/* qn_levels - Returns the levels of instruction sets that this CPU has, the reference first; the last one is followed
 * by one without a name. An operation compares a case for each level: the run counts the cases whose variant is a
 * level's name, and fails for a level without cases. */
const qn_cpu_level *qn_levels(void);

/* qn_is_reference - Returns whether a level is the first one, whose results are those that the others must have. */
bool qn_is_reference(const qn_cpu_level *level);

/* Random numbers: one generator, reseeded for each case, so that a failing case can be reproduced alone. */
void qn_random_seed(uint64_t seed);
uint64_t qn_random(void);
size_t qn_random_below(size_t n);
float qn_random_normal(void);

/* qn_random_floats - Fills x [n] with normally distributed values times `scale`. */
void qn_random_floats(float *x, size_t n, float scale);

/* qn_random_signs - Fills x [n] with 1 or -1. */
void qn_random_signs(float *x, size_t n);

/* qn_relative_error - Returns |found - expected| / |expected| of vectors (l2 norms); NaN if any element is NaN. */
double qn_relative_error(const float *found, const float *expected, size_t n);

/* qn_expect_close - Asserts that the relative error of n values is at most `bar`. */
void qn_expect_close(const char *what, const float *found, const float *expected, size_t n, double bar);

/* ---- Memory of a case (memory.c): all of it is freed by qn_release ---- */

/* qn_new - Allocates `count` zeroed objects of `size` bytes, aligned as by qn_alloc. */
void *qn_new(size_t count, size_t size);
float *qn_floats(size_t n);
double *qn_doubles(size_t n);

/* qn_floats_of - Returns n values of qn_random_floats. */
float *qn_floats_of(size_t n, float scale);

/* qn_signs_of - Returns n values of qn_random_signs. */
float *qn_signs_of(size_t n);

/* qn_text - Returns a formatted text, of a shape for one. */
const char *qn_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* qn_bytes_of - Returns the size of memory of qn_new and the functions after it. */
size_t qn_bytes_of(const void *memory);

/* qn_guarded - Allocates `bytes` bytes that begin `shift` bytes past a 64-byte boundary, filled with poison (all ones:
 * NaN as f32 and f16), with guard bytes on both sides. */
void *qn_guarded(size_t bytes, size_t shift);

/* qn_guarded_floats - Allocates n floats with guards at a random multiple of 4 bytes. */
float *qn_guarded_floats(size_t n);

/* qn_own - Registers another object: `release` frees it; `intact` returns whether the guards around its `bytes` bytes
 * are unchanged, NULL: it has none. */
void qn_own(void *object, size_t bytes, bool (*intact)(const void *object), void (*release)(void *object));

/* qn_expect_guards - Asserts for the current case that all guards are unchanged. */
void qn_expect_guards(void);

/* qn_release - Asserts that all guards are unchanged, and frees all memory. */
void qn_release(void);

/* qn_mark, qn_release_to - The same for what was allocated after the mark. */
size_t qn_mark(void);
void qn_release_to(size_t mark);

/* ---- Results ---- */

/* qn_case_selected - Returns whether the next case is to be run: every case, or with --every N every N-th. */
bool qn_case_selected(void);
/* qn_case_begin - Begins a case, named "op variant" and its shape; later results are counted for it. */
void qn_case_begin(const char *op, const char *variant, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* qn_expect - Asserts `ok` for the current case; the first failure of a case is printed with the case and counted. */
void qn_expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* qn_expect_same - Asserts that n floats have the same bits (+0 equals -0; NaN equals NaN of the same bits). */
void qn_expect_same(const float *found, const float *expected, size_t n, const char *what);
/* qn_expect_level - Keeps n floats in `expected` if the level is the reference; otherwise qn_expect_same. */
void qn_expect_level(const qn_cpu_level *level, const float *found, float *expected, size_t n, const char *what);
/* qn_expect_finite - Asserts that none of n floats is NaN, as poison is. */
void qn_expect_finite(const float *found, size_t n, const char *what);
/* qn_expect_near - Asserts |found - expected| <= bound[i] for all i. */
void qn_expect_near(const float *found, const double *expected, const double *bound, size_t n, const char *what);

/* ---- Speed ---- */

/* qn_median - Sorts the values in ascending order and returns the middle one. */
double qn_median(double *values, size_t n);

/* qn_bench - Times work(context), the median of several runs of at least 20 ms each, and prints a row. One call
 * processes `units` of `unit`. */
void qn_bench(const char *op, const char *variant, const char *shape, double units, const char *unit,
              void (*work)(void *context), void *context);

/* qn_report_ratio - Prints a row for a time measured by the caller: seconds, and its ratio to a reference time named
 * `of`. */
void qn_report_ratio(const char *op, const char *variant, const char *shape, double seconds, double ratio,
                     const char *of);

/* qn_bench_selected - Returns whether a shape is to be timed: every shape, or with --shape TEXT shapes whose name
 * contains TEXT. */
bool qn_bench_selected(const char *shape);

/* qn_report_rate - Prints a row for a time measured by the caller: seconds, rate in units per second, and the rate as a
 * fraction of `limit` unless that is 0. */
void qn_report_rate(const char *op, const char *variant, const char *shape, double seconds, double rate,
                    const char *unit, double limit);

/* ---- Backends that have kernels of their own (backends.c) ---- */

typedef struct qn_checked_operation {
    const char *name;
    void (*check)(bool bench);
} qn_checked_operation;

typedef struct qn_checked_backend {
    const char *name; /* of the backend's devices */
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
