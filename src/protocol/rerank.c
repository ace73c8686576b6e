/* Exchanges that rank documents: each document of the body is a scheduler request whose answer is its score. Bodies and
 * answers have the form of Jina's and Cohere's APIs, or, with `texts`, that of Hugging Face's
 * text-embeddings-inference; llama-server has both (tools/server/server-context.cpp). */
#include "protocol/embeddings.h"

#include "base/memory.h"

#include <stdlib.h>

enum {
    MAX_DOCUMENTS = 1024,
    MAX_QUERY = 16384 /* bytes: each document's prompt has the query, and is tokenised with it */
};

typedef struct rerank_exchange {
    qn_embeddings_exchange embeddings; /* its vectors are scores; `given` are the documents */
    json_t *query;                     /* a reference, until bind */
    int64_t top_n;                     /* results of the answer; 0: all */
    bool is_list;                      /* the form of text-embeddings-inference, a list of results */
    bool returns_text;                 /* results have the documents' texts */
} rerank_exchange;

/* ---- Bodies ---- */

static const json_t *text_of(const json_t *document)
{
    return json_is_object(document) ? qn_field(document, "text") : document;
}

static bool take_query(rerank_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *query = qn_field(body, "query");
    if (!json_is_string(query) || !json_string_length(query))
        return qn_refuse_type(refusal, "query", query, "a string that is not empty");
    if (json_string_length(query) > MAX_QUERY)
        return qn_refuse(refusal, 400, NULL, "query", "'query' has %zu bytes, at most %d are allowed",
                         json_string_length(query), MAX_QUERY);
    x->query = json_incref(query);
    return true;
}

static bool take_documents(rerank_exchange *x, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const char expected[] = "an array of strings, or of objects with a string 'text'";
    x->is_list = !qn_field(body, "documents") && qn_field(body, "texts");
    const char *field = x->is_list ? "texts" : "documents";
    json_t *documents = qn_field(body, field);
    const size_t n = json_array_size(documents), most = qn_limit(reading->limits->inputs, MAX_DOCUMENTS);
    if (!n)
        return qn_refuse_type(refusal, field, documents, expected);
    if (n > most)
        return qn_refuse(refusal, 400, NULL, field, "'%s' has %zu documents, at most %zu are allowed", field, n, most);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(text_of(json_array_get(documents, i))))
            return qn_refuse_type(refusal, field, json_array_get(documents, i), expected);
    if (!qn_embeddings_alloc(&x->embeddings, n, refusal))
        return false;
    x->embeddings.given = json_incref(documents);
    return true;
}

static void free_rerank(qn_exchange *exchange)
{
    json_decref(((rerank_exchange *)exchange)->query);
    qn_embeddings_free(exchange);
}

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    rerank_exchange *x;
    bool returns_documents = false;
    if (qn_alloc(&x, 1, sizeof *x, "a request")) {
        qn_refuse_memory(refusal);
        return NULL;
    }
    qn_exchange *base = &x->embeddings.base;
    base->account = reading->account;
    x->embeddings.norm = -1;
    if (qn_openai_take_model(body, &x->embeddings.model, refusal) && take_query(x, body, refusal) &&
        take_documents(x, body, reading, refusal) &&
        qn_field_integer(body, "top_n", 1, INT32_MAX, &x->top_n, refusal) &&
        qn_field_bool(body, "return_text", &x->returns_text, refusal) &&
        qn_field_bool(body, "return_documents", &returns_documents, refusal)) {
        x->returns_text = x->returns_text || returns_documents;
        base->model = json_string_value(x->embeddings.model);
        return base;
    }
    free_rerank(base);
    return NULL;
}

/* ---- Requests ---- */

