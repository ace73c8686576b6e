/* Selection of the variant for kernels/deltanet/row_kernels.h. */
#include "kernels/deltanet/row_kernels.h"

#include "base/cpu.h"

void qn_gdn_row_kernels_init(qn_gdn_row_kernels *rows, unsigned cpu)
{
    qn_gdn_row_kernels_init_ref(rows);
#if QN_X86
    if (cpu & QN_CPU_AVX2)
        qn_gdn_row_kernels_init_avx2(rows);
    if (cpu & QN_CPU_AVX512)
        qn_gdn_row_kernels_init_avx512(rows);
#elif QN_ARM64
    if (cpu & QN_CPU_NEON)
        qn_gdn_row_kernels_init_neon(rows);
#endif
    (void)cpu;
}
