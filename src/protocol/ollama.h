/* Ollama's API: chats and texts whose streams are lines of JSON, and the properties of a model. Bodies are rewritten as
 * those of chats and completions. Fields are as in Ollama's docs/api.md. */
#ifndef QN_PROTOCOL_OLLAMA_H
#define QN_PROTOCOL_OLLAMA_H

#include "protocol/openai.h"

extern const qn_protocol qn_ollama_chat, qn_ollama_generate, qn_ollama_show;

/* The version of Ollama whose API this is, for clients that need one: GET /api/version. */
#define QN_OLLAMA_VERSION "0.12.6"

typedef struct qn_ollama_exchange {
    qn_text_exchange text;
    bool is_chat; /* /api/chat, else /api/generate */
    bool is_load; /* there is nothing to answer: the model is only loaded */
} qn_ollama_exchange;

/* qn_ollama_parse - member `parse` of both. In ollama_body.c. NULL: refused. */
qn_exchange *qn_ollama_parse(bool is_chat, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_ollama_take_model - reads `model` or, as older clients send it, `name`. The tag ":latest" is left out: it is what
 * clients add to names without one. False: refused. */
bool qn_ollama_take_model(const json_t *body, json_t **model, qn_refusal *refusal);

/* qn_ollama_refuse - member `refuse`: {"error": "..."}. */
void qn_ollama_refuse(const qn_refusal *refusal, qn_bytes *out);

/* qn_ollama_open - begins an object of an answer: model, created_at. */
void qn_ollama_open(const char *model, int64_t created, qn_bytes *out);

/* qn_ollama_seconds - writes a member in nanoseconds. */
void qn_ollama_seconds(const char *key, double seconds, qn_bytes *out);

/* qn_ollama_digest - writes a member of 64 hexadecimal digits that identifies a model by its name and size: not a
 * checksum of its file. */
void qn_ollama_digest(const char *name, uint64_t bytes, qn_bytes *out);

/* qn_ollama_details - writes the member `details` of a model.
 *
 *   family, type   architecture and type of weights; "": unknown
 *   n_params       0: unknown */
void qn_ollama_details(const char *family, const char *type, uint64_t n_params, qn_bytes *out);

#endif
