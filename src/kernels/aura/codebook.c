/* The Lloyd-Max quantiser of one coordinate of a uniform unit vector in R^D. The coordinate's density is proportional
 * to (1 - x^2)^((D-3)/2).
 *
 * The quantiser is antisymmetric, so only centroids above 0 are computed: c_1 < ... < c_n, each the mean of the density
 * between the midpoints to its neighbours. Lloyd's iteration, which sets each centroid to that mean, converges quickly
 * at first and then slowly: with 8 bits, when a step is 1e-6, tens of thousands of steps remain. Newton's method on
 * "centroid minus mean", whose Jacobian is tridiagonal, needs a few. All arithmetic is double with +, -, *, / and
 * square roots only, so that all machines compute the same codebook. */
#include "kernels/aura/aura.h"

#include "base/status.h"

#include <math.h>

enum { MAX_POSITIVE_LEVELS = QN_AURA_MAX_LEVELS / 2, LLOYD_STEPS = 20, NEWTON_STEPS = 60, NODES = 8 };

/* Positive half of the Gauss-Legendre nodes and weights of order 16 on [-1, 1]: exact for polynomials to degree 31
 * (Abramowitz and Stegun, table 25.4). */
static const double gauss_x[NODES] = { 0.0950125098376374402, 0.2816035507792589132, 0.4580167776572273863,
                                       0.6178762444026437484, 0.7554044083550030339, 0.8656312023878317439,
                                       0.9445750230732325761, 0.9894009349916499326 };
static const double gauss_w[NODES] = { 0.1894506104550684963, 0.1826034150449235889, 0.1691565193950025382,
                                       0.1495959888165767321, 0.1246289712555338720, 0.0951585116824927848,
                                       0.0622535239386478929, 0.0271524594117540949 };

/* Returns (1 - x^2)^((dim-3)/2), dim even: an integer power times a square root. */
static double density(double x, size_t dim)
{
    const double t = 1 - x * x;
    double base = t, power = 1;
    if (t <= 0)
        return 0;
    for (size_t n = (dim - 4) / 2; n; n /= 2) {
        if (n % 2)
            power *= base;
        base *= base;
    }
    return power * sqrt(t);
}

/* Returns the mass of the density in [from, to], and its mean in *mean. Panels are half a standard deviation wide.
 * Integration stops 14 standard deviations after `from`, where the density is below 1e-42 of its peak. */
static double cell(double from, double to, size_t dim, double *mean)
{
    const double sigma = 1 / sqrt((double)dim), end = to < from + 14 * sigma ? to : from + 14 * sigma;
    const size_t panels = (size_t)((end - from) / (sigma / 2)) + 1;
    const double half = (end - from) / (double)panels / 2;
    double mass = 0, moment = 0; /* moment about `from`: less cancellation than about 0 */
    for (size_t p = 0; p < panels; p++) {
        const double middle = from + (2 * (double)p + 1) * half;
        for (int i = 0; i < NODES; i++) {
            const double low = middle - gauss_x[i] * half, high = middle + gauss_x[i] * half;
            const double f_low = gauss_w[i] * density(low, dim), f_high = gauss_w[i] * density(high, dim);
            mass += f_low + f_high;
            moment += f_low * (low - from) + f_high * (high - from);
        }
    }
    *mean = from + moment / mass;
    return mass * half;
}

/* Returns edge i of the cells: 0, the midpoints between centroids, 1. */
static double cell_edge(const double *c, size_t n, size_t i)
{
    return i == 0 ? 0 : i == n ? 1 : (c[i - 1] + c[i]) / 2;
}

static double largest_residual(const double *c, size_t n, size_t dim, double *mass, double *mean)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        mass[i] = cell(cell_edge(c, n, i), cell_edge(c, n, i + 1), dim, &mean[i]);
        const double residual = fabs(c[i] - mean[i]);
        largest = residual > largest ? residual : largest;
    }
    return largest;
}

