/* The compiler's definitions for a variant of a kernel source. */
#include "kernels/launch.h"

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
    size_t used = 0;
    for (size_t i = 0; *name && i < QN_GPU_PARAMETERS; i++) {
        const bool is_flag = !strncmp(name, flag, sizeof flag - 1);
        char word[QN_GPU_DEFINES_MAX / QN_GPU_PARAMETERS - 1]; /* and a space before each, or the zero at the end */
        size_t n = sizeof prefix - 1;
        memcpy(word, prefix, n);
        for (const char *c = is_flag ? name + sizeof flag - 1 : name; *c && *c != ',' && n < sizeof word - 1; c++)
            word[n++] = upper(*c);
        if (is_flag)
            word[n] = '\0';
        else
            snprintf(word + n, sizeof word - n, "=%u", variant->values[i]);
        if (!is_flag || variant->values[i])
            used += (size_t)snprintf(out + used, QN_GPU_DEFINES_MAX - used, "%s%s", used ? " " : "", word);
        name += strcspn(name, ",");
        name += strspn(name, ", ");
    }
    out[used] = '\0';
}
