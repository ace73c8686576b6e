/* Memory of requests, reserved before it is used, within three limits: of the request, of its client, of the server. A
 * client is an API key, or an address where there are no keys.
 *
 *     account = qn_account_open(budget, client);                one account per request; a reference
 *     qn_account_raise(account, n)                              as body bytes arrive: a longer body may use more
 *     if (!qn_account_take(account, n))                         before n bytes are used; false:
 *         return qn_refuse_over(account, &refusal);                 413 over the request's own limit, 429 over others
 *     qn_account_give(account, n);                              after they were freed
 *     qn_account_release(account);                              the last reference returns the rest
 *
 * The account NULL has no limit. Threads: any, also several for one account; each has a reference. */
#ifndef QN_HTTP_BUDGET_H
#define QN_HTTP_BUDGET_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_budget qn_budget;
typedef struct qn_account qn_account;

/* A request may use QN_REQUEST_MEMORY, and QN_REQUEST_FACTOR for each byte of its body. */
enum { QN_REQUEST_MEMORY = 32 << 20, QN_REQUEST_FACTOR = 3 };

typedef struct qn_budget_limits {
    size_t client; /* bytes for all requests of a client */
    /* Bytes for all clients. Above it a client still gets up to an equal part, until all together use twice as much. */
    size_t server;
} qn_budget_limits;

/* qn_budget_limits_for - limits for bodies of at most max_body bytes: a client may use as much memory as two of the
 * largest requests, the server as eight. */
qn_budget_limits qn_budget_limits_for(size_t max_body);

/* qn_budget_create - create a budget that no account uses. Free it with qn_budget_free, after all accounts.
 * QN_ERR_MEMORY. */
qn_status qn_budget_create(const qn_budget_limits *limits, qn_budget **out);
void qn_budget_free(qn_budget *budget); /* NULL is allowed */

/* qn_budget_used - the number of bytes reserved now. */
size_t qn_budget_used(qn_budget *budget);

/* qn_account_open - open an account of a client, with one reference; copies the name. NULL: no memory. */
qn_account *qn_account_open(qn_budget *budget, const char *client);

/* qn_account_hold - take one more reference, for another user of the account. */
void qn_account_hold(qn_account *account);

/* qn_account_release - give a reference back. The last one returns what is still reserved and frees the account. Any
 * thread. */
void qn_account_release(qn_account *account); /* NULL is allowed */

/* qn_account_raise - raise the request's own limit by QN_REQUEST_FACTOR for each of body_bytes. */
void qn_account_raise(qn_account *account, size_t body_bytes);

/* qn_account_take - reserve bytes. False: a limit would be passed, and nothing is reserved. */
bool qn_account_take(qn_account *account, size_t bytes);

/* qn_account_give - return bytes that were freed. After each 8 MiB returned by all accounts, free memory of the heap
 * goes back to the system. */
void qn_account_give(qn_account *account, size_t bytes);

/* qn_account_refused - the limit that the last failed qn_account_take would have passed. */
typedef enum qn_account_limit { QN_LIMIT_NONE, QN_LIMIT_REQUEST, QN_LIMIT_CLIENT, QN_LIMIT_SERVER } qn_account_limit;
qn_account_limit qn_account_refused(qn_account *account);

#endif
