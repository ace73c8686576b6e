/* CPU features. Each kernel table selects its variants from the features. */
#include "base/append.h"
#include "base/cpu.h"
#include "base/tile_permission.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if QN_X86
#include <cpuid.h>
#elif QN_ARM64
#include "base/arm_features.h"
#endif

const qn_cpu_level qn_cpu_levels[] = {
    { "ref", 0 },
#if QN_X86
    { "avx2", QN_CPU_AVX2 },
    { "avxvnni", QN_CPU_AVX2 | QN_CPU_AVXVNNI },
    { "avx512", QN_CPU_AVX2 | QN_CPU_AVX512 },
#ifdef QN_HAVE_AMX
    { "amx", QN_CPU_AVX2 | QN_CPU_AVX512 | QN_CPU_AMX },
#endif
#elif QN_ARM64
    { "neon", QN_CPU_NEON },
    { "dotprod", QN_CPU_NEON | QN_CPU_DOTPROD },
    { "i8mm", QN_CPU_NEON | QN_CPU_DOTPROD | QN_CPU_I8MM },
#endif
};

enum { N_LEVELS = sizeof qn_cpu_levels / sizeof qn_cpu_levels[0] };
_Static_assert((int)N_LEVELS <= (int)QN_CPU_MAX_LEVELS, "arrays of levels would overflow");

const size_t qn_cpu_n_levels = N_LEVELS;

#if QN_X86
/* Bits of XCR0: the registers that the operating system saves. */
enum {
    SAVES_AVX = 1 << 1 | 1 << 2,                         /* SSE, AVX */
    SAVES_AVX512 = SAVES_AVX | 1 << 5 | 1 << 6 | 1 << 7, /* mask registers, upper halves, upper sixteen */
    SAVES_TILES = 1 << 17 | 1 << 18                      /* configuration and data */
};

/* Bits of leaf 7, which older cpuid.h do not name. */
enum { EBX7_AVX512 = 1 << 16 | 1 << 17 | 1 << 30 }; /* F, DQ, BW */
static const unsigned ebx7_vl = 1u << 31;
enum { ECX7_AVX512 = 1 << 1 | 1 << 8 | 1 << 11 }; /* VBMI, GFNI, VNNI */
enum { EDX7_AMX = 1 << 22 | 1 << 24 | 1 << 25 };  /* bf16, tile, int8 */
enum { EAX71_AVXVNNI = 1 << 4 };

static bool has_all(unsigned bits, unsigned wanted)
{
    return (bits & wanted) == wanted;
}

static bool are_saved(unsigned registers)
{
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return has_all(xcr0, registers);
}

/* By cpuid itself: __builtin_cpu_supports needs a run-time library that some compilers do not have. */
static unsigned features_of_x86(void)
{
    unsigned features = QN_CPU_AVX2, a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, bit_FMA | bit_AVX | bit_F16C) || !are_saved(SAVES_AVX) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return 0;
    if (has_all(b, EBX7_AVX512 | ebx7_vl) && has_all(c, ECX7_AVX512) && are_saved(SAVES_AVX512))
        features |= QN_CPU_AVX512;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && a & EAX71_AVXVNNI)
        features |= QN_CPU_AVXVNNI;
    return features;
}
#endif

#ifdef QN_HAVE_AMX
/* Whether the CPU has AMX with int8 and bf16. */
static bool has_amx(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has_all(d, EDX7_AMX);
}

/* Whether the kernel saves tile registers, and permits them. */
static bool may_use_amx(void)
{
    return are_saved(SAVES_TILES) && qn_request_tiles();
}
#endif

/* The features that need no permission. They are read once: in a virtual machine cpuid takes as long as a short
 * request. */
static unsigned free_features(void)
{
    enum { KNOWN = 1 << 30 };
    static _Atomic unsigned read;
    unsigned features = atomic_load_explicit(&read, memory_order_relaxed);
    if (features & KNOWN)
        return features & ~(unsigned)KNOWN;
#if QN_X86
    features = features_of_x86();
#elif QN_ARM64
    features = QN_CPU_NEON;
    if (qn_arm_has_dotprod())
        features |= QN_CPU_DOTPROD;
    if (features & QN_CPU_DOTPROD && qn_arm_has_i8mm())
        features |= QN_CPU_I8MM;
#endif
    atomic_store_explicit(&read, features | KNOWN, memory_order_relaxed);
    return features;
}

unsigned qn_cpu_present(void)
{
    unsigned features = free_features();
#ifdef QN_HAVE_AMX
    if (features & QN_CPU_AVX512 && has_amx() && may_use_amx())
        features |= QN_CPU_AMX;
#endif
    return features;
}

bool qn_cpu_has_level(const qn_cpu_level *level)
{
    return !(level->features & ~qn_cpu_present());
}

static const qn_cpu_level *find_level(const char *name)
{
    for (int i = 0; i < N_LEVELS; i++)
        if (!strcmp(name, qn_cpu_levels[i].name))
            return &qn_cpu_levels[i];
    return NULL;
}

/* The features of the CPU, as far as the level has them: without AMX the permission is not requested. */
static unsigned present_for(const qn_cpu_level *level)
{
    return level->features & QN_CPU_AMX ? qn_cpu_present() : free_features();
}

/* Whether the CPU has the level, and the kernel refuses it; `present` are the features without it. */
static bool is_refused(const qn_cpu_level *level, unsigned present)
{
#ifdef QN_HAVE_AMX
    return (level->features & ~present) == QN_CPU_AMX && has_amx();
#else
    (void)level, (void)present;
    return false;
#endif
}

const char *qn_cpu_notice(void)
{
    const char *cap = getenv("QN_CPU");
    const qn_cpu_level *level = cap ? find_level(cap) : NULL;
    return level && is_refused(level, present_for(level))
               ? "QN_CPU: the kernel does not permit AMX's tile registers to "
                 "this process, so 'avx512' is used"
               : NULL;
}

qn_status qn_cpu_features(unsigned *features)
{
    const char *cap = getenv("QN_CPU");
    if (!cap || !*cap) {
        *features = qn_cpu_present();
        return QN_OK;
    }
    const qn_cpu_level *level = find_level(cap);
    if (!level) {
        char known[128];
        qn_text_buffer text = QN_APPEND_TO(known);
        for (int i = 0; i < N_LEVELS; i++)
            qn_append(&text, "%s%s", i ? ", " : "", qn_cpu_levels[i].name);
        return qn_fail(QN_ERR_INVALID, "QN_CPU: '%s' is not an instruction set level (%s)", cap, known);
    }
    const unsigned present = present_for(level);
    if (is_refused(level, present)) {
        *features = level->features & present;
        return QN_OK;
    }
    if (level->features & ~present)
        return qn_fail(QN_ERR_UNSUPPORTED, "QN_CPU: this CPU has no '%s', only '%s'", cap, qn_cpu_name(present));
    *features = level->features;
    return QN_OK;
}

const char *qn_cpu_name(unsigned features)
{
    const char *name = qn_cpu_levels[0].name;
    for (int i = 1; i < N_LEVELS; i++)
        if ((qn_cpu_levels[i].features & features) == qn_cpu_levels[i].features)
            name = qn_cpu_levels[i].name;
    return name;
}