static bool bind_document(rerank_exchange *x, size_t i, qn_refusal *refusal)
{
    const qn_served *served = x->embeddings.served;
    const json_t *text = text_of(json_array_get(x->embeddings.given, i));
    qn_prompt *prompt = &x->embeddings.prompts[i];
    qn_account *account = x->embeddings.base.account;
    if (!qn_exchange_check_bytes(json_string_length(text), served, refusal))
        return false;
    if (qn_ranking_tokens(served->model, json_string_value(x->query), json_string_length(x->query),
                          json_string_value(text), json_string_length(text), &prompt->tokens, &prompt->n))
        return qn_refuse(refusal, 400, "unsupported", "documents", "%s", qn_error_text());
    prompt->capacity = prompt->n;
    if (!qn_account_take(account,
                         prompt->n * sizeof *prompt->tokens + (x->returns_text ? json_string_length(text) : 0)))
        return qn_refuse_over(account, refusal);
    return prompt->n <= served->n_ctx || qn_exchange_refuse_length(prompt->n, served, refusal);
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    rerank_exchange *x = (rerank_exchange *)exchange;
    if (qn_model_check_ranking(served->model))
        return qn_refuse(refusal, 501, "not_supported", NULL, "%s", qn_error_text());
    if (!qn_embeddings_check_count(&x->embeddings, served, refusal))
        return false;
    x->embeddings.served = served;
    for (size_t i = 0; i < x->embeddings.n_prompts; i++)
        if (!bind_document(x, i, refusal))
            return false;
    json_decref(x->query);
    x->query = NULL;
    if (!x->returns_text) {
        json_decref(x->embeddings.given);
        x->embeddings.given = NULL;
    }
    return qn_embeddings_make_requests(&x->embeddings, QN_POOLING_RANK, 1, refusal);
}

/* ---- Answers ---- */

typedef struct ranked {
    size_t index;
    float score;
} ranked;

/* Better scores first, documents of equal scores in their order. */
static int compare(const void *a, const void *b)
{
    const ranked *left = a, *right = b;
    if (left->score != right->score)
        return left->score > right->score ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

static void write_result(const rerank_exchange *x, const ranked *r, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)r->index);
    qn_json_key(out, x->is_list ? "score" : "relevance_score");
    qn_json_number(out, r->score);
    if (x->returns_text) {
        const json_t *text = text_of(json_array_get(x->embeddings.given, r->index));
        if (!x->is_list) {
            qn_json_key(out, "document");
            qn_json_open(out, '{');
        }
        qn_json_key(out, "text");
        qn_json_text(out, json_string_value(text), json_string_length(text));
        if (!x->is_list)
            qn_json_close(out, '}');
    }
    qn_json_close(out, '}');
}

static void write_results(const rerank_exchange *x, const ranked *results, size_t n, qn_bytes *out)
{
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_result(x, &results[i], out);
    qn_json_close(out, ']');
}

static void write_answer(const rerank_exchange *x, const ranked *results, size_t n, qn_bytes *out)
{
    if (x->is_list) {
        write_results(x, results, n, out);
        return;
    }
    qn_json_open(out, '{');
    qn_json_member_string(out, "model", qn_embeddings_model(&x->embeddings));
    qn_json_member_string(out, "object", "list");
    qn_embeddings_write_usage(&x->embeddings, out);
    qn_json_key(out, "results");
    write_results(x, results, n, out);
    qn_json_close(out, '}');
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    rerank_exchange *x = (rerank_exchange *)exchange;
    const size_t n = x->embeddings.n_prompts;
    ranked *results;
    if (!qn_embeddings_check_end(&x->embeddings, out))
        return x->embeddings.refusal.status;
    if (qn_alloc(&results, n, sizeof *results, "results")) {
        qn_refusal refusal;
        qn_refuse_memory(&refusal);
        exchange->protocol->refuse(&refusal, out);
        return refusal.status;
    }
    for (size_t i = 0; i < n; i++)
        results[i] = (ranked){ i, *x->embeddings.embedded[i].values };
    qsort(results, n, sizeof *results, compare);
    write_answer(x, results, x->top_n && (size_t)x->top_n < n ? (size_t)x->top_n : n, out);
    qn_free(results);
    return 200;
}

static const char *const paths[] = { "/v1/rerank", "/rerank", "/reranking", "/v1/reranking", NULL };

const qn_protocol qn_rerank = { .paths = paths,
                                .keep_alive = " ",
                                .parse = parse,
                                .bind = bind,
                                .begin = qn_llama_begin,
                                .event = qn_embeddings_event,
                                .end = end,
                                .fail = qn_embeddings_fail,
                                .refuse = qn_openai_refuse,
                                .free = free_rerank };
