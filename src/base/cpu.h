/* CPU features, the limit set by QN_CPU, and the number of cores. Any thread may call these functions. */
#ifndef QN_BASE_CPU_H
#define QN_BASE_CPU_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#if defined(__x86_64__)
#define QN_X86 1
#elif defined(__aarch64__)
#define QN_ARM64 1
#endif

/* Instruction sets of kernel variants, as a bit mask. QN_CPU_AVXVNNI and QN_CPU_AVX512 imply QN_CPU_AVX2. */
enum {
    QN_CPU_AVX2 = 1 << 0,    /* AVX2, FMA, F16C */
    QN_CPU_AVXVNNI = 1 << 1, /* AVX-VNNI: dpbusd on 256 bits */
    QN_CPU_AVX512 = 1 << 2,  /* F, BW, DQ, VL, VNNI, VBMI, GFNI: Ice Lake, Zen 4 and later */
    QN_CPU_NEON = 1 << 3,    /* ARMv8.0 */
    QN_CPU_DOTPROD = 1 << 4, /* ARMv8.2 dot products */
    QN_CPU_AMX = 1 << 5,     /* AMX: tiles of int8 and bf16, and the kernel's permission; implies AVX-512 */
    QN_CPU_I8MM = 1 << 6     /* ARMv8.6 int8 matrix multiplication; implies QN_CPU_DOTPROD */
};

/* A level: the features that QN_CPU and the checks of kernels name together. */
typedef struct qn_cpu_level {
    const char *name;
    unsigned features;
} qn_cpu_level;

enum { QN_CPU_MAX_LEVELS = 8 };

/* The levels of this architecture, the reference first. The best level of a CPU is the last one that it has. */
extern const qn_cpu_level qn_cpu_levels[];
extern const size_t qn_cpu_n_levels;

/* qn_cpu_has_level - whether the CPU has all features of a level, regardless of QN_CPU. */
bool qn_cpu_has_level(const qn_cpu_level *level);

/* qn_cpu_present - the features of the CPU, regardless of QN_CPU. Requests the permission for AMX's registers: with it,
 * the kernel refuses signal stacks that are smaller than AT_MINSIGSTKSZ (about 11 KB). */
unsigned qn_cpu_present(void);

/* qn_cpu_features - the features to use: qn_cpu_present, or if the environment variable QN_CPU is set, those of the
 * level that it names. For a level that the CPU has and the kernel refuses (AMX, base/tile_permission.h), those of the
 * level below it.
 * QN_ERR_INVALID for an unknown level, QN_ERR_UNSUPPORTED for one that the CPU lacks. */
qn_status qn_cpu_features(unsigned *features);

/* qn_cpu_notice - returns a sentence for the user if QN_CPU names a level that the kernel refuses, else NULL. */
const char *qn_cpu_notice(void);

/* qn_cpu_name - the name of the highest level in a mask of features: "avx512", or "ref" for none. */
const char *qn_cpu_name(unsigned features);

/* qn_cpu_cores - the number of physical cores that this process may run on, at least 1. */
int qn_cpu_cores(void);

/* qn_cpu_threads - the number of hardware threads that this process may run on, at least 1. */
int qn_cpu_threads(void);

/* qn_cpu_quota - returns how many seconds of processor time the process's control groups (v1 and v2) allow in a second
 * of time; 0 without such a limit. qn_cpu_quota_in reads the system's files below `root`. */
double qn_cpu_quota(void);
double qn_cpu_quota_in(const char *root);

/* qn_cpu_best_threads - returns how many threads compute fastest: one for each core, except cores that are too slow to
 * help (qn_useful_cores of base/topology.h); or, under a smaller quota, one for each processor that the quota pays for,
 * rounded, at least 1. With more, all of them would be stopped for a part of each period. qn_cpu_best_threads_in reads
 * the system's files below `root`. */
int qn_cpu_best_threads(void);
int qn_cpu_best_threads_in(const char *root);

#endif
