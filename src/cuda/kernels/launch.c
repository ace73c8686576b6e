/* The compiler's definitions for a variant of a kernel source. */
#include "cuda/kernels/launch.h"

#include "base/append.h"

#include <stdio.h>
#include <string.h>

static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

void qn_gpu_defines(const qn_gpu_variant *variant, char out[QN_GPU_DEFINES_MAX])
{
    static const char flag[] = "is_", prefix[] = "-DQN_";
    const char *name = variant->source->parameters;
    qn_text_buffer to = qn_append_to(out, QN_GPU_DEFINES_MAX);
    for (size_t i = 0; *name && i < QN_GPU_PARAMETERS; i++) {
        const bool is_flag = !strncmp(name, flag, sizeof flag - 1);
        char word[QN_GPU_DEFINES_MAX / QN_GPU_PARAMETERS - 1]; /* and a space before each, or the zero at the end */
        qn_text_buffer text = QN_APPEND_TO(word);
        qn_append(&text, "%s", prefix);
        for (const char *c = is_flag ? name + sizeof flag - 1 : name; *c && *c != ','; c++)
            qn_append(&text, "%c", upper(*c));
        if (!is_flag)
            qn_append(&text, "=%u", variant->values[i]);
        if (!is_flag || variant->values[i])
            qn_append(&to, "%s%s", to.length ? " " : "", word);
        name += strcspn(name, ",");
        name += strspn(name, ", ");
    }
}
