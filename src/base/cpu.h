/* What this processor can do, and how many cores there are to do it with. */
#ifndef QN_BASE_CPU_H
#define QN_BASE_CPU_H

#include "base/status.h"

#if defined(__x86_64__)
#define QN_X86 1
#elif defined(__aarch64__)
#define QN_ARM64 1
#endif

/* Instruction sets that kernels come in, as a bit mask. Each x86 level includes those before it. */
enum {
    QN_CPU_AVX2 = 1 << 0,    /* AVX2, FMA, F16C */
    QN_CPU_AVXVNNI = 1 << 1, /* AVX-VNNI: dpbusd on 256 bits */
    QN_CPU_AVX512 = 1 << 2,  /* F, BW, DQ, VL, VNNI, VBMI, GFNI: Ice Lake, Zen 4 and later */
    QN_CPU_NEON = 1 << 3,    /* ARMv8.0 */
    QN_CPU_DOTPROD = 1 << 4  /* ARMv8.2 dot products */
};

/* qn_cpu_present - the features of the machine, whatever QN_CPU says. */
unsigned qn_cpu_present(void);

/* qn_cpu_features - the features to use: those present, capped by the environment variable QN_CPU, which names a level
 * ("ref", "avx2", "avxvnni", "avx512", "neon", "dotprod"). QN_ERR_INVALID when it names none, QN_ERR_UNSUPPORTED when this
 * machine does not have it. */
qn_status qn_cpu_features(unsigned *features);

/* qn_cpu_level - the features that a level's name stands for: false when no such level exists. */
int qn_cpu_level(const char *name, unsigned *features);

/* qn_cpu_name - the highest level in a mask: "avx512", or "ref" for none. */
const char *qn_cpu_name(unsigned features);

/* qn_cpu_cores - physical cores that this process may run on, at least 1. Two hardware threads of a core count once. */
int qn_cpu_cores(void);

/* qn_cpu_threads - hardware threads that this process may run on, at least 1. */
int qn_cpu_threads(void);

#endif
