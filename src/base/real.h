/* Functions of real numbers whose results decide bits of logits or of files. Those of C libraries differ in the last
 * bit from library to library and from version to version; these use additions, multiplications and divisions of IEEE
 * 754 alone, so that every system computes the same. The error is below 0.51 units of the last place for exp, log and
 * pow, below 0.8 for sin, cos and log1p. Any thread. */
#ifndef QN_BASE_REAL_H
#define QN_BASE_REAL_H

double qn_real_exp(double x);

/* qn_real_log - the natural logarithm; minus infinity of 0, NaN below. */
double qn_real_log(double x);

/* qn_real_log1p - log(1 + x) for x > -1, exact for a small x, too. */
double qn_real_log1p(double x);

/* qn_real_pow - x to the power of y, for x >= 0; NaN below. */
double qn_real_pow(double x, double y);

/* qn_real_sin, qn_real_cos - of an angle in radians. Beyond 2^40 the angle itself has no meaning: the result is in [-1,
 * 1] and the same everywhere. */
double qn_real_sin(double x);
double qn_real_cos(double x);

#endif
