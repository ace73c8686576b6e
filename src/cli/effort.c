/* Levels of reasoning. */
#include "cli/effort.h"

#include <string.h>

const char *qn_middle_effort(const qn_chat_format *format)
{
    const size_t first = format->n_efforts && !strcmp(format->efforts[0], "none"), n = format->n_efforts - first;
    if (n < 2)
        return NULL;
    for (size_t i = first; i < format->n_efforts; i++)
        if (!strcmp(format->efforts[i], "medium"))
            return format->efforts[i];
    return format->efforts[first + (n - 1) / 2];
}

const char *qn_choose_effort(const qn_args *args, const qn_model *model)
{
    return args->reasoning_effort ? args->reasoning_effort : qn_middle_effort(qn_model_get_chat_format(model));
}

qn_thinking qn_choose_thinking(const qn_args *args)
{
    const char *const given = args->thinking ? args->thinking : "auto";
    return !strcmp(given, "on") ? QN_THINKING_ON : !strcmp(given, "off") ? QN_THINKING_OFF : QN_THINKING_AUTO;
}
