/* Columns of clusters about which terminals differ (cli/columns.h), as this terminal says: after such a cluster it is
 * asked for the cursor's place, and its answer comes with the keys, when it comes. */
#ifndef QN_CLI_MEASURE_H
#define QN_CLI_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of a cluster that is measured, clusters that are remembered, and questions without an answer after which no
 * more are asked. */
enum { QN_MEASURE_BYTES = 48, QN_MEASURE_KNOWN = 64, QN_MEASURE_ASKED = 8 };

/* The question, "Device Status Report" of ECMA-48. */
#define QN_MEASURE_QUESTION "\033[6n"

typedef struct qn_measured {
    char bytes[QN_MEASURE_BYTES];
    size_t n;
    size_t columns; /* of one that was asked for: the column in which it begins */
} qn_measured;

/* Zero it before use. */
typedef struct qn_measure {
    qn_measured known[QN_MEASURE_KNOWN]; /* a ring */
    size_t n_known;                      /* measured, also those that were replaced */
    qn_measured asked[QN_MEASURE_ASKED]; /* in this order answers come */
    size_t n_asked;
} qn_measure;

/* qn_measure_find - the columns of a cluster [n], 0: not known. */
size_t qn_measure_find(const qn_measure *measure, const char *bytes, size_t n);

/* qn_measure_ask - whether to print the question after a cluster [n] that begins in this column, counted from 0. */
bool qn_measure_ask(qn_measure *measure, const char *bytes, size_t n, size_t column);

/* qn_measure_answer - takes an answer, the parameters and the last byte of ESC [ ROW ; COLUMN R. False: it is none, or
 * to no question. */
bool qn_measure_answer(qn_measure *measure, const char *sequence);

/* qn_measure_forget - what was asked is not needed any more; its answers are still waited for. */
void qn_measure_forget(qn_measure *measure);

#endif
