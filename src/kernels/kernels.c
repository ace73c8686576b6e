/* Fills all CPU kernel tables. */
#include "kernels/kernels.h"

void qn_kernels_init(qn_kernels *kernels, unsigned cpu)
{
    qn_matmul_kernels_init(&kernels->matmul, cpu);
    qn_norm_kernels_init(&kernels->norm, cpu);
    qn_rope_kernels_init(&kernels->rope, cpu);
    qn_attention_kernels_init(&kernels->attention, cpu);
    qn_elementwise_kernels_init(&kernels->elementwise, cpu);
    qn_deltanet_kernels_init(&kernels->deltanet, cpu);
    qn_gdn_row_kernels_init(&kernels->gdn_rows, cpu);
    qn_hadamard_kernels_init(&kernels->hadamard, cpu);
    qn_sample_kernels_init(&kernels->sample, cpu);
    qn_aura_kernels_init(&kernels->aura, cpu);
    kernels->aura.hadamard = kernels->hadamard.block;
}