/* Computes the Newton step: solves J step = mean - c, J tridiagonal, by elimination from the first row down. */
static void newton_step(const double *c, size_t n, size_t dim, const double *mass, const double *mean, double *step)
{
    double above[MAX_POSITIVE_LEVELS];
    for (size_t i = 0; i < n; i++) {
        const double low = cell_edge(c, n, i), high = cell_edge(c, n, i + 1);
        const double by_low = i ? density(low, dim) * (mean[i] - low) / mass[i] / 2 : 0;
        const double by_high = i + 1 < n ? density(high, dim) * (high - mean[i]) / mass[i] / 2 : 0;
        double diagonal = 1 - by_low - by_high, right = mean[i] - c[i];
        if (i) {
            diagonal += by_low * above[i - 1];
            right += by_low * step[i - 1];
        }
        above[i] = -by_high / diagonal;
        step[i] = right / diagonal;
    }
    for (size_t i = n - 1; i-- > 0;)
        step[i] -= above[i] * step[i + 1];
}

static bool is_increasing(const double *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(c[i] > (i ? c[i - 1] : 0) && c[i] < 1))
            return false;
    return true;
}

/* Sets c to c + factor * step. The factor is halved until the centroids are ascending and the residual does not
 * grow. */
static double damped_newton_step(double *c, size_t n, size_t dim, const double *step, double residual, double *mass,
                                 double *mean)
{
    for (double factor = 1; factor > 1e-6; factor /= 2) {
        double next[MAX_POSITIVE_LEVELS];
        for (size_t i = 0; i < n; i++)
            next[i] = c[i] + factor * step[i];
        if (!is_increasing(next, n))
            continue;
        const double next_residual = largest_residual(next, n, dim, mass, mean);
        if (next_residual < residual || next_residual < 1e-14) {
            for (size_t i = 0; i < n; i++)
                c[i] = next[i];
            return next_residual;
        }
    }
    return residual;
}

qn_status qn_aura_lloyd_max(size_t dim, unsigned bits, float *boundaries, float *codebook)
{
    const size_t n = (size_t)1 << (bits - 1);
    double c[MAX_POSITIVE_LEVELS], mass[MAX_POSITIVE_LEVELS], mean[MAX_POSITIVE_LEVELS], step[MAX_POSITIVE_LEVELS];
    /* Start: even spacing over the range of 2^bits levels, which grows with the bits. */
    for (size_t i = 0; i < n; i++)
        c[i] = ((double)i + 0.5) / (double)n * (1 + 0.5 * bits) / sqrt((double)dim);
    double residual = largest_residual(c, n, dim, mass, mean);
    for (int i = 0; i < LLOYD_STEPS; i++) {
        for (size_t j = 0; j < n; j++)
            c[j] = mean[j];
        residual = largest_residual(c, n, dim, mass, mean);
    }
    for (int i = 0; i < NEWTON_STEPS && residual > 1e-14; i++) {
        newton_step(c, n, dim, mass, mean, step);
        const double before = residual;
        residual = damped_newton_step(c, n, dim, step, residual, mass, mean);
        if (!(residual < before)) { /* at double precision, or stuck: the check below tells which */
            (void)largest_residual(c, n, dim, mass, mean);
            break;
        }
    }
    /* The error is the residual times the norm of the inverse Jacobian, which is up to 1e4 for 256 levels. */
    if (!(residual < 1e-11))
        return qn_fail(QN_ERR_UNSUPPORTED, "codebook of %u bits for %zu dimensions: off by %g, expected below 1e-11",
                       bits, dim, residual);
    for (size_t i = 0; i < n; i++) {
        codebook[n + i] = (float)c[i];
        codebook[n - 1 - i] = -(float)c[i];
        boundaries[n - 1 + i] = (float)cell_edge(c, n, i);
        boundaries[n - 1 - i] = 0 - boundaries[n - 1 + i]; /* +0 in the middle, not -0 */
    }
    return QN_OK;
}
