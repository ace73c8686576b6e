/* The environment of Windows is UTF-16; getenv would give it in the system's code page. */
#include "base/environment.h"

#include "base/win32/wide.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A value that was returned. They are kept, as callers hold them; the same value is kept once. */
struct value {
    struct value *next;
    char *text;
};

static struct value *values;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the kept value that equals `text`, which this function owns. NULL without memory. */
static const char *keep(char *text)
{
    struct value *kept = values;
    while (kept && strcmp(kept->text, text) != 0)
        kept = kept->next;
    if (!kept && (kept = malloc(sizeof *kept))) {
        *kept = (struct value){ .next = values, .text = text };
        values = kept;
        return text;
    }
    free(text);
    return kept ? kept->text : NULL;
}

const char *qn_environment(const char *name)
{
    wchar_t *wide = qn_wide_path(name);
    pthread_mutex_lock(&lock);
    const wchar_t *found = wide ? _wgetenv(wide) : NULL;
    char *text = found ? qn_narrow(found) : NULL;
    const char *value = text ? keep(text) : NULL;
    pthread_mutex_unlock(&lock);
    free(wide);
    return value;
}
