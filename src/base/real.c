/* The functions. Where one double is too short, a value is the sum of two (Dekker 1971): exact sums and products make
 * the second from the rounding error of the first. */
#include "base/real.h"

#include <math.h>
#include <stdbool.h>

typedef struct pair {
    double hi, lo; /* |lo| is at most about half a unit of the last place of hi */
} pair;

/* ---- Arithmetic ---- */

/* The sum and its error, for |a| >= |b|. */
static pair add_smaller(double a, double b)
{
    const double sum = a + b;
    return (pair){ sum, b - (sum - a) };
}

static pair add(double a, double b)
{
    const double sum = a + b, part = sum - a;
    return (pair){ sum, (a - (sum - part)) + (b - part) };
}

/* Halves of 26 bits. */
static pair split(double x)
{
    const double scaled = x * 134217729.0, hi = scaled - (scaled - x); /* 2^27 + 1 */
    return (pair){ hi, x - hi };
}

static pair multiply(double a, double b)
{
    const double product = a * b;
    const pair x = split(a), y = split(b);
    return (pair){ product, ((x.hi * y.hi - product) + x.hi * y.lo + x.lo * y.hi) + x.lo * y.lo };
}

static pair multiply_pairs(pair a, pair b)
{
    const pair product = multiply(a.hi, b.hi);
    return (pair){ product.hi, product.lo + (a.hi * b.lo + a.lo * b.hi) };
}

/* ---- Logarithm ---- */

static const pair ln2 = { 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56 };

/* log(x) = k ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), for x = 2^k m with m between the roots of 1/2 and 2: s^2 is at
 * most 0.0295. x is positive and finite. */
static pair log_pair(double x)
{
    static const pair third = { 0x1.5555555555555p-2, 0x1.5555555555555p-56 };
    int k;
    double m = frexp(x, &k);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2;
        k--;
    }
    const double f = m - 1;
    const pair below = add(m, 1);
    const double q = f / below.hi;
    const pair back = multiply(q, below.hi);
    const pair s = add_smaller(q, (((f - back.hi) - back.lo) - q * below.lo) / below.hi);
    const pair z = multiply_pairs(s, s);
    double rest = 1.0 / 27;
    for (int i = 25; i >= 5; i -= 2)
        rest = rest * z.hi + 1.0 / i;
    pair series = add_smaller(third.hi, z.hi * rest);
    series.lo += third.lo;
    const pair beyond = multiply_pairs(s, multiply_pairs(z, series));
    pair atanh = add_smaller(s.hi, beyond.hi);
    atanh.lo += s.lo + beyond.lo;
    pair shift = multiply(k, ln2.hi);
    shift.lo += k * ln2.lo;
    pair sum = add(shift.hi, 2 * atanh.hi);
    sum.lo += shift.lo + 2 * atanh.lo;
    return add_smaller(sum.hi, sum.lo);
}

double qn_real_log(double x)
{
    if (!(x > 0) || isinf(x))
        return x == 0 ? -INFINITY : x > 0 ? x : NAN;
    return log_pair(x).hi;
}

double qn_real_log1p(double x)
{
    if (!(x > -1) || isinf(x))
        return x == -1 ? -INFINITY : x > 0 ? x : NAN;
    const pair sum = add(1, x), log = log_pair(sum.hi);
    return log.hi + (log.lo + sum.lo / sum.hi);
}

/* ---- Exponential ---- */

/* 2^(i / 32) */
static const pair roots[32] = {
    { 0x1.0000000000000p+0, 0x0.0p+0 },
    { 0x1.059b0d3158574p+0, 0x1.d73e2a475b465p-55 },
    { 0x1.0b5586cf9890fp+0, 0x1.8a62e4adc610bp-54 },
    { 0x1.11301d0125b51p+0, -0x1.6c51039449b3ap-54 },
    { 0x1.172b83c7d517bp+0, -0x1.19041b9d78a76p-55 },
    { 0x1.1d4873168b9aap+0, 0x1.e016e00a2643cp-54 },
    { 0x1.2387a6e756238p+0, 0x1.9b07eb6c70573p-54 },
    { 0x1.29e9df51fdee1p+0, 0x1.612e8afad1255p-55 },
    { 0x1.306fe0a31b715p+0, 0x1.6f46ad23182e4p-55 },
    { 0x1.371a7373aa9cbp+0, -0x1.63aeabf42eae2p-54 },
    { 0x1.3dea64c123422p+0, 0x1.ada0911f09ebcp-55 },
    { 0x1.44e086061892dp+0, 0x1.89b7a04ef80d0p-59 },
    { 0x1.4bfdad5362a27p+0, 0x1.d4397afec42e2p-56 },
    { 0x1.5342b569d4f82p+0, -0x1.07abe1db13cadp-55 },
    { 0x1.5ab07dd485429p+0, 0x1.6324c054647adp-54 },
    { 0x1.6247eb03a5585p+0, -0x1.383c17e40b497p-54 },
    { 0x1.6a09e667f3bcdp+0, -0x1.bdd3413b26456p-54 },
    { 0x1.71f75e8ec5f74p+0, -0x1.16e4786887a99p-55 },
    { 0x1.7a11473eb0187p+0, -0x1.41577ee04992fp-55 },
    { 0x1.82589994cce13p+0, -0x1.d4c1dd41532d8p-54 },
    { 0x1.8ace5422aa0dbp+0, 0x1.6e9f156864b27p-54 },
    { 0x1.93737b0cdc5e5p+0, -0x1.75fc781b57ebcp-57 },
    { 0x1.9c49182a3f090p+0, 0x1.c7c46b071f2bep-56 },
    { 0x1.a5503b23e255dp+0, -0x1.d2f6edb8d41e1p-54 },
    { 0x1.ae89f995ad3adp+0, 0x1.7a1cd345dcc81p-54 },
    { 0x1.b7f76f2fb5e47p+0, -0x1.5584f7e54ac3bp-56 },
    { 0x1.c199bdd85529cp+0, 0x1.11065895048ddp-55 },
    { 0x1.cb720dcef9069p+0, 0x1.503cbd1e949dbp-56 },
    { 0x1.d5818dcfba487p+0, 0x1.2ed02d75b3707p-55 },
    { 0x1.dfc97337b9b5fp+0, -0x1.1a5cd4f184b5cp-54 },
    { 0x1.ea4afa2a490dap+0, -0x1.e9c23179c2893p-54 },
    { 0x1.f50765b6e4540p+0, 0x1.9d3e12dd8a18bp-54 },
};

