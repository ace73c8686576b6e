/* Measures clusters on the terminal. */
#include "cli/measure.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 32 }; /* of one cluster; more is an answer to something else */

static bool is_cluster(const qn_measured *m, const char *bytes, size_t n)
{
    return m->n == n && memcmp(m->bytes, bytes, n) == 0;
}

size_t qn_measure_find(const qn_measure *m, const char *bytes, size_t n)
{
    const size_t n_known = m->n_known < QN_MEASURE_KNOWN ? m->n_known : QN_MEASURE_KNOWN;
    for (size_t i = 0; i < n_known; i++)
        if (is_cluster(&m->known[i], bytes, n))
            return m->known[i].columns;
    return 0;
}

bool qn_measure_ask(qn_measure *m, const char *bytes, size_t n, size_t column)
{
    if (n > QN_MEASURE_BYTES || m->n_asked == QN_MEASURE_ASKED)
        return false;
    for (size_t i = 0; i < m->n_asked; i++)
        if (is_cluster(&m->asked[i], bytes, n))
            return false;
    qn_measured *asked = &m->asked[m->n_asked++];
    *asked = (qn_measured){ .n = n, .columns = column };
    memcpy(asked->bytes, bytes, n);
    return true;
}

bool qn_measure_answer(qn_measure *m, const char *sequence)
{
    char *end;
    if (!m->n_asked || *sequence < '0' || *sequence > '9')
        return false;
    strtoul(sequence, &end, 10);
    if (*end != ';' || end[1] < '0' || end[1] > '9')
        return false;
    const unsigned long column = strtoul(end + 1, &end, 10);
    if (strcmp(end, "R") != 0)
        return false;
    const qn_measured asked = m->asked[0];
    memmove(m->asked, m->asked + 1, --m->n_asked * sizeof *m->asked);
    if (asked.n && column > asked.columns + 1 && column <= asked.columns + 1 + MAX_COLUMNS) {
        qn_measured *known = &m->known[m->n_known++ % QN_MEASURE_KNOWN];
        *known = asked;
        known->columns = column - 1 - asked.columns;
    }
    return true;
}

void qn_measure_forget(qn_measure *m)
{
    for (size_t i = 0; i < m->n_asked; i++)
        m->asked[i].n = 0;
}
