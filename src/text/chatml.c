/* Compares the output of a template with plain ChatML, for each conversation. */
#include "text/chatml.h"

#include "base/memory.h"
#include "text/template_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START QN_CHATML_START
#define END QN_CHATML_END

typedef struct text {
    char *data;
    size_t n, capacity;
} text;

static qn_status put_bytes(text *t, const char *bytes, size_t n)
{
    QN_TRY(qn_realloc_array(&t->data, &t->capacity, t->n + n, 1, "chat template"));
    memcpy(t->data + t->n, bytes, n);
    t->n += n;
    return QN_OK;
}

static qn_status put(text *t, const char *string)
{
    return put_bytes(t, string, strlen(string));
}

static qn_status put_message(text *t, const char *role, const char *content)
{
    QN_TRY(put(t, START));
    QN_TRY(put(t, role));
    QN_TRY(put(t, "\n"));
    QN_TRY(put(t, content));
    return put(t, END "\n");
}

/* The plain ChatML for a conversation of these roles. */
static qn_status expect(const qn_chatml *chat, const char *const *roles, size_t n, bool opens, text *t)
{
    t->n = 0;
    if (chat->bos)
        QN_TRY(put(t, (const char[]){ QN_PROBE_BOS, '\0' }));
    if (chat->system && strcmp(roles[0], "system") != 0)
        QN_TRY(put_message(t, "system", chat->system));
    for (size_t i = 0; i < n; i++)
        QN_TRY(put_message(t, roles[i], (const char[]){ (char)(QN_PROBE_CONTENT + i), '\0' }));
    return opens ? put(t, START "assistant\n") : QN_OK;
}

static bool begins(qn_string in, const char *with)
{
    return in.length >= strlen(with) && memcmp(in.data, with, strlen(with)) == 0;
}

static bool is_stand_in(char c)
{
    return c == QN_PROBE_BOS || (c >= QN_PROBE_CONTENT && c < QN_PROBE_CONTENT + QN_PROBE_MAX_MESSAGES);
}

/* Reads the two additions, bos and default system message, from the output for one message of the user. */
static qn_status read_own(qn_chatml *out, qn_string printed)
{
    static const char opening[] = START "system\n";
    if (printed.length && printed.data[0] == QN_PROBE_BOS) {
        out->bos = true;
        printed = (qn_string){ printed.data + 1, printed.length - 1 };
    }
    if (!begins(printed, opening))
        return QN_OK;
    const char *system = printed.data + sizeof opening - 1;
    const size_t left = printed.length - (sizeof opening - 1);
    const char *end = memmem(system, left, END, sizeof END - 1);
    if (!end || memmem(system, (size_t)(end - system), START, sizeof START - 1))
        return QN_OK; /* the comparison with the expected output fails later */
    for (const char *c = system; c < end; c++)
        if (is_stand_in(*c))
            return QN_OK;
    const size_t n = (size_t)(end - system);
    QN_TRY(qn_alloc(&out->system, n + 1, 1, "system message"));
    memcpy(out->system, system, n);
    return QN_OK;
}

/* An excerpt of data around position `at`, from the beginning of its line, with escapes. */
static void quote(char *to, size_t capacity, const char *data, size_t n, size_t at)
{
    enum { LONGEST = 9, SHOWN = 60 }; /* LONGEST: "{content}" */
    size_t from = at < n ? at : n, k = 0;
    while (from > 0 && data[from - 1] != '\n')
        from--;
    if (at - from > SHOWN / 2)
        from = at - SHOWN / 2;
    while (from < at && ((unsigned char)data[from] & 0xc0) == 0x80)
        from++;
    size_t end = n - from > SHOWN ? from + SHOWN : n;
    while (end < n && end > from && ((unsigned char)data[end] & 0xc0) == 0x80)
        end--;
    for (size_t i = from; i < end && k + LONGEST + 1 < capacity; i++) {
        const char one[2] = { data[i], '\0' };
        const char *s = data[i] == QN_PROBE_BOS ? "{bos}"
                        : is_stand_in(data[i])  ? "{content}"
                        : data[i] == '\n'       ? "\\n"
                        : data[i] == '\t'       ? "\\t"
                                                : one;
        memcpy(to + k, s, strlen(s));
        k += strlen(s);
    }
    to[k] = '\0';
}

static void name_difference(qn_chatml *out, qn_string printed, const text *expected)
{
    char found[120], wanted[120];
    size_t at = 0;
    while (at < printed.length && at < expected->n && printed.data[at] == expected->data[at])
        at++;
    quote(found, sizeof found, printed.data, printed.length, at);
    quote(wanted, sizeof wanted, expected->data, expected->n, at);
    snprintf(out->problem, sizeof out->problem, "it prints '%s', expected '%s'", found, wanted);
}

static qn_status check(qn_probe *probe, const char *const *roles, size_t n, bool opens, text *expected, qn_chatml *out)
{
    qn_string printed;
    out->plain = false;
    if (!qn_probe_print(probe, roles, n, opens, &printed)) {
        snprintf(out->problem, sizeof out->problem, "%s", qn_probe_problem(probe));
        return QN_OK;
    }
    const bool first = !expected->data;
    if (first)
        QN_TRY(read_own(out, printed));
    QN_TRY(expect(out, roles, n, opens, expected));
    out->plain = printed.length == expected->n && memcmp(printed.data, expected->data, expected->n) == 0;
    if (!out->plain)
        name_difference(out, printed, expected);
    return QN_OK;
}

/* The probe evaluates only conditions on a message's role, on whether it is the first or last of messages or of messages[1:],
 * and on the roles of those. So all cases occur in conversations of at most four messages. */
static qn_status check_all(qn_probe *probe, text *expected, qn_chatml *out)
{
    static const char *const names[] = { "user", "assistant", "system" };
    const char *roles[QN_PROBE_MAX_MESSAGES];
    for (size_t n = 1, count = 3; n <= QN_PROBE_MAX_MESSAGES; n++, count *= 3)
        for (size_t i = 0; i < count; i++) {
            for (size_t k = 0, rest = i; k < n; k++, rest /= 3)
                roles[k] = names[rest % 3];
            for (int opens = 1; opens >= 0; opens--) {
                QN_TRY(check(probe, roles, n, opens, expected, out));
                if (!out->plain)
                    return QN_OK;
            }
        }
    return QN_OK;
}

qn_status qn_chatml_read(qn_string template, qn_chatml *out)
{
    *out = (qn_chatml){ .plain = false };
    qn_probe *probe;
    QN_TRY(qn_probe_create(template, &probe));
    text expected = { 0 };
    const qn_status status = check_all(probe, &expected, out);
    free(expected.data);
    qn_probe_free(probe);
    if (status != QN_OK || !out->plain) {
        qn_free(out->system);
        out->system = NULL;
    }
    return status;
}
