/* Memory of requests, promised before it is used: to a request, to all requests of a client, to all of the server. A client is a
 * key, or where there are none an address.
 *
 *     account = qn_account_open(budget, client);                of a request; a reference
 *     qn_account_raise(account, n)                              as its body comes: a longer body may take more
 *     if (!qn_account_take(account, n))                         before n bytes are used; false:
 *         return qn_account_refuse(account, &refusal);              413 over the request's own limit, 429 over others
 *     qn_account_give(account, n);                              when they are freed
 *     qn_account_release(account);                              the last reference: what is left is given back
 *
 * The account NULL has no limit. Threads: any. */
#ifndef QN_HTTP_BUDGET_H
#define QN_HTTP_BUDGET_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_budget qn_budget;
typedef struct qn_account qn_account;

/* A request may take QN_REQUEST_MEMORY, and for each byte of its body QN_REQUEST_FACTOR. */
enum { QN_REQUEST_MEMORY = 32 << 20, QN_REQUEST_FACTOR = 3 };

typedef struct qn_budget_limits {
    size_t client,
        server; /* bytes of all requests of a client, and of all: beyond it a client gets what an equal part leaves it, up to twice that */
} qn_budget_limits;

/* qn_budget_limits_for - for bodies of at most max_body bytes: of a client as much as two of the largest requests take, of all as
 * much as eight. */
qn_budget_limits qn_budget_limits_for(size_t max_body);

/* qn_budget_create - free it with qn_budget_free, after all accounts; NULL is allowed. */
qn_status qn_budget_create(const qn_budget_limits *limits, qn_budget **out);
void qn_budget_free(qn_budget *budget);

/* qn_budget_used - bytes that are promised now. */
size_t qn_budget_used(qn_budget *budget);

/* qn_account_open - an account of a client, whose name is copied; NULL without memory. qn_account_hold - take a reference. */
qn_account *qn_account_open(qn_budget *budget, const char *client);
void qn_account_hold(qn_account *account);
void qn_account_release(qn_account *account); /* NULL is allowed */

void qn_account_raise(qn_account *account, size_t body_bytes);

/* qn_account_take - promise bytes; false: there are none left, and nothing is promised. qn_account_give - give some back, after
 * they were freed: each 8 MiB of all accounts what is free goes back to the system. */
bool qn_account_take(qn_account *account, size_t bytes);
void qn_account_give(qn_account *account, size_t bytes);

/* Why qn_account_take returned false last. */
typedef enum qn_account_limit { QN_LIMIT_NONE, QN_LIMIT_REQUEST, QN_LIMIT_CLIENT, QN_LIMIT_SERVER } qn_account_limit;
qn_account_limit qn_account_refused(qn_account *account);

#endif
