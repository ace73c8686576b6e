/* Makes declarations of a family's variants.def, the only list of its GPU kernel sources and built-in variants. The C
 * code that fills launches includes this file, then the list; cmake/cuda.cmake reads the same rows, one a line:
 *
 *   QN_PLAIN(name, "family/file.cu")                   a source without parameters, compiled when quern is built
 *   QN_SOURCE(name, "family/file.cu", parameters...)   a source with parameters: head_dim is -DQN_HEAD_DIM=value;
 *                                                      is_bf16 is a flag: -DQN_BF16 if it is 1
 *   QN_VARIANT(name, values...)                        a variant of `name` that is compiled when quern is built
 *   QN_VARIANT_ON("sm_80 sm_86", name, values...)      the same, for these architectures alone: others do not select it
 *
 * Other variants of a source with parameters are compiled when they are first needed. The declarations:
 *
 *   name_source               qn_gpu_source
 *   struct name_variant       the parameters as uint32_t fields, in the order of the row
 *   name_of(name_variant)     the qn_gpu_variant; QN_GPU_VARIANT(name, values...) calls it, and the compiler counts the
 *                             values
 *
 * QN_VARIANT is empty unless the includer defines it, QN_VARIANT_ON is QN_VARIANT. The list ends with #undef of the
 * macros. */
#ifndef QN_CUDA_KERNELS_VARIANTS_H
#define QN_CUDA_KERNELS_VARIANTS_H

#include "cuda/kernels/launch.h"

#include <string.h>

#define QN_GPU_VARIANT(name, ...) name##_of((struct name##_variant){ __VA_ARGS__ })

#endif

#define QN_PLAIN(name, file) static const qn_gpu_source name##_source __attribute__((unused)) = { file, "" };

#define QN_SOURCE(name, file, ...)                                                                                     \
    static const qn_gpu_source name##_source = { file, #__VA_ARGS__ };                                                 \
    struct name##_variant {                                                                                            \
        uint32_t __VA_ARGS__;                                                                                          \
    };                                                                                                                 \
    static inline qn_gpu_variant name##_of(struct name##_variant values)                                               \
    {                                                                                                                  \
        qn_gpu_variant variant = { .source = &name##_source };                                                         \
        _Static_assert(sizeof values <= sizeof variant.values, "QN_GPU_PARAMETERS is too small for " #name);           \
        memcpy(variant.values, &values, sizeof values);                                                                \
        return variant;                                                                                                \
    }

#ifndef QN_VARIANT
#define QN_VARIANT(name, ...)
#endif

#undef QN_VARIANT_ON
#define QN_VARIANT_ON(archs, name, ...) QN_VARIANT(name, __VA_ARGS__)