/* e^x = 2^(n / 32) e^r, |r| <= ln 2 / 64. The first two parts of ln 2 / 32 have so few bits that their multiples are
 * exact. */
static double exp_of(pair x)
{
    static const double part[] = { 0x1.62e42fefa0000p-6, 0x1.cf79abc9e0000p-45, 0x1.d9cc01f97b57ap-84 };
    if (!(x.hi < 710))
        return x.hi >= 710 ? INFINITY : x.hi;
    if (x.hi < -746)
        return 0;
    const double n = floor(x.hi * 0x1.71547652b82fep+5 + 0.5);
    pair r = add(x.hi - n * part[0], -(n * part[1]));
    r.lo += x.lo - n * part[2];
    r = add_smaller(r.hi, r.lo);
    const double y = r.hi;
    const double beyond =
        y * y * (1.0 / 2 + y * (1.0 / 6 + y * (1.0 / 24 + y * (1.0 / 120 + y * (1.0 / 720 + y * (1.0 / 5040))))));
    const pair less1 = add_smaller(y, beyond + r.lo);
    const int index = (int)(n - 32 * floor(n / 32));
    const pair root = roots[index], product = multiply(root.hi, less1.hi);
    const pair sum = add_smaller(root.hi, product.hi);
    return ldexp(sum.hi + (sum.lo + (product.lo + root.hi * less1.lo + root.lo * (1 + less1.hi))), (int)floor(n / 32));
}

double qn_real_exp(double x)
{
    return exp_of((pair){ x, 0 });
}

double qn_real_pow(double x, double y)
{
    if (y == 0)
        return 1;
    if (!(x > 0) || isinf(x) || !isfinite(y))
        return x == 0 || isinf(x) ? ((x == 0) == (y > 0) ? 0 : INFINITY) : NAN;
    const pair log = log_pair(x);
    if (!(fabs(log.hi * y) < 1000))
        return log.hi * y > 0 ? INFINITY : 0;
    pair product = multiply(log.hi, y);
    product.lo += log.lo * y;
    return exp_of(add_smaller(product.hi, product.lo));
}

/* ---- Sine and cosine ---- */

/* x = n pi / 2 + r, |r| <= about pi / 4. Returns n modulo 4. */
static int reduce(double x, pair *r)
{
    static const double half_pi[] = { 0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110 };
    if (!(fabs(x) < 0x1p40))
        x = fmod(x, 4 * half_pi[0]);
    const double n = floor(x * 0x1.45f306dc9c883p-1 + 0.5);
    const pair first = multiply(n, half_pi[0]), second = multiply(n, half_pi[1]);
    const pair a = add(x, -first.hi), b = add(a.hi, -first.lo), c = add(b.hi, -second.hi);
    *r = add_smaller(c.hi, c.lo + (a.lo + b.lo - second.lo - n * half_pi[2]));
    return isfinite(x) ? (int)(n - 4 * floor(n / 4)) : 0;
}

static double sin_of(pair r)
{
    const double z = r.hi * r.hi;
    double rest = 1.0 / 355687428096000; /* 17! */
    rest = -1.0 / 1307674368000 + z * rest;
    rest = 1.0 / 6227020800 + z * rest;
    rest = -1.0 / 39916800 + z * rest;
    rest = 1.0 / 362880 + z * rest;
    rest = -1.0 / 5040 + z * rest;
    rest = 1.0 / 120 + z * rest;
    rest = -1.0 / 6 + z * rest;
    return r.hi + (r.hi * z * rest + r.lo * (1 - z / 2));
}

static double cos_of(pair r)
{
    const double z = r.hi * r.hi, half = z / 2, top = 1 - half;
    double rest = -1.0 / 6402373705728000; /* 18! */
    rest = 1.0 / 20922789888000 + z * rest;
    rest = -1.0 / 87178291200 + z * rest;
    rest = 1.0 / 479001600 + z * rest;
    rest = -1.0 / 3628800 + z * rest;
    rest = 1.0 / 40320 + z * rest;
    rest = -1.0 / 720 + z * rest;
    rest = 1.0 / 24 + z * rest;
    return top + (((1 - top) - half) + (z * z * rest - r.hi * r.lo));
}

static double of_quadrant(int quadrant, pair r)
{
    const double value = quadrant & 1 ? cos_of(r) : sin_of(r);
    return quadrant & 2 ? -value : value;
}

double qn_real_sin(double x)
{
    pair r;
    const int quadrant = reduce(x, &r);
    return x == 0 ? x : of_quadrant(quadrant, r);
}

double qn_real_cos(double x)
{
    pair r;
    const int quadrant = reduce(x, &r);
    return of_quadrant((quadrant + 1) & 3, r);
}
