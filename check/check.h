/* quern-check: every kernel variant against its reference, and its speed.
 *
 * An operation's file walks the instruction-set levels of this machine, draws shapes with a fixed seed (tails, single elements,
 * misaligned pointers, empty), poisons outputs and the bytes around them, and compares. The references themselves are held to
 * float64. */
#ifndef QN_CHECK_CHECK_H
#define QN_CHECK_CHECK_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the checker allocates or asks of a device fails for the machine's sake alone, and ends the program.
 *
 * qn_assert_ok - unless the status is QN_OK. qn_xcalloc - count zeroed objects of `size` bytes; free with free. */
void qn_assert_ok(qn_status status);
void *qn_xcalloc(size_t count, size_t size);

typedef struct qn_level {
    const char *name;
    unsigned features;
} qn_level;

/* qn_levels - what this machine can run, the reference first. */
size_t qn_levels(qn_level levels[8]);

/* Random numbers: one stream for the whole run, reseeded for each case so that a failure repeats alone. */
void qn_random_seed(uint64_t seed);
uint64_t qn_random(void);
size_t qn_random_below(size_t n);
float qn_random_normal(void);
void qn_random_floats(float *x, size_t n, float scale);

/* qn_relative_error - |found - expected| / |expected|; NaN where anything is. */
double qn_relative_error(const float *found, const float *expected, size_t n);

/* ---- Memory with guards ---- */

/* `bytes` bytes that begin `shift` bytes past a 64-byte boundary, filled with poison (a NaN in every float and half), with
 * guards on both sides. Ends the program when memory is short: the checker has nothing to clean up. */
typedef struct qn_guarded {
    uint8_t *data, *block;
    size_t bytes, shift;
} qn_guarded;

qn_guarded qn_guarded_new(size_t bytes, size_t shift);
/* qn_guarded_ok - whether the guards are as they were. */
bool qn_guarded_ok(const qn_guarded *g);
void qn_guarded_free(qn_guarded *g);

/* ---- Results ---- */

/* qn_case_selected - whether a case that is about to be drawn is to be run: each one, or with --every N each N-th. */
bool qn_case_selected(void);
/* qn_case_begin - the case that follows, as "op variant" and its shape; results are counted for it. */
void qn_case_begin(const char *op, const char *variant, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* qn_expect - one statement about the case; a failure is printed with the case and counted. */
void qn_expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* qn_expect_same - n floats bit for bit (NaN equals NaN of the same bits; +0 equals -0). */
void qn_expect_same(const float *found, const float *expected, size_t n, const char *what);
/* qn_expect_near - |found - expected| <= bound[i] for all i. */
void qn_expect_near(const float *found, const double *expected, const double *bound, size_t n, const char *what);

/* ---- Speed ---- */

/* qn_bench - time work(context) (median of several runs of at least 20 ms each) and print a row: `units` of `unit` are done in
 * one call. */
void qn_bench(const char *op, const char *variant, const char *shape, double units, const char *unit,
              void (*work)(void *context), void *context);

/* qn_report_ratio - print a row about a time measured otherwise: seconds, and how many `of` that is. */
void qn_report_ratio(const char *op, const char *variant, const char *shape, double seconds, double ratio, const char *of);

/* qn_report_rate - print a row about a time measured otherwise: seconds, units a second, and where `limit` is not 0 the share
 * of it that they are. */
void qn_report_rate(const char *op, const char *variant, const char *shape, double seconds, double rate, const char *unit,
                    double limit);

/* ---- Operations: check, then with `bench` time ---- */

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
void qn_check_sample(bool bench);
void qn_check_deltanet(bool bench);
void qn_check_aura(bool bench);

#endif
