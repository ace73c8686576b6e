/* Fused multiply-add with one rounding. fmaf of some C libraries, mingw-w64's among them, rounds twice; and a call of
 * the library for each multiplication is slow where the compiler does not know that the processor has the instruction.
 */
#ifndef QN_BASE_FMAF_H
#define QN_BASE_FMAF_H

#include <stdint.h>
#include <string.h>

/* qn_fmaf_portable - a * b + c, rounded once to nearest even, without an instruction for it. The product of two floats
 * is exact in double. The sum is rounded to odd there: the last bit of an inexact sum becomes 1. double has more than
 * two bits more than float, so that rounding it once more gives the float nearest to the exact sum. */
static inline float qn_fmaf_portable(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = c;
    double sum = product + addend;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part); /* 2Sum: product + addend = sum + error */
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    /* The exact sum is between two doubles, and `sum` is the even one: the odd one is on the other side of the error.
     * NaN and infinity compare false. */
    if ((error < 0 || error > 0) && !(bits & 1)) {
        bits += (error > 0) == (sum > 0) ? 1 : -(uint64_t)1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}

/* qn_fmaf - the same, by the instruction where this file is compiled for processors that have it. */
static inline float qn_fmaf(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    return qn_fmaf_portable(a, b, c);
#endif
}

#endif
