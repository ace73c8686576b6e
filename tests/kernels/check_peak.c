/* The peak int8 and f32 rates of one core, from registers only: the limit that prefill is compared with. Nothing is
 * checked. */
#include "check.h"

#include "base/cpu.h"

#include <string.h>

/* Twelve independent accumulators hide a latency of four cycles at up to three instructions per cycle. */
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
enum { N_ACCUMULATORS = 12, REPEATS = 1000 };

#if QN_X86

#include <immintrin.h>

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void peak_avx512(void *context)
{
    (void)context;
    __m512i sum[N_ACCUMULATORS], codes = _mm512_set1_epi8(1), acts = _mm512_set1_epi8(2);
#define CLEAR(i) sum[i] = _mm512_setzero_si512();
#define STEP(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(codes), "v"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx512f"))) static void peak_fma_avx512(void *context)
{
    (void)context;
    __m512 sum[N_ACCUMULATORS], x = _mm512_set1_ps(0.5f);
#define CLEAR(i) sum[i] = _mm512_setzero_ps();
#define STEP(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum[i]) : "v"(x));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx2,fma"))) static void peak_fma_avx2(void *context)
{
    (void)context;
    __m256 sum[N_ACCUMULATORS], x = _mm256_set1_ps(0.5f);
#define CLEAR(i) sum[i] = _mm256_setzero_ps();
#define STEP(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(sum[i]) : "x"(x));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx2"))) static void peak_avx2(void *context)
{
    (void)context;
    __m256i sum[N_ACCUMULATORS], codes = _mm256_set1_epi8(1), acts = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1),
                                 product;
#define CLEAR(i) sum[i] = _mm256_setzero_si256();
#define STEP(i)                                                                                                        \
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"                               \
                     : "+x"(sum[i]), "=&x"(product)                                                                    \
                     : "x"(codes), "x"(acts), "x"(ones));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

#elif QN_ARM64

#include <arm_neon.h>

__attribute__((target("arch=armv8.2-a+dotprod"))) static void peak_dotprod(void *context)
{
    (void)context;
    int32x4_t sum[N_ACCUMULATORS];
    int8x16_t codes = vdupq_n_s8(1), acts = vdupq_n_s8(2);
#define CLEAR(i) sum[i] = vdupq_n_s32(0);
#define STEP(i) __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(codes), "w"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("arch=armv8.2-a+i8mm"))) static void peak_i8mm(void *context)
{
    (void)context;
    int32x4_t sum[N_ACCUMULATORS];
    int8x16_t codes = vdupq_n_s8(1), acts = vdupq_n_s8(2);
#define CLEAR(i) sum[i] = vdupq_n_s32(0);
#define STEP(i) __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(codes), "w"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

#endif

void qn_check_peak(bool bench)
{
    if (!bench)
        return;
    const unsigned present = qn_cpu_present();
    const double calls = 2.0 * N_ACCUMULATORS * REPEATS;
#if QN_X86
    if (present & QN_CPU_AVX2)
        qn_bench("peak", "avx2", "fused multiply-adds", calls * 8, "FLOP", peak_fma_avx2, NULL);
    if (present & QN_CPU_AVX512)
        qn_bench("peak", "avx512", "fused multiply-adds", calls * 16, "FLOP", peak_fma_avx512, NULL);
    if (present & QN_CPU_AVX2)
        qn_bench("peak", "avx2", "int8 dot products, maddubs and madd", calls * 32, "OP", peak_avx2, NULL);
    if (present & QN_CPU_AVX512)
        qn_bench("peak", "avx512", "int8 dot products, dpbusd", calls * 64, "OP", peak_avx512, NULL);
#elif QN_ARM64
    if (present & QN_CPU_DOTPROD)
        qn_bench("peak", "dotprod", "int8 dot products, sdot", calls * 16, "OP", peak_dotprod, NULL);
    if (present & QN_CPU_I8MM)
        qn_bench("peak", "i8mm", "int8 matrix multiplications, smmla", calls * 32, "OP", peak_i8mm, NULL);
#endif
    (void)present;
    (void)calls;
}
